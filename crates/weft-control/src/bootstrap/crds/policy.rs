//! `policy.linkerd.io`: who may call, how much, and where traffic may go.

use super::{
    Definition, POLICY, route,
    schema::{
        Schema, conditions, flag, int_or_string, integer, label_selector, list, network, object, reference,
        text,
    },
};

pub(super) fn all() -> Vec<Definition> {
    vec![
        server(),
        server_authorization(),
        authorization_policy(),
        mesh_tls_authentication(),
        network_authentication(),
        http_route(),
        rate_limit(),
        egress_network(),
    ]
}

fn server() -> Definition {
    let spec = object(
        "A port of some workloads.",
        [
            ("podSelector", label_selector("The pods, by their labels. An empty selector selects all.")),
            ("externalWorkloadSelector", label_selector("The ExternalWorkloads, by their labels.")),
            ("port", int_or_string("The port, by its number or by the name that the container gives it.").required()),
            (
                "proxyProtocol",
                text("How the port's bytes are read. unknown: found out from the first bytes; opaque: not looked into.")
                    .one_of(&["unknown", "HTTP/1", "HTTP/2", "gRPC", "opaque", "TLS"])
                    .default("unknown"),
            ),
            (
                "accessPolicy",
                text(
                    "Who may call besides those whom authorizations allow: deny (nobody), audit (everybody, recorded), \
                     all-authenticated, all-unauthenticated, cluster-authenticated or cluster-unauthenticated.",
                )
                .default("deny"),
            ),
        ],
    )
    .exactly_one(&["podSelector", "externalWorkloadSelector"]);
    Definition {
        group: POLICY,
        kind: "Server",
        plural: "servers",
        short: &["srv"],
        versions: &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"],
        columns: &[
            ("Port", "string", ".spec.port"),
            ("Protocol", "string", ".spec.proxyProtocol"),
            ("Access Policy", "string", ".spec.accessPolicy"),
        ],
        says: "A port of workloads that policies are about.",
        spec,
        status: conditions(),
    }
}

fn server_authorization() -> Definition {
    let account = object(
        "A ServiceAccount.",
        [
            ("name", text("Its name; * stands for all.").not_empty().required()),
            ("namespace", text("Its namespace, if not this one.")),
        ],
    );
    let mesh_tls = object(
        "Callers with mesh TLS.",
        [
            ("unauthenticatedTLS", flag("Any mesh TLS, also without a client's identity.").default(false)),
            ("identities", list("Identities; a leading * stands for any beginning.", text("An identity."))),
            ("serviceAccounts", list("Identities, by their ServiceAccounts.", account)),
        ],
    );
    let spec = object(
        "Allows callers of Servers.",
        [
            (
                "server",
                object(
                    "The Servers of this namespace.",
                    [
                        ("name", text("One, by its name.")),
                        ("selector", label_selector("Some, by their labels. An empty selector selects all.")),
                    ],
                )
                .exactly_one(&["name", "selector"])
                .required(),
            ),
            (
                "client",
                object(
                    "The callers.",
                    [
                        (
                            "networks",
                            list(
                                "Where they are; the cluster's networks if not given.",
                                network("A network."),
                            ),
                        ),
                        ("unauthenticated", flag("Anybody there, also in plaintext.").default(false)),
                        ("meshTLS", mesh_tls),
                    ],
                )
                .required(),
            ),
        ],
    );
    Definition {
        group: POLICY,
        kind: "ServerAuthorization",
        plural: "serverauthorizations",
        short: &["saz", "serverauthz", "srvauthz"],
        versions: &["v1beta1", "v1alpha1"],
        columns: &[("Server", "string", ".spec.server.name")],
        says: "Allows callers of Servers. AuthorizationPolicy does the same for more targets.",
        spec,
        status: conditions(),
    }
}

fn authorization_policy() -> Definition {
    let targets = ["Server", "Namespace", "HTTPRoute", "GRPCRoute"];
    let refs = ["MeshTLSAuthentication", "NetworkAuthentication", "ServiceAccount"];
    let spec = object(
        "Allows callers of one target.",
        [
            (
                "targetRef",
                reference(
                    "What may be called: a Server, a route, or all Servers of the namespace.",
                    &targets,
                    true,
                )
                .required(),
            ),
            (
                "requiredAuthenticationRefs",
                list(
                    "What a caller must be. All must hold; none at all allows everybody.",
                    reference("An authentication.", &refs, true),
                )
                .required(),
            ),
        ],
    );
    Definition {
        group: POLICY,
        kind: "AuthorizationPolicy",
        plural: "authorizationpolicies",
        short: &["authzpolicy"],
        versions: &["v1alpha1"],
        columns: &[
            ("Target Kind", "string", ".spec.targetRef.kind"),
            ("Target", "string", ".spec.targetRef.name"),
        ],
        says: "Allows callers of a Server, of a route or of a namespace's Servers.",
        spec,
        status: conditions(),
    }
}

