//! Injection of manifests: what `weft inject` and `weft uninject` do to an object before a cluster sees it.

use super::{
    decide::{Annotations, INJECT, annotations, obstacle},
    inject::{About, IDENTITY_VOLUME, Injected, PODINFO_VOLUME, ROOTS_VOLUME, TOKEN_VOLUME, inject, object},
};
use crate::config::ControllerConfig;
use serde_json::{Value, json};

/// What became of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Changed,
    /// Nothing to do.
    Unchanged(String),
    /// A proxy cannot be put in.
    Refused(String),
}

/// Containers that injection adds.
const CONTAINERS: [&str; 4] = ["linkerd-init", "linkerd-network-validator", "linkerd-proxy", "linkerd-debug"];
const VOLUMES: [&str; 5] =
    [IDENTITY_VOLUME, TOKEN_VOLUME, ROOTS_VOLUME, PODINFO_VOLUME, "linkerd-proxy-init-xtables-lock"];

/// The way to the pod of an object of this kind; `None` for kinds without pods.
fn way(kind: &str) -> Option<&'static [&'static str]> {
    Some(match kind {
        "Pod" => &[],
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" | "ReplicationController" => {
            &["spec", "template"]
        }
        "CronJob" => &["spec", "jobTemplate", "spec", "template"],
        _ => return None,
    })
}

fn pod<'v>(target: &'v mut Value, way: &[&str]) -> &'v mut Value {
    way.iter().fold(target, |value, key| {
        if !value.is_object() {
            *value = json!({});
        }
        &mut value[*key]
    })
}

/// Ports that no proxy carries; the traffic goes past it.
pub fn udp_ports(target: &Value) -> Vec<u64> {
    let Some(way) = target["kind"].as_str().and_then(way) else { return Vec::new() };
    let pod = way.iter().fold(target, |value, key| &value[*key]);
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let ports = containers.filter_map(|c| c["ports"].as_array()).flatten();
    ports.filter(|p| p["protocol"] == "UDP").filter_map(|p| p["containerPort"].as_u64()).collect()
}

/// Asks the injector to inject: annotations on the pods of a workload, or on a namespace.
pub fn annotate(target: &mut Value, wanted: &Annotations) -> Outcome {
    let kind = target["kind"].as_str().unwrap_or_default().to_owned();
    let place = match (kind.as_str(), way(&kind)) {
        ("Namespace", _) => target,
        (_, Some(way)) => {
            let pod = pod(target, way);
            if let Some(refused) = refusal(pod) {
                return refused;
            }
            pod
        }
        _ => return Outcome::Unchanged("it has no pods".to_owned()),
    };
    let notes = object(&mut place["metadata"], "annotations");
    let before = notes.clone();
    notes.extend(wanted.iter().map(|(key, value)| (key.clone(), json!(value))));
    match *notes == before {
        true => Outcome::Unchanged("it says so already".to_owned()),
        false => Outcome::Changed,
    }
}

fn refusal(pod: &Value) -> Option<Outcome> {
    if annotations(pod).get(INJECT).map(String::as_str) == Some("disabled") {
        return Some(Outcome::Unchanged(format!("{INJECT} is disabled on it")));
    }
    obstacle(pod).map(|why| Outcome::Refused(why.text))
}

