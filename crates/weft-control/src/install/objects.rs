//! All objects of an installation, as templates.

use super::{
    deployment, rbac,
    services::services,
    template::{base64, config, created_by, namespace, value, when, when_is},
    webhooks,
};
use crate::{
    authority::{ISSUER_SECRET, ROOTS_CONFIG_MAP, ROOTS_KEY},
    config::Ports,
};
use serde_json::{Value, json};

/// Name of the Deployment, and of its ServiceAccount.
pub const CONTROLLER: &str = "weft-controller";
pub const CONFIG_MAP: &str = "linkerd-config";
pub const OVERRIDES_SECRET: &str = "linkerd-config-overrides";
pub const OVERRIDES_KEY: &str = "linkerd-config-overrides";
pub const COMPONENT: &str = "linkerd.io/control-plane-component";
pub const CONTROL_NS: &str = "linkerd.io/control-plane-ns";
pub const CREATED_BY: &str = "linkerd.io/created-by";

pub(super) fn labels() -> Value {
    json!({(CONTROL_NS): namespace(), "app.kubernetes.io/part-of": "weft"})
}

pub(super) fn meta(name: &str) -> Value {
    json!({"name": name, "namespace": namespace(), "labels": labels(),
        "annotations": {(CREATED_BY): created_by()}})
}

pub(super) fn selector() -> Value {
    json!({(COMPONENT): "controller"})
}

/// The namespace. The chart leaves it to helm.
pub fn own_namespace() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": namespace(),
            "annotations": {"linkerd.io/inject": "disabled"},
            "labels": {"linkerd.io/is-control-plane": "true", (CONTROL_NS): namespace(),
                "config.linkerd.io/admission-webhooks": "disabled"},
        },
    })
}

/// The control plane but its namespace, in the order in which it must be applied.
pub fn control_plane() -> Vec<Value> {
    let mut objects = rbac::objects();
    objects.push(when_is("identity.issuer.scheme", "linkerd.io/tls", issuer_secret(), Value::Null));
    objects.push(when("identity.externalCA", Value::Null, roots()));
    objects.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(CONFIG_MAP),
        "data": {"values": config()}}));
    objects.extend(services(Ports::default()).iter().map(|service| service.object(true)));
    objects.extend(deployment::objects());
    let timeout = value("proxyInjector.timeoutSeconds");
    objects.extend(webhooks::objects(&value("webhookFailurePolicy"), &timeout));
    objects
}

fn issuer_secret() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "linkerd.io/tls", "metadata": meta(ISSUER_SECRET),
        "data": {"crt.pem": base64("identity.issuer.tls.crtPEM"), "key.pem": base64("identity.issuer.tls.keyPEM")},
    })
}

fn roots() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(ROOTS_CONFIG_MAP),
        "data": {(ROOTS_KEY): value("identityTrustAnchorsPEM")}})
}
