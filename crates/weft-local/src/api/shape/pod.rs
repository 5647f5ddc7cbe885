//! Pods and pod templates: defaults, the ServiceAccount's token volume, quality of service, validation.

use serde_json::{Map, Value, json};

use super::{names, quantity};
use crate::api::error::FieldError;
use crate::api::meta::{self, default};

/// Where containers find their ServiceAccount's token.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Defaults of a pod specification, in a pod or a template.
pub(super) fn default_spec(spec: &mut Map<String, Value>) {
    default(spec, "restartPolicy", "Always");
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "securityContext", json!({}));
    default(spec, "schedulerName", "default-scheduler");
    if let Some(name) = spec.get("serviceAccountName").cloned() {
        spec.insert("serviceAccount".into(), name);
    }
    let host_network = spec.get("hostNetwork") == Some(&json!(true));
    for list in CONTAINER_LISTS {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                default_container(container, host_network);
            }
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(volume) = volume.as_object_mut() {
            default_volume(volume);
        }
    }
}

/// The times of a pod's conditions and of its containers' states are written even where they are unknown.
pub(super) fn default_status(pod: &mut Value) {
    let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) else { return };
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(condition) = condition.as_object_mut() {
            for time in ["lastProbeTime", "lastTransitionTime"] {
                condition.entry(time).or_insert(Value::Null);
            }
        }
    }
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for container in status.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            for state in ["state", "lastState"] {
                let state = container.entry(state).or_insert_with(|| json!({}));
                for (name, times) in
                    [("running", &["startedAt"][..]), ("terminated", &["startedAt", "finishedAt"])]
                {
                    let Some(found) = state.get_mut(name).and_then(Value::as_object_mut) else { continue };
                    for time in times {
                        found.entry(*time).or_insert(Value::Null);
                    }
                }
            }
        }
    }
}

fn default_container(container: &mut Map<String, Value>, host_network: bool) {
    default(container, "resources", json!({}));
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    let image = container.get("image").and_then(Value::as_str).unwrap_or("");
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    default(container, "imagePullPolicy", policy);
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            default(port, "protocol", "TCP");
            if host_network && let Some(number) = port.get("containerPort").cloned() {
                default(port, "hostPort", number);
            }
        }
    }
    for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        default_source(variable.pointer_mut("/valueFrom"));
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            for (key, value) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                default(probe, key, value);
            }
            default_http_get(probe);
            if let Some(grpc) = probe.get_mut("grpc").and_then(Value::as_object_mut) {
                default(grpc, "service", "");
            }
        }
    }
    for hook in ["postStart", "preStop"] {
        let hook = container.get_mut("lifecycle").and_then(|lifecycle| lifecycle.get_mut(hook));
        if let Some(hook) = hook.and_then(Value::as_object_mut) {
            default_http_get(hook);
        }
    }
    for list in ["limits", "requests"] {
        let quantities = container["resources"].get_mut(list).and_then(Value::as_object_mut);
        for quantity in quantities.into_iter().flatten().map(|(_, quantity)| quantity) {
            if let Some(canonical) = quantity.as_str().and_then(quantity::canonical) {
                *quantity = json!(canonical);
            }
        }
    }
    // What a container may use at most is what it asks for, unless it says otherwise.
    if let Some(limits) = container["resources"].get("limits").and_then(Value::as_object).cloned() {
        let requests = meta::object_mut(&mut container["resources"], "requests");
        for (resource, limit) in limits {
            default(requests, &resource, limit);
        }
    }
}

fn is_latest(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or(image);
    match name.split_once(':') {
        _ if name.contains('@') => false,
        Some((_, tag)) => tag == "latest",
        None => true,
    }
}

fn default_http_get(action: &mut Map<String, Value>) {
    if let Some(get) = action.get_mut("httpGet").and_then(Value::as_object_mut) {
        default(get, "path", "/");
        default(get, "scheme", "HTTP");
    }
}

/// `valueFrom` of a variable, or an item of a downward API volume.
fn default_source(source: Option<&mut Value>) {
    let Some(source) = source else { return };
    if let Some(field) = source.get_mut("fieldRef").and_then(Value::as_object_mut) {
        default(field, "apiVersion", "v1");
    }
    if let Some(field) = source.get_mut("resourceFieldRef").and_then(Value::as_object_mut) {
        default(field, "divisor", "0");
    }
}