/// Puts proxies in, as the injector would. `wanted` are annotations besides the pod's own.
pub fn inject_pods(
    target: &mut Value,
    wanted: &Annotations,
    config: &ControllerConfig,
    about: &About<'_>,
) -> (Outcome, Vec<String>) {
    let kind = target["kind"].as_str().unwrap_or_default().to_owned();
    let Some(way) = way(&kind) else { return (Outcome::Unchanged("it has no pods".to_owned()), Vec::new()) };
    let name = target["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let pod = pod(target, way);
    if let Some(refused) = refusal(pod) {
        return (refused, Vec::new());
    }
    let mut effective = annotations(pod);
    effective.extend(wanted.iter().map(|(key, value)| (key.clone(), value.clone())));
    let owner = (kind != "Pod").then(|| (kind.to_lowercase(), name));
    let Injected { pod: injected, warnings } =
        inject(pod, config, &effective, &About { owner, ..about.clone() });
    *pod = injected;
    (Outcome::Changed, warnings)
}

/// Takes out what injection put in, and what asked for it.
pub fn uninject(target: &mut Value) -> Outcome {
    let kind = target["kind"].as_str().unwrap_or_default().to_owned();
    let before = target.clone();
    match (kind.as_str(), way(&kind)) {
        ("Namespace", _) => clean(&mut target["metadata"]),
        (_, Some(way)) => {
            let pod = pod(target, way);
            clean(&mut pod["metadata"]);
            for (list, names) in
                [("initContainers", &CONTAINERS[..]), ("containers", &CONTAINERS), ("volumes", &VOLUMES)]
            {
                if let Some(items) = pod["spec"][list].as_array_mut() {
                    let had = !items.is_empty();
                    items.retain(|item| !names.iter().any(|name| item["name"] == *name));
                    if items.is_empty()
                        && had
                        && let Some(spec) = pod["spec"].as_object_mut()
                    {
                        spec.shift_remove(list);
                    }
                }
            }
        }
        _ => return Outcome::Unchanged("it has no pods".to_owned()),
    }
    tidy(target, &before);
    match *target == before {
        true => Outcome::Unchanged("nothing of the mesh is in it".to_owned()),
        false => Outcome::Changed,
    }
}

/// Annotations and labels that only mean something to a mesh.
fn clean(metadata: &mut Value) {
    let ours = |key: &String| {
        let (prefix, _) = key.split_once('/').unwrap_or(("", key));
        let injected = ["linkerd.io/control-plane-ns", "linkerd.io/workload-ns"].contains(&key.as_str());
        (prefix == "linkerd.io" && key != "linkerd.io/extension")
            || prefix == "config.linkerd.io"
            || prefix == "config.alpha.linkerd.io"
            || prefix == "config.beta.linkerd.io"
            || injected
    };
    for list in ["annotations", "labels"] {
        if let Some(map) = metadata.get_mut(list).and_then(Value::as_object_mut) {
            map.retain(|key, _| !ours(key));
        }
    }
}

/// Maps that are empty now and were not before are taken out.
fn tidy(target: &mut Value, before: &Value) {
    if let (Value::Object(map), Value::Object(old)) = (target, before) {
        for (key, inner) in map.iter_mut() {
            if let Some(old) = old.get(key) {
                tidy(inner, old);
            }
        }
        let emptied = |key: &String, inner: &Value| {
            matches!(inner, Value::Object(m) if m.is_empty())
                && matches!(key.as_str(), "annotations" | "labels" | "metadata")
                && old.get(key).is_none_or(|old| old.as_object().is_some_and(|m| !m.is_empty()))
        };
        map.retain(|key, inner| !(emptied(key, inner) || (inner.is_null() && !old.contains_key(key))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Annotations {
        [(INJECT.to_owned(), "enabled".to_owned())].into()
    }

    fn about() -> About<'static> {
        About { namespace: "shop", owner: None, roots: "PEM", roots_sha256: "abc", by: "cli" }
    }

    fn config() -> ControllerConfig {
        ControllerConfig::new([127, 0, 0, 1].into(), vec![])
    }

    fn workload(kind: &str, pod: Value) -> Value {
        match kind {
            "Pod" => json!({"kind": kind, "metadata": {"name": "a"}, "spec": pod["spec"]}),
            "CronJob" => json!({"kind": kind, "metadata": {"name": "a"},
                "spec": {"jobTemplate": {"spec": {"template": pod}}}}),
            _ => json!({"kind": kind, "metadata": {"name": "a"}, "spec": {"template": pod}}),
        }
    }

    #[test]
    fn what_is_injected_can_be_taken_out_again() {
        let template = json!({"spec": {"containers": [{"name": "app"}]}});
        for kind in ["Pod", "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "ReplicaSet"] {
            let original = workload(kind, template.clone());
            let mut by_annotation = original.clone();
            assert_eq!(annotate(&mut by_annotation, &wanted()), Outcome::Changed, "{kind}");
            assert!(by_annotation.to_string().contains("linkerd.io/inject"), "{kind}");
            let again = annotate(&mut by_annotation, &wanted());
            assert!(matches!(again, Outcome::Unchanged(_)), "{kind}");
            assert_eq!(uninject(&mut by_annotation), Outcome::Changed, "{kind}");
            assert_eq!(by_annotation, original, "{kind}");

            let mut by_hand = original.clone();
            let (outcome, warnings) = inject_pods(&mut by_hand, &Annotations::new(), &config(), &about());
            assert_eq!((outcome, warnings), (Outcome::Changed, vec![]), "{kind}");
            assert!(by_hand.to_string().contains("linkerd-proxy"), "{kind}");
            let twice = inject_pods(&mut by_hand, &Annotations::new(), &config(), &about()).0;
            assert!(matches!(twice, Outcome::Refused(_)), "{kind}");
            assert_eq!(uninject(&mut by_hand), Outcome::Changed, "{kind}");
            assert_eq!(by_hand, original, "{kind}");
        }
    }

    #[test]
    fn a_workload_is_named_in_its_pods() {
        let mut deployment = workload("Deployment", json!({"spec": {"containers": []}}));
        inject_pods(&mut deployment, &Annotations::new(), &config(), &about());
        let metadata = &deployment["spec"]["template"]["metadata"];
        assert_eq!(metadata["labels"]["linkerd.io/proxy-deployment"], "a");
        assert!(metadata["annotations"]["linkerd.io/created-by"].as_str().unwrap().starts_with("weft/cli"));
    }

    #[test]
    fn what_cannot_or_must_not_be_injected_stays() {
        let mut host = workload("Deployment", json!({"spec": {"hostNetwork": true, "containers": []}}));
        let before = host.clone();
        assert!(matches!(annotate(&mut host, &wanted()), Outcome::Refused(why) if why.contains("network")));
        assert_eq!(host, before);
        let mut out =
            workload("Deployment", json!({"metadata": {"annotations": {INJECT: "disabled"}}, "spec": {}}));
        assert!(matches!(annotate(&mut out, &wanted()), Outcome::Unchanged(why) if why.contains("disabled")));
        let mut service = json!({"kind": "Service", "metadata": {"name": "a"}});
        assert!(matches!(annotate(&mut service, &wanted()), Outcome::Unchanged(_)));
        let mut namespace = json!({"kind": "Namespace", "metadata": {"name": "a"}});
        assert_eq!(annotate(&mut namespace, &wanted()), Outcome::Changed);
        assert_eq!(namespace["metadata"]["annotations"][INJECT], "enabled");
    }

    #[test]
    fn udp_is_noticed() {
        let pod = json!({"spec": {"containers": [{"ports": [
            {"containerPort": 53, "protocol": "UDP"}, {"containerPort": 80}]}]}});
        assert_eq!(udp_ports(&workload("Deployment", pod)), [53]);
        assert_eq!(udp_ports(&json!({"kind": "Service"})), Vec::<u64>::new());
    }
}
