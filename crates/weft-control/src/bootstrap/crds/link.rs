//! `multicluster.linkerd.io`: other clusters.

use super::{
    Definition,
    schema::{Schema, condition_list, label_selector, list, object, text},
};

pub(super) fn link() -> Definition {
    let probe = object(
        "How the gateway's health is found out.",
        [
            ("path", text("The path that is asked for.").required()),
            ("port", text("The gateway's port for it.").required()),
            ("period", text("How often, such as 3s.").required()),
            ("timeout", text("How long an answer may take.").default("30s")),
            ("failureThreshold", text("After how many failures it counts as dead.").default("3")),
        ],
    );
    let name = |says| text(says).at_most(253);
    let spec = object(
        "Another cluster, and what is taken from it.",
        [
            ("targetClusterName", name("What the cluster is called here.").not_empty().required()),
            ("targetClusterDomain", name("Its DNS domain.").default("cluster.local")),
            ("targetClusterLinkerdNamespace", name("Its control plane's namespace.").default("linkerd")),
            ("clusterCredentialsSecret", name("The Secret with the credentials for its API.").required()),
            (
                "gatewayAddress",
                text("Addresses of its gateway, separated by commas; none for a flat network."),
            ),
            ("gatewayPort", text("The gateway's port.")),
            ("gatewayIdentity", text("The gateway's identity.")),
            ("probeSpec", probe),
            ("selector", label_selector("Services that are mirrored here and reached through the gateway.")),
            (
                "remoteDiscoverySelector",
                label_selector("Services that are mirrored here and reached directly."),
            ),
            ("federatedServiceSelector", label_selector("Services that become members of a federated one.")),
            (
                "excludedAnnotations",
                list("Annotations that mirrors do not take over.", text("An annotation, or PREFIX/*.")),
            ),
            ("excludedLabels", list("Labels that mirrors do not take over.", text("A label, or PREFIX/*."))),
        ],
    );
    let status = object(
        "What became of the other cluster's services.",
        [
            ("mirrorServices", services("Services that are mirrored.")),
            ("federatedServices", services("Services that are members of a federated one.")),
        ],
    );
    Definition {
        group: "multicluster.linkerd.io",
        kind: "Link",
        plural: "links",
        short: &[],
        versions: &["v1alpha3", "v1alpha2", "v1alpha1"],
        columns: &[
            ("Cluster", "string", ".spec.targetClusterName"),
            ("Gateway", "string", ".spec.gatewayAddress"),
        ],
        says: "Another cluster whose services are used from here.",
        spec,
        status,
    }
}

fn services(says: &str) -> Schema {
    let remote = object(
        "The service there.",
        [
            ("group", text("Its API group.")),
            ("kind", text("Its kind.")),
            ("namespace", text("Its namespace.")),
            ("name", text("Its name.").required()),
        ],
    );
    let service = object(
        "One service.",
        [
            ("controllerName", text("Who says so.")),
            ("remoteRef", remote.required()),
            ("conditions", condition_list()),
        ],
    );
    list(says, service)
}
