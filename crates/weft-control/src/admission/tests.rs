use super::{
    decide::{Annotations, Decision, decide},
    inject::{About, Injected, inject},
    opaque,
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
    with_warnings(&config(), annotations, namespace).pod
}

fn with_warnings(config: &ControllerConfig, annotations: Value, namespace: &[(&str, &str)]) -> Injected {
    let pod = pod(annotations);
    let Decision::Inject(annotations) = decide(&pod, &notes(namespace)) else { panic!("not injected") };
    let about = About {
        namespace: "shop",
        owner: Some(("deployment".to_owned(), "web".to_owned())),
        roots: "PEM",
        roots_sha256: "abc",
        by: "proxy-injector",
    };
    inject(&pod, config, &annotations, &about)
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
    assert!(matches!(decide(&host, &notes(&enabled)), Decision::Refuse(why) if why.text.contains("network")));
    let mut istio = pod(json!({}));
    istio["spec"]["containers"][0]["name"] = json!("istio-proxy");
    assert!(
        matches!(decide(&istio, &notes(&enabled)), Decision::Refuse(why) if why.text.contains("sidecar"))
    );
}

#[test]
fn a_pod_is_injected_once() {
    let once = injected(json!({"linkerd.io/inject": "enabled"}), &[]);
    assert!(
        matches!(decide(&once, &Annotations::new()), Decision::Refuse(why) if why.text.contains("already"))
    );
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
    let about = About { namespace: "shop", owner: None, roots: "PEM", roots_sha256: "abc", by: "cli" };
    let pod = inject(&bare, &config(), &Annotations::new(), &about).pod;
    let patch = json_patch::diff(&bare, &pod);
    let mut patched = bare.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    assert_eq!(patched, pod);
}

#[test]
fn ingress_mode_is_one_of_the_modes() {
    for (own, namespace) in [
        (json!({"linkerd.io/inject": "ingress"}), &[][..]),
        (json!({}), &[("linkerd.io/inject", "ingress")][..]),
    ] {
        assert_eq!(env(&injected(own, namespace), "INGRESS_MODE"), "true");
    }
    assert_eq!(env(&injected(json!({"linkerd.io/inject": "enabled"}), &[]), "INGRESS_MODE"), "(absent)");
}

