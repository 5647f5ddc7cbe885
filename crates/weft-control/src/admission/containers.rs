//! The containers that injection adds.

use super::{
    environment::{IDENTITY_DIR, ROOTS_DIR, environment, token_dir},
    inject::{IDENTITY_VOLUME, ROOTS_VOLUME, TOKEN_VOLUME, podinfo_mount},
    settings::Settings,
};
use crate::config::Image;
use serde_json::{Map, Value, json};

/// How long the pod's containers wait for a proxy that is no native sidecar.
const AWAIT: &str = "2m";
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// Whether the proxy is an init container that stays, as Kubernetes has them since 1.29.
pub(super) fn native(settings: &Settings<'_>) -> bool {
    let mut native = settings.config.injection.native_sidecar;
    // Oldest name first; the newest decides.
    for name in [
        "config.alpha.linkerd.io/proxy-enable-native-sidecar",
        "config.beta.linkerd.io/proxy-enable-native-sidecar",
        "proxy-enable-native-sidecar",
    ] {
        native = settings.flag(name, native);
    }
    native
}

fn image(settings: &Settings<'_>, image: &Image, annotations: [&str; 3]) -> (String, String) {
    let [name, version, policy] = annotations;
    let full = format!("{}:{}", settings.text(name, &image.name), settings.text(version, &image.version));
    (full, settings.one_of(policy, &PULL_POLICIES, &image.pull_policy))
}

