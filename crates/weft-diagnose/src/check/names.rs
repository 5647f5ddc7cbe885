//! Names by which a control plane is found. They are Linkerd's, since manifests and pipelines mention them; weft's own differ
//! where weft runs something else.

/// The settings in force.
pub(super) const CONFIG_MAP: &str = "linkerd-config";
pub(super) const ROOTS: &str = "linkerd-identity-trust-roots";
pub(super) const ROOTS_KEY: &str = "ca-bundle.crt";
pub(super) const ISSUER: &str = "linkerd-identity-issuer";
pub(super) const CREATED_BY: &str = "linkerd.io/created-by";
pub(super) const CONTROL_NS: &str = "linkerd.io/control-plane-ns";
pub(super) const COMPONENT: &str = "linkerd.io/control-plane-component";
pub(super) const EXTENSION: &str = "linkerd.io/extension";
pub(super) const PROXY_VERSION: &str = "linkerd.io/proxy-version";
pub(super) const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";
pub(super) const SKIP_INBOUND: &str = "config.linkerd.io/skip-inbound-ports";
pub(super) const PROXY: &str = "linkerd-proxy";

/// Where weft's controller answers questions: Service and port.
pub(super) const CONTROLLER_SERVICE: &str = "linkerd-dst";
pub(super) const CONTROLLER_ADMIN: u16 = 9990;
/// The proxy's admin port, and the one that opaque and multicluster traffic comes to.
pub(super) const ADMIN_PORT: u16 = 4191;
pub(super) const INBOUND_PORT: u16 = 4143;
/// Ports of a pod that are its proxy's.
pub(super) const PROXY_PORTS: [u16; 4] = [4140, INBOUND_PORT, 4190, ADMIN_PORT];

/// Accounts of every control plane.
pub(super) const ACCOUNTS: [&str; 3] = ["linkerd-destination", "linkerd-identity", "linkerd-proxy-injector"];
pub(super) const HEARTBEAT: &str = "linkerd-heartbeat";
pub(super) const WEFT_CONTROLLER: &str = "weft-controller";

pub(super) const MUTATING: [&str; 1] = ["linkerd-proxy-injector-webhook-config"];
pub(super) const VALIDATING: [&str; 2] =
    ["linkerd-sp-validator-webhook-config", "linkerd-policy-validator-webhook-config"];
/// Each webhook's Service; its Secret is called so, too, with this after it.
pub(super) const HOOKS: [&str; 3] =
    ["linkerd-proxy-injector", "linkerd-sp-validator", "linkerd-policy-validator"];
pub(super) const HOOK_SECRET: &str = "-k8s-tls";

/// Definitions without which a control plane does not work.
pub(super) const DEFINITIONS: [&str; 8] = [
    "authorizationpolicies.policy.linkerd.io",
    "egressnetworks.policy.linkerd.io",
    "httplocalratelimitpolicies.policy.linkerd.io",
    "meshtlsauthentications.policy.linkerd.io",
    "networkauthentications.policy.linkerd.io",
    "serverauthorizations.policy.linkerd.io",
    "servers.policy.linkerd.io",
    "serviceprofiles.linkerd.io",
];
pub(super) const GATEWAY_DEFINITIONS: [&str; 2] =
    ["grpcroutes.gateway.networking.k8s.io", "httproutes.gateway.networking.k8s.io"];

/// Policies of other engines: definition, and the path of their collection.
pub(super) const ENGINES: [(&str, &str); 5] = [
    (
        "adminnetworkpolicies.policy.networking.k8s.io",
        "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies",
    ),
    ("ciliumclusterwidenetworkpolicies.cilium.io", "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies"),
    ("ciliumnetworkpolicies.cilium.io", "/apis/cilium.io/v2/ciliumnetworkpolicies"),
    ("globalnetworkpolicies.crd.projectcalico.org", "/apis/crd.projectcalico.org/v1/globalnetworkpolicies"),
    ("networkpolicies.crd.projectcalico.org", "/apis/crd.projectcalico.org/v1/networkpolicies"),
];

/// The CNI plugin's: ConfigMap; the rest share one name.
pub(super) const CNI_CONFIG_MAP: &str = "linkerd-cni-config";
pub(super) const CNI: &str = "linkerd-cni";
