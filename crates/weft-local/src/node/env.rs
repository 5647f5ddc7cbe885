//! The environment of a container: literal values, references, and `$(VAR)` in values and arguments.

use k8s_openapi::api::core::v1::{Container, EnvVarSource, ObjectFieldSelector, Pod, ResourceFieldSelector};
use std::{collections::BTreeMap, net::Ipv4Addr};
use weft_fault::{Code, Fault, Phase};

/// The data of the ConfigMaps and Secrets that the pod's containers may name; absent ones are not in the map.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) config_maps: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    pub(crate) secrets: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
}

/// Where the pod runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) pod_ip: Ipv4Addr,
    pub(crate) host_ip: Ipv4Addr,
}

/// The variables of a container in order; later ones win.
pub(crate) fn variables(
    pod: &Pod,
    container: &Container,
    place: Place,
    sources: &Sources,
    base: Vec<(String, String)>,
) -> Result<Vec<(String, String)>, Fault> {
    let mut vars = Vars(base);
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let (kind, name, optional, found) = match (&from.config_map_ref, &from.secret_ref) {
            (Some(r), _) => ("ConfigMap", &r.name, r.optional, sources.config_maps.get(&r.name)),
            (_, Some(r)) => ("Secret", &r.name, r.optional, sources.secrets.get(&r.name)),
            _ => continue,
        };
        let Some(data) = found else {
            if optional == Some(true) {
                continue;
            }
            return Err(missing(container, kind, name, None));
        };
        for (key, value) in data {
            vars.set(&format!("{prefix}{key}"), text(value));
        }
    }
    for var in container.env.iter().flatten() {
        let value = match (&var.value, &var.value_from) {
            (Some(value), _) => Some(expand(value, |name| vars.find(name))),
            (None, Some(from)) => reference(pod, container, place, sources, from)?,
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            vars.set(&var.name, value);
        }
    }
    Ok(vars.0)
}

struct Vars(Vec<(String, String)>);

impl Vars {
    fn find(&self, name: &str) -> Option<String> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
    }
    fn set(&mut self, name: &str, value: String) {
        match self.0.iter_mut().find(|(n, _)| n == name) {
            Some(entry) => entry.1 = value,
            None => self.0.push((name.to_string(), value)),
        }
    }
}

/// Replaces `$(NAME)` where the name is known; `$$` is one `$`, and an unknown name stays as written.
pub(crate) fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|a| a.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out + rest
}

/// `$(NAME)` in a command or its arguments.
pub(crate) fn expand_all(words: &[String], vars: &[(String, String)]) -> Vec<String> {
    let lookup = |name: &str| vars.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    words.iter().map(|w| expand(w, lookup)).collect()
}

fn reference(
    pod: &Pod,
    container: &Container,
    place: Place,
    sources: &Sources,
    from: &EnvVarSource,
) -> Result<Option<String>, Fault> {
    if let Some(field) = &from.field_ref {
        return pod_field(pod, place, field).map(Some);
    }
    if let Some(resource) = &from.resource_field_ref {
        return Ok(Some(resource_field(pod, container, resource)));
    }
    let (kind, name, key, optional, found) = match (&from.config_map_key_ref, &from.secret_key_ref) {
        (Some(r), _) => ("ConfigMap", &r.name, &r.key, r.optional, sources.config_maps.get(&r.name)),
        (_, Some(r)) => ("Secret", &r.name, &r.key, r.optional, sources.secrets.get(&r.name)),
        _ => return Ok(None),
    };
    match found.and_then(|data| data.get(key)) {
        Some(value) => Ok(Some(text(value))),
        None if optional == Some(true) => Ok(None),
        None => Err(missing(container, kind, name, found.is_some().then_some(key))),
    }
}

/// What a field of the downward API says.
pub(crate) fn pod_field(pod: &Pod, place: Place, field: &ObjectFieldSelector) -> Result<String, Fault> {
    let path = field.field_path.as_str();
    let unknown = || Fault::new(Code::BadManifest).in_phase(Phase::Start).fact("fieldPath", path);
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(unknown()),
        };
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    let value = match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone(),
        "metadata.uid" => meta.uid.clone(),
        "metadata.labels" => Some(lines(meta.labels.as_ref())),
        "metadata.annotations" => Some(lines(meta.annotations.as_ref())),
        "spec.nodeName" => spec.and_then(|s| s.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|s| s.service_account_name.clone()),
        "status.hostIP" | "status.hostIPs" => Some(place.host_ip.to_string()),
        "status.podIP" | "status.podIPs" => Some(place.pod_ip.to_string()),
        _ => return Err(unknown()),
    };
    Ok(value.unwrap_or_default())
}

/// `key="value"` lines, as files of the downward API hold them.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map.into_iter().flatten().map(|(k, v)| format!("{k}={v:?}")).collect();
    lines.join("\n")
}