fn default_volume(volume: &mut Map<String, Value>) {
    const SOURCES: [&str; 10] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "hostPath",
        "image",
        "nfs",
        "persistentVolumeClaim",
        "projected",
    ];
    if !volume.contains_key("secret") && !SOURCES.iter().any(|source| volume.contains_key(*source)) {
        volume.insert("emptyDir".into(), json!({}));
    }
    for source in ["configMap", "secret", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
            default(source, "defaultMode", 420);
        }
    }
    if let Some(path) = volume.get_mut("hostPath").and_then(Value::as_object_mut) {
        default(path, "type", "");
    }
    let downward = |source: &mut Value| {
        for item in source.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
            default_source(Some(item));
        }
    };
    if let Some(source) = volume.get_mut("downwardAPI") {
        downward(source);
    }
    let sources =
        volume.get_mut("projected").and_then(|p| p.get_mut("sources")).and_then(Value::as_array_mut);
    for source in sources.into_iter().flatten() {
        if let Some(token) = source.get_mut("serviceAccountToken").and_then(Value::as_object_mut) {
            default(token, "expirationSeconds", 3600);
        }
        if let Some(source) = source.get_mut("downwardAPI") {
            downward(source);
        }
    }
}

/// What a real server's admission adds to a new pod: ServiceAccount, tolerations, priority, the token volume.
pub(crate) fn admit(pod: &mut Value, account: Option<&Value>) {
    let spec = meta::object_mut(pod, "spec");
    default(spec, "serviceAccountName", "default");
    let name = spec["serviceAccountName"].clone();
    spec.insert("serviceAccount".into(), name);
    default(spec, "priority", 0);
    default(spec, "enableServiceLinks", true);
    default(spec, "preemptionPolicy", "PreemptLowerPriority");
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if let Some(list) = tolerations.as_array_mut() {
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            if !list.iter().any(|toleration| toleration["key"] == key) {
                list.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
                }));
            }
        }
    }
    let wanted = spec.get("automountServiceAccountToken").and_then(Value::as_bool).or_else(|| {
        account.and_then(|account| account.get("automountServiceAccountToken")).and_then(Value::as_bool)
    });
    if wanted.unwrap_or(true) {
        mount_token(spec);
    }
}

fn mount_token(spec: &mut Map<String, Value>) {
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    let Some(volumes) = volumes.as_array_mut() else { return };
    let existing = volumes.iter().map(meta_name).find(|name| name.starts_with("kube-api-access-"));
    let volume = existing.unwrap_or_else(|| format!("kube-api-access-{}", meta::random_suffix(5)));
    let mut used = false;
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if mounts.iter().any(|mount| mount["mountPath"] == TOKEN_PATH) {
                continue;
            }
            mounts.push(json!({ "name": volume, "readOnly": true, "mountPath": TOKEN_PATH }));
            used = true;
        }
    }
    let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) else { return };
    if used && !volumes.iter().any(|existing| meta_name(existing) == volume) {
        volumes.push(json!({
            "name": volume,
            "projected": {
                "sources": [
                    { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                    { "configMap": {
                        "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }],
                    } },
                    { "downwardAPI": { "items": [{
                        "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" },
                    }] } },
                ],
                "defaultMode": 420,
            },
        }));
    } else if volumes.is_empty() {
        spec.remove("volumes");
    }
}

fn meta_name(value: &Value) -> String {
    value["name"].as_str().unwrap_or("").to_owned()
}

