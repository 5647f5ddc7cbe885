//! `workload.linkerd.io`: meshed processes outside of the cluster.

use super::{
    Definition,
    schema::{conditions, list, object, port, text},
};

pub(super) fn external_workload() -> Definition {
    let mesh_tls = object(
        "How its proxy is known.",
        [
            (
                "identity",
                text("The identity in its certificate: a DNS name or a SPIFFE id.")
                    .not_empty()
                    .at_most(253)
                    .required(),
            ),
            (
                "serverName",
                text("The name that clients ask for in the handshake.").not_empty().at_most(253).required(),
            ),
        ],
    );
    let ports = object(
        "A port.",
        [
            ("name", text("Its name; linkerd-proxy names the proxy's own.").at_most(63)),
            ("port", port("Its number.").required()),
            ("protocol", text("Its protocol.").one_of(&["TCP", "UDP", "SCTP"]).default("TCP")),
        ],
    );
    let ip = object("An address.", [("ip", text("The address.").not_empty().required())]);
    let spec = object(
        "A process and its proxy.",
        [
            ("meshTLS", mesh_tls.required()),
            ("ports", list("The ports on which it is reached.", ports)),
            ("workloadIPs", list("Its addresses, one of each family.", ip).at_most(2)),
        ],
    );
    Definition {
        group: "workload.linkerd.io",
        kind: "ExternalWorkload",
        plural: "externalworkloads",
        short: &[],
        versions: &["v1beta1", "v1alpha1"],
        columns: &[
            ("Identity", "string", ".spec.meshTLS.identity"),
            ("IP", "string", ".spec.workloadIPs[0].ip"),
        ],
        says: "A meshed process outside of the cluster, which Services can select by labels.",
        spec,
        status: conditions(),
    }
}