/// A container's request or limit; without a limit, what this machine has.
pub(crate) fn resource_field(pod: &Pod, container: &Container, field: &ResourceFieldSelector) -> String {
    let named = field.container_name.as_deref().and_then(|name| {
        let spec = pod.spec.as_ref()?;
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
    });
    let resources = named.unwrap_or(container).resources.as_ref();
    let (kind, name) = field.resource.split_once('.').unwrap_or(("limits", &field.resource));
    let limit = resources.and_then(|r| r.limits.as_ref()).and_then(|l| l.get(name));
    let request = resources.and_then(|r| r.requests.as_ref()).and_then(|l| l.get(name));
    let found = if kind == "limits" { limit } else { request.or(limit) };
    let amount = match found.and_then(|q| quantity(&q.0)) {
        Some(amount) => amount,
        None if kind == "limits" => machine_amount(name),
        None => 0.0,
    };
    let divisor = field.divisor.as_ref().and_then(|q| quantity(&q.0)).filter(|d| *d > 0.0).unwrap_or(1.0);
    format!("{:.0}", (amount / divisor).ceil())
}

fn machine_amount(resource: &str) -> f64 {
    match resource {
        "cpu" => std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64),
        "memory" => {
            let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
            let total = info.lines().find_map(|l| l.strip_prefix("MemTotal:"));
            let kib = total.and_then(|t| t.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
            kib.unwrap_or(0.0) * 1024.0
        }
        _ => 0.0,
    }
}

/// `250m`, `1.5`, `64Mi`, `1e3`.
pub(crate) fn quantity(text: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    let (digits, factor) =
        SUFFIXES.iter().find_map(|(s, f)| Some((text.strip_suffix(s)?, *f))).unwrap_or((text, 1.0));
    Some(digits.parse::<f64>().ok()? * factor)
}

fn text(bytes: &[u8]) -> String {
    // The kernel ends a variable at a zero byte.
    String::from_utf8_lossy(bytes).replace('\0', "")
}

fn missing(container: &Container, kind: &'static str, name: &str, key: Option<&String>) -> Fault {
    let fault =
        Fault::new(Code::VolumeMissing).in_phase(Phase::Start).about(&container.name).fact(kind, name);
    match key {
        Some(key) => fault.fact("key", key),
        None => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "1", "b/c": "x\"y"}},
            "spec": {"nodeName": "weft", "serviceAccountName": "sa", "containers": [{"name": "c"}]}
        }))
        .unwrap()
    }

    const PLACE: Place = Place { pod_ip: Ipv4Addr::new(10, 77, 0, 2), host_ip: Ipv4Addr::new(10, 77, 0, 1) };

    #[test]
    fn expansion() {
        let vars = [("A".to_string(), "1".to_string()), ("E".to_string(), String::new())];
        let check = |text: &str, want: &str| {
            assert_eq!(expand_all(&[text.to_string()], &vars)[0], want, "{text}");
        };
        check("$(A)", "1");
        check("x$(A)y$(E)z", "x1yz");
        check("$$(A)", "$(A)");
        check("$(B) $A ${A} $", "$(B) $A ${A} $");
        check("$(A", "$(A");
        check("$$$(A)", "$1");
    }

    #[test]
    fn values_references_and_order() {
        let container: Container = serde_json::from_value(json!({
            "name": "c",
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "none", "optional": true}}],
            "env": [
                {"name": "FIRST", "value": "a"},
                {"name": "SECOND", "value": "$(FIRST)/$(P_K)/$(LATER)"},
                {"name": "LATER", "value": "z"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['b/c']"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}},
                {"name": "GONE", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "x", "optional": true}}},
                {"name": "EMPTY"}
            ],
            "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}}
        }))
        .unwrap();
        let mut sources = Sources::default();
        sources.config_maps.insert("m".into(), [("K".to_string(), b"v".to_vec())].into());
        let got =
            variables(&pod(), &container, PLACE, &sources, vec![("FIRST".into(), "old".into())]).unwrap();
        let got: Vec<String> = got.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            got,
            [
                "FIRST=a",
                "P_K=v",
                "SECOND=a/v/$(LATER)",
                "LATER=z",
                "IP=10.77.0.2",
                "LABEL=x\"y",
                "CPU=2",
                "MEM=64",
                "EMPTY="
            ]
        );
    }

    #[test]
    fn a_missing_reference_names_what_is_missing() {
        let container: Container = serde_json::from_value(json!({
            "name": "c", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
        }))
        .unwrap();
        let fault = variables(&pod(), &container, PLACE, &Sources::default(), Vec::new()).unwrap_err();
        assert!(fault.to_string().ends_with(": c Secret=s"), "{fault}");
    }

    #[test]
    fn downward_files() {
        let field = ObjectFieldSelector { field_path: "metadata.labels".into(), ..Default::default() };
        assert_eq!(pod_field(&pod(), PLACE, &field).unwrap(), "a=\"1\"\nb/c=\"x\\\"y\"");
        let field = ObjectFieldSelector { field_path: "spec.nope".into(), ..Default::default() };
        assert!(pod_field(&pod(), PLACE, &field).is_err());
    }
}