/// Each annotation of Linkerd's, and where its value must arrive.
#[test]
fn every_annotation_arrives() {
    let enabled = [("linkerd.io/inject", "enabled")];
    for (annotation, value, variable, expected) in [
        ("control-port", "5190", "CONTROL_LISTEN_ADDR", "0.0.0.0:5190"),
        ("admin-port", "5191", "ADMIN_LISTEN_ADDR", "0.0.0.0:5191"),
        ("inbound-port", "5143", "INBOUND_LISTEN_ADDR", "0.0.0.0:5143"),
        ("outbound-port", "5140", "OUTBOUND_LISTEN_ADDRS", "127.0.0.1:5140"),
        ("opaque-ports", "9000-9010", "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", "9000-9010"),
        ("proxy-require-identity-inbound-ports", "8080", "INBOUND_PORTS_REQUIRE_IDENTITY", "8080"),
        (
            "default-inbound-policy",
            "cluster-authenticated",
            "INBOUND_DEFAULT_POLICY",
            "cluster-authenticated",
        ),
        ("proxy-admin-shutdown", "enabled", "SHUTDOWN_ENDPOINT_ENABLED", "true"),
        ("proxy-log-level", "trace", "LOG", "trace"),
        ("proxy-log-format", "json", "LOG_FORMAT", "json"),
        ("access-log", "apache", "ACCESS_LOG", "apache"),
        ("proxy-outbound-connect-timeout", "2s", "OUTBOUND_CONNECT_TIMEOUT", "2s"),
        ("proxy-inbound-connect-timeout", "3s", "INBOUND_CONNECT_TIMEOUT", "3s"),
        ("proxy-outbound-discovery-cache-unused-timeout", "4s", "OUTBOUND_DISCOVERY_IDLE_TIMEOUT", "4s"),
        ("proxy-inbound-discovery-cache-unused-timeout", "5s", "INBOUND_DISCOVERY_IDLE_TIMEOUT", "5s"),
        ("proxy-disable-outbound-protocol-detect-timeout", "true", "OUTBOUND_DETECT_TIMEOUT", "365d"),
        ("proxy-disable-inbound-protocol-detect-timeout", "true", "INBOUND_DETECT_TIMEOUT", "365d"),
        ("shutdown-grace-period", "30s", "SHUTDOWN_GRACE_PERIOD", "30s"),
        ("proxy-cpu-limit", "1500m", "CORES", "2"),
        ("proxy-cpu-ratio-limit", "0.5", "CORES_MAX_RATIO", "0.5"),
        ("enable-external-profiles", "true", "DESTINATION_PROFILE_SUFFIXES", "."),
        ("enable-gateway", "true", "INBOUND_GATEWAY_SUFFIXES", "svc.cluster.local."),
        ("proxy-metrics-hostname-labels", "true", "OUTBOUND_METRICS_HOSTNAME_LABELS", "true"),
        ("proxy-additional-env", r#"[{"name": "LINKERD2_PROXY_LOG", "value": "x"}]"#, "LOG", "x"),
    ] {
        let name = format!("config.linkerd.io/{annotation}");
        let injected = with_warnings(&config(), json!({(name): value}), &enabled);
        assert_eq!(env(&injected.pod, variable), expected, "{annotation}");
        assert_eq!(injected.warnings, Vec::<String>::new(), "{annotation}");
    }
    let at = |annotations: Value, path: &str| -> Value {
        let pod = injected(annotations, &enabled);
        pod.pointer(path).unwrap_or_else(|| panic!("{path}: {pod:#}")).clone()
    };
    let proxy = "/spec/initContainers/1";
    for (annotation, value, path, expected) in [
        ("proxy-image", "own/proxy", "image", json!(format!("own/proxy:{}", env!("CARGO_PKG_VERSION")))),
        ("proxy-version", "v9", "image", json!("weft.dev/weft:v9")),
        ("image-pull-policy", "Always", "imagePullPolicy", json!("Always")),
        ("proxy-uid", "77", "securityContext/runAsUser", json!(77)),
        ("proxy-gid", "78", "securityContext/runAsGroup", json!(78)),
        ("proxy-cpu-request", "10m", "resources/requests/cpu", json!("10m")),
        ("proxy-memory-limit", "64Mi", "resources/limits/memory", json!("64Mi")),
        ("proxy-ephemeral-storage-limit", "1Gi", "resources/limits/ephemeral-storage", json!("1Gi")),
        ("admin-port", "5191", "readinessProbe/httpGet/port", json!(5191)),
    ] {
        let name = format!("config.linkerd.io/{annotation}");
        assert_eq!(at(json!({(name): value}), &format!("{proxy}/{path}")), expected, "{annotation}");
    }
    let wait = json!({"config.alpha.linkerd.io/proxy-wait-before-exit-seconds": "20"});
    assert_eq!(at(wait, &format!("{proxy}/lifecycle/preStop/sleep/seconds")), json!(20));
    let init = json!({"config.linkerd.io/skip-subnets": "10.0.0.0/8", "config.linkerd.io/proxy-gid": "9",
        "config.linkerd.io/close-wait-timeout": "3600s"});
    let args = at(init.clone(), "/spec/initContainers/0/args").to_string();
    for expected in [
        r#""--subnets-to-ignore","10.0.0.0/8""#,
        r#""--proxy-gid","9""#,
        r#""--timeout-close-wait-secs","3600""#,
    ] {
        assert!(args.contains(expected), "{args}");
    }
    assert_eq!(at(init, "/spec/initContainers/0/securityContext/privileged"), json!(true));
    let debug = json!({"config.linkerd.io/enable-debug-sidecar": "true", "config.linkerd.io/debug-image": "own/debug",
        "config.linkerd.io/debug-image-version": "7", "config.linkerd.io/debug-image-pull-policy": "Never"});
    assert_eq!(at(debug.clone(), "/spec/containers/1/image"), json!("own/debug:7"));
    assert_eq!(at(debug, "/spec/containers/1/imagePullPolicy"), json!("Never"));
}

#[test]
fn an_annotation_that_cannot_be_read_is_told_and_ignored() {
    let injected = with_warnings(
        &config(),
        json!({"config.linkerd.io/proxy-uid": "root", "config.linkerd.io/proxy-cpu-limit": "much",
            "config.linkerd.io/default-inbound-policy": "open", "config.linkerd.io/opaque-ports": "a b/c",
            "config.linkerd.io/proxy-inbound-connect-timeout": "soon", "config.linkerd.io/proxy-additional-env": "{}"}),
        &[("linkerd.io/inject", "enabled")],
    );
    for name in
        ["proxy-uid", "proxy-cpu-limit", "default-inbound-policy", "connect-timeout", "proxy-additional-env"]
    {
        assert!(injected.warnings.iter().any(|w| w.contains(name)), "{name}: {:?}", injected.warnings);
    }
    assert_eq!(injected.pod["spec"]["initContainers"][1]["securityContext"]["runAsUser"], 2102);
    assert_eq!(env(&injected.pod, "INBOUND_DEFAULT_POLICY"), "all-unauthenticated");
    let notes = &injected.pod["metadata"]["annotations"];
    assert_eq!(notes["config.linkerd.io/default-inbound-policy"], "all-unauthenticated");
}

#[test]
fn variables_of_namespace_and_pod_are_joined() {
    let name = "config.linkerd.io/proxy-additional-env";
    let pod = injected(
        json!({(name): r#"[{"name": "B", "value": "pod"}]"#}),
        &[
            ("linkerd.io/inject", "enabled"),
            (name, r#"[{"name": "A", "value": "1"}, {"name": "B", "value": "ns"}]"#),
        ],
    );
    let all = pod["spec"]["initContainers"][1]["env"].as_array().unwrap();
    let of = |name: &str| -> Vec<&Value> {
        all.iter().filter(|e| e["name"] == name).map(|e| &e["value"]).collect()
    };
    assert_eq!((of("A"), of("B")), (vec![&json!("1")], vec![&json!("pod")]));
}

#[test]
fn without_native_sidecars_the_pod_waits_for_its_first_container() {
    for name in [
        "config.linkerd.io/proxy-enable-native-sidecar",
        "config.beta.linkerd.io/proxy-enable-native-sidecar",
    ] {
        let pod = injected(json!({(name): "false"}), &[("linkerd.io/inject", "enabled")]);
        let names = |list: &str| -> Vec<&str> {
            pod["spec"][list].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect()
        };
        assert_eq!(names("initContainers"), ["migrate", "linkerd-init"]);
        assert_eq!(names("containers"), ["linkerd-proxy", "web"]);
        let proxy = &pod["spec"]["containers"][0];
        assert_eq!(proxy["lifecycle"]["postStart"]["exec"]["command"][1], "await");
        assert!(proxy.get("restartPolicy").is_none() && proxy.get("startupProbe").is_none());
    }
}

#[test]
fn with_a_cni_plugin_the_redirect_is_only_proved() {
    let mut config = config();
    config.injection.cni = true;
    let pod = with_warnings(&config, json!({}), &[("linkerd.io/inject", "enabled")]).pod;
    let init = &pod["spec"]["initContainers"][0];
    assert_eq!(init["name"], "linkerd-network-validator");
    assert_eq!(init["args"][0], "network-validator");
    assert_eq!(init["securityContext"]["runAsNonRoot"], true);
    assert!(init["securityContext"]["capabilities"].get("add").is_none());
}

#[test]
fn opaque_ports_are_noted_on_services_and_pods() {
    let config = config();
    let none = Annotations::new();
    let service = json!({"metadata": {}, "spec": {"ports": [{"port": 3306}, {"port": 80}]}});
    assert_eq!(opaque::for_service(&service, &none, &config).as_deref(), Some("3306"));
    let of_namespace = notes(&[("config.linkerd.io/opaque-ports", "80")]);
    assert_eq!(opaque::for_service(&service, &of_namespace, &config).as_deref(), Some("80"));
    let said =
        json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": ""}}, "spec": service["spec"]});
    assert_eq!(opaque::for_service(&said, &of_namespace, &config), None);
    assert_eq!(opaque::for_service(&json!({"spec": {"ports": [{"port": 80}]}}), &none, &config), None);
    let mut database = pod(json!({}));
    database["spec"]["containers"][0]["ports"] = json!([{"containerPort": 5432}, {"containerPort": 80}]);
    let ports = opaque::for_pod(&database, &none, &config).unwrap();
    let annotated = opaque::annotated(&database, &ports);
    assert_eq!(annotated["metadata"]["annotations"]["config.linkerd.io/opaque-ports"], "5432");
}
