//! From objects, as the API writes them, to facts.

use super::super::{
    facts::{Node, Pod, ProxyContainer, Workload},
    names::PROXY,
};
use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;
use std::collections::BTreeSet;
use weft_kube::{kind::Decoded, kind::Kind, meta::Meta};
use weft_tls::bundle::TrustBundle;

pub(super) fn metas(objects: Vec<Value>) -> Vec<Meta> {
    objects.iter().filter_map(|object| Meta::deserialize(&object["metadata"]).ok()).collect()
}

/// Those that can be read, and what is wrong with the others.
pub(super) fn typed<K: Kind>(objects: Vec<Value>) -> (Vec<K>, Vec<String>) {
    let (mut all, mut unreadable) = (Vec::new(), Vec::new());
    for object in objects {
        match Decoded::<K>::deserialize(&object) {
            Ok(Decoded(Ok(read))) => all.push(read),
            Ok(Decoded(Err(flaw))) => {
                unreadable.push(format!("{} {}: {}", K::KIND, flaw.meta.key(), flaw.reason))
            }
            Err(error) => unreadable.push(format!("{}: {error}", K::KIND)),
        }
    }
    (all, unreadable)
}

pub(super) fn node(object: &Value) -> Node {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (spec, status) = (&object["spec"], &object["status"]);
    let mut networks: Vec<String> = spec["podCIDRs"].as_array().into_iter().flatten().map(text).collect();
    if networks.is_empty() {
        networks.extend(spec["podCIDR"].as_str().map(str::to_owned));
    }
    Node {
        name: text(&object["metadata"]["name"]),
        ready: condition(status, "Ready").is_some_and(|c| c["status"] == "True"),
        runtime: text(&status["nodeInfo"]["containerRuntimeVersion"]),
        networks,
    }
}

/// A Deployment, a ReplicaSet or a DaemonSet.
pub(super) fn workload(kind: &'static str, object: &Value) -> Workload {
    let status = &object["status"];
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let (wanted, ready) = match kind {
        "DaemonSet" => (count(&status["desiredNumberScheduled"]), count(&status["numberReady"])),
        _ => (object["spec"]["replicas"].as_u64().unwrap_or(1), count(&status["readyReplicas"])),
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    Workload { kind, name, wanted, ready }
}

fn condition<'o>(status: &'o Value, kind: &str) -> Option<&'o Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn statuses(status: &Value) -> impl Iterator<Item = &Value> {
    let of = |key: &str| status[key].as_array().into_iter().flatten();
    of("initContainerStatuses").chain(of("containerStatuses"))
}

pub(super) fn pod(object: &Value) -> Option<Pod> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let ready = condition(status, "Ready");
    let is_ready = ready.is_some_and(|condition| condition["status"] == "True");
    let since = ready.and_then(|c| c["lastTransitionTime"].as_str()?.parse::<Timestamp>().ok());
    let unschedulable = condition(status, "PodScheduled").filter(|c| c["reason"] == "Unschedulable");
    Some(Pod {
        object: weft_kube::core::pod::Pod::deserialize(object).ok()?,
        ready: is_ready,
        ready_since_unix_ms: since.and_then(|at| u64::try_from(at.as_millisecond()).ok()),
        waiting: if is_ready {
            None
        } else {
            waiting(status).or_else(|| ready.and_then(|c| Some(c["message"].as_str()?.to_owned())))
        },
        unschedulable: unschedulable.map(|c| c["message"].as_str().unwrap_or("unschedulable").to_owned()),
        proxy: proxy(spec, status),
    })
}

/// The first container that waits or ended, and why.
fn waiting(status: &Value) -> Option<String> {
    statuses(status).find_map(|container| {
        let (state, name) = (&container["state"], container["name"].as_str().unwrap_or_default());
        if state["waiting"].is_object() {
            let reason = state["waiting"]["reason"].as_str().unwrap_or("waiting");
            let message = state["waiting"]["message"].as_str().map(|m| format!(": {m}")).unwrap_or_default();
            return Some(format!("container {name}: {reason}{message}"));
        }
        let ended = state["terminated"]["exitCode"].as_i64().filter(|code| *code != 0)?;
        Some(format!("container {name} exited with {ended}"))
    })
}

fn proxy(spec: &Value, status: &Value) -> Option<ProxyContainer> {
    let of = |key: &str| spec[key].as_array().into_iter().flatten();
    let container = of("initContainers").chain(of("containers")).find(|c| c["name"] == PROXY)?;
    let own = statuses(status).find(|status| status["name"] == PROXY);
    let environment = container["env"].as_array().into_iter().flatten();
    let mut anchors = environment.filter(|env| env["name"] == "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS");
    let bundle = anchors.next().and_then(|env| TrustBundle::parse(env["value"].as_str()?).ok());
    Some(ProxyContainer {
        ready: own.is_some_and(|status| status["ready"] == true),
        image: container["image"].as_str().unwrap_or_default().to_owned(),
        anchors: bundle.map(|bundle| bundle.facts().map(|anchor| anchor.sha256).collect::<BTreeSet<_>>()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use weft_kube::policy::server::Server;

    #[test]
    fn a_pod_is_read_with_what_keeps_it() {
        let object = json!({"metadata": {"namespace": "a", "name": "b"},
            "spec": {"initContainers": [{"name": "linkerd-proxy", "image": "r/proxy:1", "env": [
                {"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": "no certificate"}]}], "containers": [{"name": "app"}]},
            "status": {"phase": "Pending", "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:00:05Z", "message": "not yet"},
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}],
                "initContainerStatuses": [{"name": "linkerd-proxy", "ready": true, "state": {"running": {}}}],
                "containerStatuses": [{"name": "app", "ready": false, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}});
        let pod = pod(&object).unwrap();
        assert!(!pod.ready && pod.ready_since_unix_ms == Some(5_000));
        assert_eq!(pod.waiting.as_deref(), Some("container app: CrashLoopBackOff"));
        assert_eq!(pod.unschedulable.as_deref(), Some("0/3 nodes"));
        let proxy = pod.proxy.unwrap();
        assert!(proxy.ready && proxy.anchors.is_none());
        assert_eq!(proxy.image, "r/proxy:1");
    }

    #[test]
    fn what_cannot_be_read_of_a_kind_is_kept_as_a_flaw() {
        let server = |spec: Value| json!({"metadata": {"namespace": "a", "name": "s"}, "spec": spec});
        let (read, flaws) = typed::<Server>(vec![server(json!({"port": 80})), server(json!({}))]);
        assert_eq!((read.len(), flaws.len()), (1, 1));
        assert!(flaws[0].starts_with("Server a/s: "), "{flaws:?}");
    }

    #[test]
    fn workloads_and_nodes() {
        let set =
            json!({"metadata": {"name": "x"}, "status": {"desiredNumberScheduled": 3, "numberReady": 2}});
        let set = workload("DaemonSet", &set);
        assert_eq!((set.wanted, set.ready), (3, 2));
        let deployment = workload("Deployment", &json!({"spec": {"replicas": 2}, "status": {}}));
        assert_eq!((deployment.wanted, deployment.ready), (2, 0));
        let of = node(&json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "10.0.0.0/24"},
            "status": {"nodeInfo": {"containerRuntimeVersion": "docker://1"}, "conditions": [{"type": "Ready", "status": "True"}]}}));
        assert_eq!(
            (of.ready, of.runtime.as_str(), of.networks),
            (true, "docker://1", vec!["10.0.0.0/24".to_owned()])
        );
    }
}