/// `status.qosClass` of a new pod.
pub(crate) fn quality_of_service(pod: &Value) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    for list in ["/spec/initContainers", "/spec/containers"] {
        for container in meta::items(pod, list) {
            let limits = &container["resources"]["limits"];
            let requests = &container["resources"]["requests"];
            for resource in ["cpu", "memory"] {
                any |= !limits[resource].is_null() || !requests[resource].is_null();
                guaranteed &= !limits[resource].is_null() && limits[resource] == requests[resource];
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Validates a pod specification; `at` is its path, `spec` or `spec.template.spec`.
pub(super) fn validate_spec(at: &str, spec: &Value, restart_policies: &[&str], errors: &mut Vec<FieldError>) {
    let mut names = Vec::new();
    let volumes: Vec<String> = meta::items(spec, "/volumes").iter().map(meta_name).collect();
    for (i, volume) in volumes.iter().enumerate() {
        let field = format!("{at}.volumes[{i}].name");
        if volume.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if let Some(why) = names::label(volume) {
            errors.push(FieldError::invalid(field, volume.as_str(), why));
        } else if volumes[..i].contains(volume) {
            errors.push(FieldError::duplicate(field, volume.as_str()));
        }
    }
    let containers = meta::items(spec, "/containers");
    if containers.is_empty() {
        errors.push(FieldError::required(format!("{at}.containers"), ""));
    }
    for list in ["containers", "initContainers"] {
        for (i, container) in meta::items(spec, &format!("/{list}")).iter().enumerate() {
            let field = format!("{at}.{list}[{i}]");
            validate_container(&field, container, &volumes, list == "initContainers", errors);
            let name = meta_name(container);
            if !name.is_empty() && names.contains(&name) {
                errors.push(FieldError::duplicate(format!("{field}.name"), name.as_str()));
            }
            names.push(name);
        }
    }
    validate_ids(&format!("{at}.securityContext"), &spec["securityContext"], errors);
    let policy = meta::text(spec, "/restartPolicy");
    if policy.is_empty() {
        errors.push(FieldError::required(format!("{at}.restartPolicy"), ""));
    } else if !restart_policies.contains(&policy) {
        errors.push(FieldError::unsupported(format!("{at}.restartPolicy"), policy, restart_policies));
    }
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    if !policies.contains(&meta::text(spec, "/dnsPolicy")) {
        let policy = meta::text(spec, "/dnsPolicy");
        errors.push(FieldError::unsupported(format!("{at}.dnsPolicy"), policy, &policies));
    }
    for field in ["hostname", "subdomain"] {
        let text = meta::text(spec, &format!("/{field}"));
        if !text.is_empty()
            && let Some(why) = names::label(text)
        {
            errors.push(FieldError::invalid(format!("{at}.{field}"), text, why));
        }
    }
    if let Some(seconds) = meta::int(spec, "/terminationGracePeriodSeconds")
        && seconds < 0
    {
        let field = format!("{at}.terminationGracePeriodSeconds");
        errors.push(FieldError::invalid(field, seconds, "must be greater than or equal to 0"));
    }
}

fn validate_container(
    at: &str,
    container: &Value,
    volumes: &[String],
    init: bool,
    errors: &mut Vec<FieldError>,
) {
    let name = meta_name(container);
    if name.is_empty() {
        errors.push(FieldError::required(format!("{at}.name"), ""));
    } else if let Some(why) = names::label(&name) {
        errors.push(FieldError::invalid(format!("{at}.name"), name.as_str(), why));
    }
    if meta::text(container, "/image").is_empty() {
        errors.push(FieldError::required(format!("{at}.image"), ""));
    }
    if init
        && let Some(policy) = container["restartPolicy"].as_str()
        && policy != "Always"
    {
        errors.push(FieldError::unsupported(format!("{at}.restartPolicy"), policy, &["Always"]));
    }
    let mut port_names: Vec<&str> = Vec::new();
    for (i, port) in meta::items(container, "/ports").iter().enumerate() {
        let field = format!("{at}.ports[{i}]");
        let name = port["name"].as_str().unwrap_or("");
        if !name.is_empty() {
            if let Some(why) = port_name(name) {
                errors.push(FieldError::invalid(format!("{field}.name"), name, why));
            } else if port_names.contains(&name) {
                errors.push(FieldError::duplicate(format!("{field}.name"), name));
            }
            port_names.push(name);
        }
        match port["containerPort"].as_i64() {
            None | Some(0) => errors.push(FieldError::required(format!("{field}.containerPort"), "")),
            Some(number) => port_number(&format!("{field}.containerPort"), number, errors),
        }
        let protocols = ["SCTP", "TCP", "UDP"];
        let protocol = meta::text(port, "/protocol");
        if !protocols.contains(&protocol) {
            errors.push(FieldError::unsupported(format!("{field}.protocol"), protocol, &protocols));
        }
    }
    for (i, variable) in meta::items(container, "/env").iter().enumerate() {
        let field = format!("{at}.env[{i}]");
        let name = meta_name(variable);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{field}.name"), ""));
        } else if !name.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'=') {
            let why = "a valid environment variable name must consist only of printable ASCII characters other than '='";
            errors.push(FieldError::invalid(format!("{field}.name"), name.as_str(), why));
        }
        let literal = !meta::text(variable, "/value").is_empty();
        if literal && variable["valueFrom"].is_object() {
            let why = "may not be specified when `value` is not empty";
            errors.push(FieldError::invalid(format!("{field}.valueFrom"), "", why));
        }
    }
    let mut paths: Vec<&str> = Vec::new();
    for (i, mount) in meta::items(container, "/volumeMounts").iter().enumerate() {
        let field = format!("{at}.volumeMounts[{i}]");
        let name = meta_name(mount);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{field}.name"), ""));
        } else if !volumes.contains(&name) {
            errors.push(FieldError::not_found(format!("{field}.name"), name.as_str()));
        }
        let path = meta::text(mount, "/mountPath");
        if path.is_empty() {
            errors.push(FieldError::required(format!("{field}.mountPath"), ""));
        } else if paths.contains(&path) {
            errors.push(FieldError::invalid(format!("{field}.mountPath"), path, "must be unique"));
        }
        paths.push(path);
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(value) = container.get(probe) else { continue };
        let handlers = ["exec", "httpGet", "tcpSocket", "grpc"];
        match handlers.iter().filter(|handler| value.get(**handler).is_some()).count() {
            0 => errors.push(FieldError::required(format!("{at}.{probe}"), "must specify a handler type")),
            1 => {}
            _ => errors.push(FieldError::forbidden(
                format!("{at}.{probe}"),
                "may not specify more than 1 handler type",
            )),
        }
        let numbers = [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ];
        for number in numbers {
            if let Some(given) = value[number].as_i64().filter(|given| *given < 0) {
                let why = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(format!("{at}.{probe}.{number}"), given, why));
            }
        }
    }
    validate_ids(&format!("{at}.securityContext"), &container["securityContext"], errors);
}

