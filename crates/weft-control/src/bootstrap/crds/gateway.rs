//! Routes of the Gateway API, in so far as the mesh reads them. Fields that it does not know are kept, for those who do.

use super::{
    Definition, GATEWAY, route,
    schema::{Schema, list, object, text},
};

pub(super) fn all() -> Vec<Definition> {
    let kind = |kind, plural, versions, columns, says, spec| Definition {
        group: GATEWAY,
        kind,
        plural,
        short: &[],
        versions,
        columns,
        says,
        spec,
        status: route::status(),
    };
    const HOSTS: &[super::Column] = &[("Hostnames", "string", ".spec.hostnames")];
    vec![
        kind(
            "HTTPRoute",
            "httproutes",
            &["v1", "v1beta1"],
            HOSTS,
            "HTTP requests.",
            route::http(false).open(),
        ),
        kind("GRPCRoute", "grpcroutes", &["v1", "v1alpha2"], HOSTS, "gRPC calls.", route::grpc().open()),
        kind(
            "TLSRoute",
            "tlsroutes",
            &["v1alpha2"],
            HOSTS,
            "TLS connections, by their server names.",
            route::tls().open(),
        ),
        kind("TCPRoute", "tcproutes", &["v1alpha2"], &[], "Connections of any kind.", route::tcp().open()),
        reference_grant(),
    ]
}

fn reference_grant() -> Definition {
    let name = |says| text(says).at_most(253);
    let from = object(
        "Who may refer.",
        [
            ("group", name("The referring kind's API group.").required()),
            ("kind", name("The referring kind.").not_empty().required()),
            ("namespace", name("Its namespace.").not_empty().required()),
        ],
    );
    let to = object(
        "What may be referred to.",
        [
            ("group", name("The kind's API group; empty for the core group.").required()),
            ("kind", name("The kind.").not_empty().required()),
            ("name", name("One object; all of the kind, if not given.")),
        ],
    );
    let both = |says, item: Schema| list(says, item).not_empty().at_most(16).required();
    let spec = object(
        "Lets objects of other namespaces refer to objects of this one.",
        [("from", both("Who may refer.", from)), ("to", both("What may be referred to.", to))],
    );
    Definition {
        group: GATEWAY,
        kind: "ReferenceGrant",
        plural: "referencegrants",
        short: &["refgrant"],
        versions: &["v1beta1", "v1alpha2"],
        columns: &[],
        says: "Allows references across namespaces, on the side that is referred to.",
        spec,
        status: super::schema::open("Nothing is said about it."),
    }
}
