//! Installing on a cluster: values, and the manifests they make.

pub mod chart;
pub mod cni;
pub mod deployment;
pub mod objects;
pub mod rbac;
pub mod services;
pub mod settings;
pub mod template;
pub mod values;
pub mod webhooks;
pub mod yaml;

use self::{
    objects::{OVERRIDES_KEY, OVERRIDES_SECRET},
    template::Fill,
    values::Values,
};
use crate::bootstrap::crds;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// What `weft install --crds` prints; with the Gateway API's where the cluster has none of its own.
pub fn crds(gateway: bool) -> Vec<Value> {
    let mut all = crds::linkerd();
    if gateway {
        all.extend(gateway_crds());
    }
    all
}

/// The definitions of the Gateway API's routes.
pub fn gateway_crds() -> Vec<Value> {
    crds::gateway()
}

/// What `weft install` prints: every object of the control plane, in the order in which it must be applied.
pub fn control_plane(values: &Values, namespace: &str) -> Vec<Value> {
    let fill = Fill { values, namespace };
    let mut objects = vec![objects::own_namespace()];
    objects.extend(objects::control_plane());
    let mut filled: Vec<Value> =
        objects.iter().map(|object| fill.fill(object)).filter(|object| !object.is_null()).collect();
    filled.push(overrides_secret(values, &fill));
    filled
}

/// What was asked for beyond the defaults, for `weft upgrade`.
fn overrides_secret(values: &Values, fill: &Fill<'_>) -> Value {
    let text = yaml::to_string(&values.overrides());
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": fill.fill(&objects::meta(OVERRIDES_SECRET)),
        "data": {(OVERRIDES_KEY): STANDARD.encode(text)},
    })
}