/// User and group numbers. Linux has more, but -1 among them means "no change" to it, which would be root.
fn validate_ids(at: &str, context: &Value, errors: &mut Vec<FieldError>) {
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        if let Some(id) = context[field].as_i64()
            && i32::try_from(id).map_or(true, |id| id < 0)
        {
            let why = "must be between 0 and 2147483647, inclusive";
            errors.push(FieldError::invalid(format!("{at}.{field}"), id, why));
        }
    }
}

/// A port's number.
pub(super) fn port_number(field: &str, number: i64, errors: &mut Vec<FieldError>) {
    if !(1..=65_535).contains(&number) {
        errors.push(FieldError::invalid(field, number, "must be between 1 and 65535, inclusive"));
    }
}

/// Why the text cannot name a port (IANA_SVC_NAME).
pub(super) fn port_name(name: &str) -> Option<&'static str> {
    if name.len() > 15 {
        return Some("must be no more than 15 characters");
    }
    let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if !name.bytes().all(ok) || name.is_empty() {
        return Some("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)");
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        return Some("must contain at least one letter (a-z)");
    }
    if name.contains("--") {
        return Some("must not contain consecutive hyphens");
    }
    (name.starts_with('-') || name.ends_with('-')).then_some("must not begin or end with a hyphen")
}

/// What may change in a pod that exists: images, and little else.
pub(super) fn validate_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    for list in ["containers", "initContainers"] {
        let pointer = format!("/spec/{list}");
        if meta::items(new, &pointer).len() != meta::items(old, &pointer).len() {
            let why = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(format!("spec.{list}"), why));
            return;
        }
    }
    let without_changeable = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            for field in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "nodeName"]
            {
                spec.remove(field);
            }
            // Ephemeral containers are of no use here: there is no image to take a debugger from.
            for list in ["containers", "initContainers"] {
                for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                    if let Some(container) = container.as_object_mut() {
                        container.remove("image");
                    }
                }
            }
        }
        spec
    };
    let node_changed =
        !meta::text(old, "/spec/nodeName").is_empty() && new["spec"]["nodeName"] != old["spec"]["nodeName"];
    if node_changed || without_changeable(new) != without_changeable(old) {
        let place = changed_place("spec", &without_changeable(old), &without_changeable(new));
        let why = format!(
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
             `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
             `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n\
             {place} was to change"
        );
        errors.push(FieldError::forbidden("spec", why));
    }
}

/// The first place in which two values differ.
fn changed_place(at: &str, old: &Value, new: &Value) -> String {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
            keys.sort();
            match keys.into_iter().find(|key| old.get(*key) != new.get(*key)) {
                Some(key) => {
                    let inner = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
                    changed_place(&format!("{at}.{key}"), &inner(old), &inner(new))
                }
                None => at.to_owned(),
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            match (0..old.len()).find(|&i| old[i] != new[i]) {
                Some(i) => changed_place(&format!("{at}[{i}]"), &old[i], &new[i]),
                None => at.to_owned(),
            }
        }
        _ => at.to_owned(),
    }
}
