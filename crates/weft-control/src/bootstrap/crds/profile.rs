//! `linkerd.io`: ServiceProfiles.

use super::{
    Definition,
    schema::{Schema, conditions, flag, int_or_string, integer, list, number, object, open, text},
};

/// A schema cannot hold itself: conditions are written out so deep, and open below.
const DEPTH: u8 = 3;

pub(super) fn service_profile() -> Definition {
    let class = object(
        "Some answers.",
        [
            ("condition", response(DEPTH).required()),
            (
                "isFailure",
                flag(
                    "Whether they count as failures, in the metrics and for retries; they do not, if not given.",
                ),
            ),
        ],
    );
    let route = object(
        "Some requests of the service. The first route whose condition holds takes a request.",
        [
            ("name", text("The route's name, a label of its metrics.").not_empty().required()),
            ("condition", request(DEPTH).required()),
            (
                "responseClasses",
                list("Which answers count as failures; the first that holds decides. Else 5xx do.", class),
            ),
            (
                "isRetryable",
                flag(
                    "Whether failures are tried again, as far as the budget goes; they are not, if not given.",
                ),
            ),
            ("timeout", text("How long a request may take, retries included, such as 300ms.")),
        ],
    );
    let budget = object(
        "How many retries there may be.",
        [
            (
                "retryRatio",
                number("Retries that each request pays for, such as 0.2.").with("minimum", 0).required(),
            ),
            ("minRetriesPerSecond", integer("Retries that are free.", 0, i32::MAX.into()).required()),
            ("ttl", text("For how long a request counts, such as 10s.").required()),
        ],
    );
    let share = object(
        "Another service that takes a share.",
        [
            (
                "authority",
                text("Its name and port, such as v2.shop.svc.cluster.local:80.").not_empty().required(),
            ),
            (
                "weight",
                int_or_string("Its share, relative to the others': a number, or thousandths such as 500m.")
                    .required(),
            ),
        ],
    );
    let spec = object(
        "How clients treat the service whose name the profile has.",
        [
            ("routes", list("Routes, the first that fits counts.", route)),
            ("retryBudget", budget),
            ("dstOverrides", list("Services that take the traffic instead, by weight.", share)),
            (
                "opaquePorts",
                list(
                    "Ports whose bytes are not looked into; added to those of the Service's annotation.",
                    text("A port, or a range such as 4000-4010."),
                ),
            ),
        ],
    );
    Definition {
        group: "linkerd.io",
        kind: "ServiceProfile",
        plural: "serviceprofiles",
        short: &["sp"],
        versions: &["v1alpha2", "v1alpha1"],
        columns: &[("Routes", "string", ".spec.routes[*].name")],
        says: "Routes, retries and shares of a service's traffic. Named like the service: store.shop.svc.cluster.local.",
        spec,
        status: conditions(),
    }
}

fn nested(says: &str, depth: u8, inner: fn(u8) -> Schema) -> [(&'static str, Schema); 3] {
    let one = |depth: u8| if depth == 0 { open(says) } else { inner(depth - 1) };
    [
        ("all", list("All of these hold.", one(depth))),
        ("any", list("Any of these holds.", one(depth))),
        ("not", one(depth)),
    ]
}

fn request(depth: u8) -> Schema {
    let own = [
        ("pathRegex", text("The whole path, without its query, matches this expression.")),
        ("method", text("The method is this one.")),
    ];
    object(
        "A condition on a request.",
        own.into_iter().chain(nested("A condition on a request.", depth, request)),
    )
}

fn response(depth: u8) -> Schema {
    let status = object(
        "The status is in this range, ends included.",
        [
            ("min", integer("The lowest; any, if not given.", 100, 599)),
            ("max", integer("The highest; any, if not given.", 100, 599)),
        ],
    );
    let own = [("status", status)];
    object(
        "A condition on an answer.",
        own.into_iter().chain(nested("A condition on an answer.", depth, response)),
    )
}