fn mesh_tls_authentication() -> Definition {
    let spec = object(
        "Identities, of which a caller must have one.",
        [
            (
                "identities",
                list(
                    "Identities as such.",
                    text("A DNS name, such as web.shop.serviceaccount.identity.linkerd.cluster.local, *.SUFFIX, *, or a SPIFFE id."),
                )
                .not_empty(),
            ),
            (
                "identityRefs",
                list(
                    "Identities of ServiceAccounts, and of all those of a namespace.",
                    reference("A ServiceAccount or Namespace.", &["ServiceAccount", "Namespace"], true),
                )
                .not_empty(),
            ),
        ],
    )
    .with(
        "anyOf",
        serde_json::json!([{"required": ["identities"]}, {"required": ["identityRefs"]}]),
    );
    Definition {
        group: POLICY,
        kind: "MeshTLSAuthentication",
        plural: "meshtlsauthentications",
        short: &["meshtlsauthn"],
        versions: &["v1alpha1"],
        columns: &[
            ("Identities", "string", ".spec.identities"),
            ("References", "string", ".spec.identityRefs[*].name"),
        ],
        says: "Callers by their identities.",
        spec,
        status: conditions(),
    }
}

fn network_authentication() -> Definition {
    let spec = object(
        "Networks, in one of which a caller must be.",
        [("networks", list("The networks.", network("A network.")).not_empty().required())],
    );
    Definition {
        group: POLICY,
        kind: "NetworkAuthentication",
        plural: "networkauthentications",
        short: &["netauthn", "networkauthn"],
        versions: &["v1alpha1"],
        columns: &[("Networks", "string", ".spec.networks[*].cidr")],
        says: "Callers by their addresses.",
        spec,
        status: conditions(),
    }
}

fn http_route() -> Definition {
    Definition {
        group: POLICY,
        kind: "HTTPRoute",
        plural: "httproutes",
        short: &[],
        versions: &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"],
        columns: &[("Hostnames", "string", ".spec.hostnames")],
        says: "Requests of a Server, a Service or an EgressNetwork, and what is done with them.",
        spec: route::http(true),
        status: route::status(),
    }
}

fn rate() -> Schema {
    integer("Requests per second.", 1, u32::MAX.into()).required()
}

fn rate_limit() -> Definition {
    let limit = |says| object(says, [("requestsPerSecond", rate())]);
    let client = reference("A caller.", &["ServiceAccount"], true);
    let exception = object(
        "A limit for some callers.",
        [("requestsPerSecond", rate()), ("clientRefs", list("The callers.", client).not_empty().required())],
    );
    let spec = object(
        "How many requests each proxy of a Server lets pass.",
        [
            ("targetRef", reference("The Server.", &["Server"], true).required()),
            ("total", limit("Of all callers together.")),
            ("identity", limit("Of each identity; callers without one share a limit.")),
            ("overrides", list("Limits of single callers, in place of identity.", exception)),
        ],
    );
    let status = object(
        "What the controller says about it.",
        [
            ("conditions", super::schema::condition_list()),
            ("targetRef", reference("The Server that it is about.", &["Server"], true)),
        ],
    );
    Definition {
        group: POLICY,
        kind: "HTTPLocalRateLimitPolicy",
        plural: "httplocalratelimitpolicies",
        short: &[],
        versions: &["v1alpha1"],
        columns: &[
            ("Target_kind", "string", ".spec.targetRef.kind"),
            ("Target_name", "string", ".spec.targetRef.name"),
            ("Total_RPS", "integer", ".spec.total.requestsPerSecond"),
            ("Identity_RPS", "integer", ".spec.identity.requestsPerSecond"),
        ],
        says: "A limit on the requests to a Server.",
        spec,
        status,
    }
}

fn egress_network() -> Definition {
    let spec = object(
        "Where traffic leaves the cluster.",
        [
            (
                "trafficPolicy",
                text("Whether traffic that no route takes may pass.").one_of(&["Allow", "Deny"]).required(),
            ),
            (
                "networks",
                list(
                    "The networks; everything outside the cluster's networks if not given.",
                    network("A network."),
                )
                .not_empty(),
            ),
        ],
    );
    Definition {
        group: POLICY,
        kind: "EgressNetwork",
        plural: "egressnetworks",
        short: &[],
        versions: &["v1alpha1"],
        columns: &[("Traffic Policy", "string", ".spec.trafficPolicy")],
        says: "Destinations outside of the cluster, as a parent of routes.",
        spec,
        status: conditions(),
    }
}
