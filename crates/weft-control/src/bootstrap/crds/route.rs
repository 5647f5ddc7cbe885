//! What the schemas of routes have in common, whatever their group.

use super::schema::{Schema, condition_list, duration, integer, list, object, open, port, text};

/// Limits of the Gateway API, which keep objects to a size that can be stored.
const RULES: u32 = 16;
const MATCHES: u32 = 64;
const FILTERS: u32 = 16;
const BACKENDS: u32 = 16;

pub(super) fn parents() -> Schema {
    list(
        "What the route is attached to.",
        object(
            "A parent. For the mesh: a Service, an EgressNetwork or, for incoming traffic, a Server.",
            [
                (
                    "group",
                    text("The kind's API group; empty or core for a Service.")
                        .default("gateway.networking.k8s.io")
                        .at_most(253),
                ),
                ("kind", text("The kind.").default("Gateway").not_empty().at_most(63)),
                ("namespace", text("The parent's namespace, if not the route's.").at_most(63)),
                ("name", text("The parent's name.").not_empty().at_most(253).required()),
                ("sectionName", text("A part of the parent; the mesh has none.").at_most(253)),
                ("port", port("The parent's port; all of them if not given.")),
            ],
        ),
    )
    .at_most(32)
}

fn hostnames(says: &str) -> Schema {
    list(says, text("A name, or *.SUFFIX.").not_empty().at_most(253)).at_most(16)
}

/// HTTPRoute. `strict`: refuse what this build does not know; other controllers' routes are theirs to judge.
pub(super) fn http(strict: bool) -> Schema {
    let name = |says| text(says).not_empty().at_most(256).required();
    let matched = |says: &str, kinds: &[&str], first: &str| {
        object(
            says,
            [
                ("type", text("How the value is compared.").one_of(kinds).default(first)),
                ("name", name("The name.")),
                (
                    "value",
                    text("The value, or an expression that all of it must match.").at_most(4096).required(),
                ),
            ],
        )
    };
    let exact = ["Exact", "RegularExpression"];
    let matches = object(
        "A request that has all of these.",
        [
            (
                "path",
                object(
                    "Its path.",
                    [
                        (
                            "type",
                            text("How the path is compared. PathPrefix: by whole elements.")
                                .one_of(&["Exact", "PathPrefix", "RegularExpression"])
                                .default("PathPrefix"),
                        ),
                        ("value", text("The path.").at_most(1024).default("/")),
                    ],
                ),
            ),
            ("headers", list("Its headers.", matched("A header.", &exact, "Exact")).at_most(16)),
            (
                "queryParams",
                list("Parameters of its query.", matched("A parameter.", &exact, "Exact")).at_most(16),
            ),
            ("method", text("Its method.").not_empty().at_most(64)),
        ],
    );
    let rule = object(
        "Some requests, and what is done with them.",
        [
            ("name", text("The rule's name.").at_most(253)),
            (
                "matches",
                list("The rule takes a request that any of these takes; all, if there are none.", matches)
                    .at_most(MATCHES),
            ),
            (
                "filters",
                list("Changes to requests and answers, in order.", http_filter(strict)).at_most(FILTERS),
            ),
            (
                "backendRefs",
                backends(Some(list("Changes for this backend alone.", http_filter(strict)).at_most(FILTERS))),
            ),
            (
                "timeouts",
                object(
                    "How long things may take.",
                    [
                        ("request", duration("The whole request, retries included. 0s: no limit.")),
                        ("backendRequest", duration("One try. 0s: no limit; not above request.")),
                    ],
                ),
            ),
        ],
    );
    spec([
        ("hostnames", hostnames("Hosts of the requests; all, if there are none.")),
        (
            "rules",
            list("The rules. The most specific match of all routes takes a request.", loosened(rule, strict))
                .at_most(RULES),
        ),
    ])
}

pub(super) fn grpc() -> Schema {
    let rpc = object(
        "Its service and method.",
        [
            ("type", text("How they are compared.").one_of(&["Exact", "RegularExpression"]).default("Exact")),
            ("service", text("The service with its package, such as shop.v1.Store.").at_most(1024)),
            ("method", text("The method.").at_most(1024)),
        ],
    );
    let header = object(
        "A header.",
        [
            (
                "type",
                text("How the value is compared.").one_of(&["Exact", "RegularExpression"]).default("Exact"),
            ),
            ("name", text("The name.").not_empty().at_most(256).required()),
            ("value", text("The value.").not_empty().at_most(4096).required()),
        ],
    );
    let matches = object(
        "A call that has all of these.",
        [("method", rpc), ("headers", list("Its headers.", header).at_most(16))],
    );
    let filter = || {
        object(
            "A change.",
            [
                ("type", text("What it is.").not_empty().required()),
                ("requestHeaderModifier", headers("Changes to the call's headers.")),
                ("responseHeaderModifier", headers("Changes to the answer's headers.")),
                ("requestMirror", mirror()),
                ("extensionRef", open("A filter of somebody else's making.")),
            ],
        )
        .open()
    };
    let rule = object(
        "Some calls, and what is done with them.",
        [
            ("name", text("The rule's name.").at_most(253)),
            (
                "matches",
                list("The rule takes a call that any of these takes; all, if there are none.", matches)
                    .at_most(MATCHES),
            ),
            ("filters", list("Changes to calls and answers, in order.", filter()).at_most(FILTERS)),
            (
                "backendRefs",
                backends(Some(list("Changes for this backend alone.", filter()).at_most(FILTERS))),
            ),
        ],
    );
    spec([
        ("hostnames", hostnames("Hosts of the calls; all, if there are none.")),
        (
            "rules",
            list("The rules. The most specific match of all routes takes a call.", rule.open())
                .at_most(RULES),
        ),
    ])
}

