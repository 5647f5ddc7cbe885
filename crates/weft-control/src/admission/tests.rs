use super::{
    decide::{Annotations, Decision, decide},
    inject::{About, inject},
};
use crate::config::ControllerConfig;
use serde_json::{Value, json};

fn config() -> ControllerConfig {
    ControllerConfig::new("10.77.0.1".parse().unwrap(), vec!["10.77.0.0/16".parse().unwrap()])
}

fn notes(pairs: &[(&str, &str)]) -> Annotations {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn pod(annotations: Value) -> Value {
    json!({"metadata": {"name": "web-1", "annotations": annotations}, "spec": {
        "serviceAccountName": "web",
        "initContainers": [{"name": "migrate", "image": "x"}],
        "containers": [{"name": "web", "image": "web", "ports": [
            {"containerPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]}]}})
}

fn injected(annotations: Value, namespace: &[(&str, &str)]) -> Value {
    let pod = pod(annotations);
    let Decision::Inject(annotations) = decide(&pod, &notes(namespace)) else { panic!("not injected") };
    let about = About {
        namespace: "shop",
        owner: Some(("deployment".to_owned(), "web".to_owned())),
        roots: "PEM",
        roots_sha256: "abc",
    };
    inject(&pod, &config(), &annotations, &about)
}

fn env<'v>(pod: &'v Value, name: &str) -> &'v str {
    let env = pod["spec"]["initContainers"][1]["env"].as_array().unwrap();
    env.iter()
        .find(|e| e["name"] == format!("LINKERD2_PROXY_{name}"))
        .and_then(|e| e["value"].as_str())
        .unwrap_or("(absent)")
}

#[test]
fn who_is_injected() {
    let enabled = [("linkerd.io/inject", "enabled")];
    for (pod_says, namespace, expected) in [
        (json!({}), &enabled[..], true),
        (json!({"linkerd.io/inject": "enabled"}), &[], true),
        (json!({"linkerd.io/inject": "disabled"}), &enabled[..], false),
        (json!({"linkerd.io/inject": "yes"}), &enabled[..], false),
        (json!({}), &[], false),
        (json!({"linkerd.io/inject": "enabled"}), &[("linkerd.io/inject", "disabled")][..], true),
    ] {
        let decided = decide(&pod(pod_says.clone()), &notes(namespace));
        assert_eq!(matches!(decided, Decision::Inject(_)), expected, "{pod_says} {namespace:?}: {decided:?}");
    }
    let mut host = pod(json!({}));
    host["spec"]["hostNetwork"] = json!(true);
    assert!(matches!(decide(&host, &notes(&enabled)), Decision::Skip(why) if why.contains("network")));
    let mut istio = pod(json!({}));
    istio["spec"]["containers"][0]["name"] = json!("istio-proxy");
    assert!(matches!(decide(&istio, &notes(&enabled)), Decision::Skip(why) if why.contains("sidecar")));
}

#[test]
fn a_pod_is_injected_once() {
    let once = injected(json!({"linkerd.io/inject": "enabled"}), &[]);
    assert!(matches!(decide(&once, &Annotations::new()), Decision::Skip(_)));
}

#[test]
fn what_an_injected_pod_has() {
    let pod = injected(json!({"linkerd.io/inject": "enabled"}), &[]);
    let init: Vec<_> = pod["spec"]["initContainers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(init, ["linkerd-init", "linkerd-proxy", "migrate"]);
    assert_eq!(pod["metadata"]["labels"]["linkerd.io/control-plane-ns"], "linkerd");
    assert_eq!(pod["metadata"]["labels"]["linkerd.io/workload-ns"], "shop");
    assert_eq!(pod["metadata"]["labels"]["linkerd.io/proxy-deployment"], "web");
    let args = &pod["spec"]["initContainers"][0]["args"];
    let text = args.as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect::<Vec<_>>().join(" ");
    assert_eq!(
        text,
        "proxy-init --incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102 \
         --inbound-ports-to-ignore 4190,4191"
    );
    let proxy = &pod["spec"]["initContainers"][1];
    assert_eq!(proxy["restartPolicy"], "Always");
    assert_eq!(proxy["securityContext"]["runAsUser"], 2102);
    assert!(proxy["startupProbe"].is_object());
    assert_eq!(env(&pod, "INBOUND_PORTS"), "8080");
    assert_eq!(env(&pod, "POLICY_SVC_ADDR"), "linkerd-policy.linkerd.svc.cluster.local.:8090");
    assert_eq!(
        env(&pod, "POLICY_SVC_NAME"),
        "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local"
    );
    assert_eq!(
        env(&pod, "IDENTITY_LOCAL_NAME"),
        "$(_pod_sa).$(_pod_ns).serviceaccount.identity.linkerd.cluster.local"
    );
    assert_eq!(env(&pod, "INBOUND_DEFAULT_POLICY"), "all-unauthenticated");
    assert_eq!(env(&pod, "SHUTDOWN_ENDPOINT_ENABLED"), "false");
    let token = &pod["spec"]["volumes"][1]["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!(token["audience"], "identity.l5d.io");
    // `$(NAME)` in a value expands only variables that come before.
    let names: Vec<_> =
        proxy["env"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    let at = |name: &str| names.iter().position(|n| *n == name).unwrap();
    assert!(at("_pod_name") < at("LINKERD2_PROXY_POLICY_WORKLOAD"));
}

#[test]
fn annotations_take_effect_and_the_pod_beats_its_namespace() {
    let pod = injected(
        json!({"config.linkerd.io/proxy-log-level": "debug", "config.linkerd.io/skip-outbound-ports": "3306,4000-4010",
            "config.linkerd.io/skip-inbound-ports": "9000", "config.linkerd.io/proxy-await": "disabled",
            "config.linkerd.io/proxy-admin-shutdown": "enabled"}),
        &[
            ("linkerd.io/inject", "enabled"),
            ("config.linkerd.io/proxy-log-level", "trace"),
            ("config.linkerd.io/default-inbound-policy", "deny"),
            ("config.linkerd.io/opaque-ports", "8080"),
            ("config.linkerd.io/shutdown-grace-period", "10s"),
            ("config.linkerd.io/enable-gateway", "true"),
            ("unrelated", "x"),
        ],
    );
    assert_eq!(env(&pod, "LOG"), "debug");
    assert_eq!(env(&pod, "INBOUND_DEFAULT_POLICY"), "deny");
    assert_eq!(env(&pod, "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION"), "8080");
    assert_eq!(env(&pod, "SHUTDOWN_ENDPOINT_ENABLED"), "true");
    assert_eq!(env(&pod, "SHUTDOWN_GRACE_PERIOD"), "10s");
    let notes = &pod["metadata"]["annotations"];
    assert_eq!(notes["config.linkerd.io/default-inbound-policy"], "deny");
    assert_eq!(notes["config.linkerd.io/proxy-log-level"], "debug");
    assert!(notes.get("config.linkerd.io/enable-gateway").is_none());
    assert!(notes.get("unrelated").is_none());
    let args = pod["spec"]["initContainers"][0]["args"].to_string();
    assert!(args.contains("\"4190,4191,9000\""), "{args}");
    assert!(args.contains("\"--outbound-ports-to-ignore\",\"3306,4000-4010\""), "{args}");
    assert!(pod["spec"]["initContainers"][1].get("startupProbe").is_none());
}

#[test]
fn a_pod_without_anything_is_injected_too() {
    let bare = json!({"metadata": {"generateName": "x-"}, "spec": {"containers": [{"name": "x"}]}});
    let about = About { namespace: "shop", owner: None, roots: "PEM", roots_sha256: "abc" };
    let pod = inject(&bare, &config(), &Annotations::new(), &about);
    let patch = json_patch::diff(&bare, &pod);
    let mut patched = bare.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    assert_eq!(patched, pod);
}
