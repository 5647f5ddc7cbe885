//! Events about injection, on the workload that a pod belongs to: where people look with `kubectl describe`.

use crate::events::Event;
use serde_json::json;
use weft_kube::meta::Meta;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Injected,
    InjectionSkipped,
}

/// What is told about a pod, on the object that controls it; a pod that nobody controls has no object yet.
pub fn of_pod(pod: &Meta, namespace: &str, reason: Reason, message: String) -> Option<Event> {
    let owner = pod.controller()?;
    Some(Event {
        about: json!({"apiVersion": owner.api_version, "kind": owner.kind, "namespace": namespace,
            "name": owner.name, "uid": owner.uid}),
        warning: reason != Reason::Injected,
        reason: format!("{reason:?}"),
        message,
        detail: String::new(),
        component: "linkerd-proxy-injector",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    #[test]
    fn events_are_about_the_owner() {
        let pod: Meta = from_value(json!({"generateName": "web-1-", "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u", "controller": true}]}))
        .unwrap();
        let event = of_pod(&pod, "shop", Reason::InjectionSkipped, "why".to_owned()).unwrap();
        assert_eq!((&event.about["name"], &event.about["uid"]), (&json!("web-1"), &json!("u")));
        assert!(event.warning && event.reason == "InjectionSkipped");
        assert!(of_pod(&Meta::default(), "shop", Reason::Injected, String::new()).is_none());
    }
}