pub(super) fn tls() -> Schema {
    spec([
        ("hostnames", hostnames("Server names in the handshakes; all, if there are none.")),
        ("rules", byte_rules()),
    ])
}

pub(super) fn tcp() -> Schema {
    spec([("rules", byte_rules())])
}

fn byte_rules() -> Schema {
    let rule = object(
        "Where the connections go.",
        [("name", text("The rule's name.").at_most(253)), ("backendRefs", backends(None).not_empty())],
    );
    list("One rule: bytes cannot be told apart.", rule.open()).not_empty().at_most(RULES).required()
}

fn spec(fields: impl IntoIterator<Item = (&'static str, Schema)>) -> Schema {
    object("The route.", [("parentRefs", parents())].into_iter().chain(fields))
}

fn loosened(schema: Schema, strict: bool) -> Schema {
    if strict { schema } else { schema.open() }
}

fn backends(filters: Option<Schema>) -> Schema {
    let fields = [
        ("group", text("The kind's API group.").default("").at_most(253)),
        ("kind", text("The kind.").default("Service").at_most(63)),
        ("name", text("The backend's name.").not_empty().at_most(253).required()),
        (
            "namespace",
            text("The backend's namespace, if not the route's; a ReferenceGrant there must allow it.")
                .at_most(63),
        ),
        ("port", port("The Service's port.")),
        ("weight", integer("Its share, relative to the others'.", 0, 1_000_000).default(1)),
    ];
    let filters = filters.map(|filters| ("filters", filters));
    list(
        "Where the traffic goes; to the parent, if there are none.",
        object("A backend.", fields.into_iter().chain(filters)),
    )
    .at_most(BACKENDS)
}

fn headers(says: &str) -> Schema {
    let header = || {
        object(
            "A header.",
            [
                ("name", text("The name.").not_empty().at_most(256).required()),
                ("value", text("The value.").at_most(4096).required()),
            ],
        )
    };
    object(
        says,
        [
            ("set", list("Replaces a header's values.", header()).at_most(16)),
            ("add", list("Adds to a header's values.", header()).at_most(16)),
            ("remove", list("Removes headers.", text("The name.").not_empty()).at_most(16)),
        ],
    )
}

fn mirror() -> Schema {
    object(
        "Sends a copy to another Service; its answer is not waited for.",
        [
            (
                "backendRef",
                object(
                    "The Service.",
                    [
                        ("group", text("The kind's API group.").default("").at_most(253)),
                        ("kind", text("The kind.").default("Service").at_most(63)),
                        ("name", text("The name.").not_empty().at_most(253).required()),
                        ("namespace", text("The namespace, if not the route's.").at_most(63)),
                        ("port", port("The port.")),
                    ],
                )
                .required(),
            ),
            ("percent", integer("How many of a hundred requests are copied; all, if not given.", 0, 100)),
            (
                "fraction",
                object(
                    "How many requests are copied, as a fraction.",
                    [
                        ("numerator", integer("So many …", 0, i32::MAX.into()).required()),
                        ("denominator", integer("… of so many.", 1, i32::MAX.into()).default(100)),
                    ],
                ),
            ),
        ],
    )
}

fn path_change() -> Schema {
    object(
        "Another path.",
        [
            ("type", text("What is replaced.").one_of(&["ReplaceFullPath", "ReplacePrefixMatch"]).required()),
            ("replaceFullPath", text("The new path.").at_most(1024)),
            ("replacePrefixMatch", text("What replaces the prefix that the rule matched.").at_most(1024)),
        ],
    )
}

fn http_filter(strict: bool) -> Schema {
    let kind = text("What it is.").not_empty().required();
    let kind = if strict {
        kind.one_of(&[
            "RequestHeaderModifier",
            "ResponseHeaderModifier",
            "RequestRedirect",
            "URLRewrite",
            "RequestMirror",
            "ExtensionRef",
        ])
    } else {
        kind
    };
    let redirect = object(
        "Answers with a redirect.",
        [
            ("scheme", text("The scheme of the new address.").one_of(&["http", "https"])),
            ("hostname", text("The host of the new address.").not_empty().at_most(253)),
            ("path", path_change()),
            ("port", port("The port of the new address.")),
            ("statusCode", integer("The status.", 300, 399).default(302)),
        ],
    );
    let rewrite = object(
        "Asks the backend for another address.",
        [("hostname", text("The host.").not_empty().at_most(253)), ("path", path_change())],
    );
    let filter = object(
        "A change.",
        [
            ("type", kind),
            ("requestHeaderModifier", headers("Changes to the request's headers.")),
            ("responseHeaderModifier", headers("Changes to the answer's headers.")),
            ("requestRedirect", redirect),
            ("urlRewrite", rewrite),
            ("requestMirror", mirror()),
            ("extensionRef", open("A filter of somebody else's making; the mesh refuses it.")),
        ],
    );
    loosened(filter, strict)
}

pub(super) fn status() -> Schema {
    let parent = object(
        "One parent, as one controller sees it.",
        [
            ("parentRef", open("The parent, as the route names it.").required()),
            ("controllerName", text("The controller.").required()),
            ("conditions", condition_list()),
        ],
    );
    object(
        "What controllers say about the route.",
        [("parents", list("One entry for each parent and controller.", parent).required())],
    )
}