/// Sets up the redirect and ends; where a CNI plugin does that, it proves that it was done. The proof takes no capability,
/// and a file that has some does not start without them: it is part of the proxy's image.
pub(super) fn init(settings: &Settings<'_>) -> Value {
    let inject = &settings.config.injection;
    let (name, args, security, source, annotation) = match inject.cni {
        true => (
            "linkerd-network-validator",
            validator_args(settings),
            restricted(inject.init_uid.max(1), None),
            &inject.proxy_image,
            "proxy-image",
        ),
        false => {
            ("linkerd-init", init_args(settings), init_security(settings), &inject.init_image, "init-image")
        }
    };
    let (image, policy) = image(settings, source, [annotation, "proxy-version", "image-pull-policy"]);
    json!({
        "name": name,
        "image": image,
        "imagePullPolicy": policy,
        "args": args,
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

pub(super) fn init_args(settings: &Settings<'_>) -> Vec<String> {
    let inject = &settings.config.injection;
    let mut args = vec!["proxy-init".to_owned()];
    let mut flag = |name: &str, value: String| {
        if !value.is_empty() {
            args.extend([format!("--{name}"), value]);
        }
    };
    let (control, admin) =
        (settings.port("control-port", inject.control_port), settings.port("admin-port", inject.admin_port));
    let skipped = settings.port_numbers("skip-inbound-ports", &inject.skip_inbound_ports);
    let own = format!("{control},{admin}");
    flag("incoming-proxy-port", settings.port("inbound-port", inject.inbound_port).to_string());
    flag("outgoing-proxy-port", settings.port("outbound-port", inject.outbound_port).to_string());
    flag("proxy-uid", uid(settings).to_string());
    flag("proxy-gid", gid(settings).map(|gid| gid.to_string()).unwrap_or_default());
    flag("inbound-ports-to-ignore", if skipped.is_empty() { own } else { format!("{own},{skipped}") });
    flag(
        "outbound-ports-to-ignore",
        settings.port_numbers("skip-outbound-ports", &inject.skip_outbound_ports),
    );
    flag("subnets-to-ignore", settings.text("skip-subnets", &inject.skip_subnets));
    flag("timeout-close-wait-secs", close_wait(settings).map(|s| s.to_string()).unwrap_or_default());
    args
}

fn close_wait(settings: &Settings<'_>) -> Option<u64> {
    let read = |text: &str| crate::install::values::duration(text).map(|d| d.as_secs()).or(text.parse().ok());
    let own = settings.checked("close-wait-timeout", "a duration such as 3600s", read);
    own.or(settings.config.injection.close_wait_seconds.map(u64::from)).filter(|seconds| *seconds > 0)
}

/// The two capabilities come with the file of the image, or with root. The kernel's timeout needs more.
fn init_security(settings: &Settings<'_>) -> Value {
    let inject = &settings.config.injection;
    let privileged = inject.init_privileged || close_wait(settings).is_some();
    let root = inject.init_as_root || privileged;
    json!({
        "allowPrivilegeEscalation": privileged,
        "capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]},
        "privileged": privileged,
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": !root,
        "runAsUser": if root { 0 } else { inject.init_uid },
        "runAsGroup": if root { 0 } else { inject.init_gid },
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

fn validator_args(settings: &Settings<'_>) -> Vec<String> {
    let inject = &settings.config.injection;
    let (connect, local) = match settings.config.ipv6 {
        true => ("[fd00::1]:20001", "[::1]"),
        false => ("1.1.1.1:20001", "0.0.0.0"),
    };
    let port = settings.port("outbound-port", inject.outbound_port);
    let listen = inject.validator_listen.clone().unwrap_or_else(|| format!("{local}:{port}"));
    let connect = inject.validator_connect.clone().unwrap_or_else(|| connect.to_owned());
    [
        "network-validator".to_owned(),
        "--listen-addr".to_owned(),
        listen,
        "--connect-addr".to_owned(),
        connect,
        "--timeout".to_owned(),
        inject.validator_timeout.clone(),
    ]
    .into()
}

/// Nothing that a container can do without.
fn restricted(uid: u32, gid: Option<u32>) -> Value {
    let mut context = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "runAsUser": uid,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    if let Some(gid) = gid {
        context["runAsGroup"] = json!(gid);
    }
    context
}

fn uid(settings: &Settings<'_>) -> u32 {
    let own =
        settings.checked("proxy-uid", "a user's number above 0", |t| t.parse().ok().filter(|uid| *uid > 0));
    own.unwrap_or(settings.config.injection.proxy_uid)
}

fn gid(settings: &Settings<'_>) -> Option<u32> {
    settings.parsed("proxy-gid", "a group's number").or(settings.config.injection.proxy_gid)
}

/// The proxy: a native sidecar, started before everything else of the pod and ended after it, or its first container.
pub(super) fn proxy(settings: &Settings<'_>, inbound_ports: &[u16], roots: &str) -> Value {
    let inject = &settings.config.injection;
    let (image, policy) =
        image(settings, &inject.proxy_image, ["proxy-image", "proxy-version", "image-pull-policy"]);
    let admin = settings.port("admin-port", inject.admin_port);
    let probe = |path: &str, more: Value| {
        let mut probe = json!({"httpGet": {"path": path, "port": admin}});
        if let (Some(probe), Value::Object(more)) = (probe.as_object_mut(), more) {
            probe.extend(more);
        }
        probe
    };
    let mut mounts = vec![
        json!({"name": IDENTITY_VOLUME, "mountPath": IDENTITY_DIR}),
        json!({"name": TOKEN_VOLUME, "mountPath": token_dir()}),
        json!({"name": ROOTS_VOLUME, "mountPath": ROOTS_DIR, "readOnly": true}),
    ];
    if inject.tracing.is_some() {
        mounts.push(podinfo_mount());
    }
    let mut container = json!({
        "name": "linkerd-proxy",
        "image": image,
        "imagePullPolicy": policy,
        "args": ["proxy"],
        "env": environment(settings, inbound_ports, roots),
        "ports": [
            {"name": "linkerd-proxy", "containerPort": settings.port("inbound-port", inject.inbound_port),
                "protocol": "TCP"},
            {"name": "linkerd-admin", "containerPort": admin, "protocol": "TCP"},
        ],
        "livenessProbe": probe("/live", json!({"initialDelaySeconds": inject.live_delay,
            "timeoutSeconds": inject.live_timeout})),
        "readinessProbe": probe("/ready", json!({"initialDelaySeconds": inject.ready_delay,
            "timeoutSeconds": inject.ready_timeout})),
        "securityContext": restricted(uid(settings), gid(settings)),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    });
    let awaited = settings.flag("proxy-await", inject.await_proxy);
    let mut lifecycle = Map::new();
    if native(settings) {
        container["restartPolicy"] = json!("Always");
        // The pod's other containers wait until the proxy forwards.
        if awaited {
            let mut startup = probe(
                "/ready",
                json!({"periodSeconds": inject.startup_period,
                "failureThreshold": inject.startup_failures}),
            );
            if inject.startup_delay > 0 {
                startup["initialDelaySeconds"] = json!(inject.startup_delay);
            }
            container["startupProbe"] = startup;
        }
    } else if awaited {
        // A kubelet starts a container when the hook of the one before has ended.
        let flags = ["--port".to_owned(), admin.to_string(), "--timeout".to_owned(), AWAIT.to_owned()];
        let command: Vec<String> = inject.await_command.iter().cloned().chain(flags).collect();
        lifecycle.insert("postStart".to_owned(), json!({"exec": {"command": command}}));
    }
    let wait = settings
        .parsed("config.alpha.linkerd.io/proxy-wait-before-exit-seconds", "a number of seconds")
        .unwrap_or(inject.wait_before_exit);
    if wait > 0 {
        lifecycle.insert("preStop".to_owned(), json!({"sleep": {"seconds": wait}}));
    }
    if !lifecycle.is_empty() {
        container["lifecycle"] = Value::Object(lifecycle);
    }
    if let Some(resources) = resources(settings) {
        container["resources"] = resources;
    }
    container
}

/// `requests` and `limits`, where something says so.
fn resources(settings: &Settings<'_>) -> Option<Value> {
    let mut resources = settings.config.injection.resources.clone().unwrap_or_else(|| json!({}));
    for kind in ["cpu", "memory", "ephemeral-storage"] {
        for (name, list) in [("request", "requests"), ("limit", "limits")] {
            let annotation = format!("proxy-{kind}-{name}");
            let read = |text: &str| is_quantity(text).then(|| text.to_owned());
            if let Some(amount) = settings.checked(&annotation, "an amount such as 100m or 250Mi", read) {
                resources[list][kind] = json!(amount);
            }
        }
    }
    (resources != json!({})).then_some(resources)
}

/// Kubernetes' amounts: a number, and a unit of tens or of twos.
fn is_quantity(text: &str) -> bool {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let units = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    number.parse::<f64>().is_ok() && units.contains(&unit)
}

/// tshark beside the application, for people who look at packets.
pub(super) fn debug(settings: &Settings<'_>) -> Value {
    let names = ["debug-image", "debug-image-version", "debug-image-pull-policy"];
    let (image, policy) = image(settings, &settings.config.injection.debug_image, names);
    json!({
        "name": "linkerd-debug",
        "image": image,
        "imagePullPolicy": policy,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]},
            "runAsNonRoot": false,
            "runAsUser": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}
