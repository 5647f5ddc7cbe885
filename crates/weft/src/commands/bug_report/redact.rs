//! Takes out of objects and texts what nobody but their owners should see. What is not known to be harmless goes. Pure.

use regex::{Captures, Regex};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// What stands in the place of what was taken out.
pub(super) const GONE: &str = "(removed)";
/// Shorter texts occur everywhere by chance.
const SHORTEST: usize = 8;
/// Domains whose annotations configure the mesh or are Kubernetes' own.
const KNOWN_DOMAINS: [&str; 4] = ["linkerd.io", "weft.dev", "kubernetes.io", "k8s.io"];
/// This one repeats the whole object, as it was applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The mesh's own variables, none of which holds a secret itself.
const KNOWN_VARIABLES: &str = "LINKERD2_PROXY_";
/// Containers that the mesh brings into pods; what they are started with is settings.
const KNOWN_CONTAINERS: [&str; 3] = ["linkerd-proxy", "linkerd-init", "linkerd-network-validator"];
/// ConfigMaps that the mesh reads and writes.
const KNOWN_MAPS: [&str; 4] =
    ["linkerd-config", "linkerd-identity-trust-roots", "weft-identity-trust-roots", "weft-journal"];
/// Parts of names of things that are secret.
const SECRET_NAMES: [&str; 9] =
    ["password", "passwd", "secret", "token", "apikey", "api_key", "api-key", "credential", "private"];

/// Knows what to take out, and learns from objects what must not stand in texts either.
pub(super) struct Redactor {
    known: BTreeSet<String>,
    patterns: Vec<(Regex, &'static str)>,
}

impl Redactor {
    pub(super) fn new() -> Result<Self, regex::Error> {
        let names = SECRET_NAMES.join("|");
        let assigned = format!(
            r#"(["']?[A-Za-z0-9_.-]*(?i-u:{names})[A-Za-z0-9_.-]*["']?\s*[:=]\s*)("[^"\n]*"|'[^'\n]*'|[^\s,;&}}\]]+)"#
        );
        let patterns = [
            (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", GONE),
            // A JSON Web Token: three parts in base64, of which the first begins with `{"`.
            (r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", GONE),
            (r"\b((?i-u:bearer|basic))\s+[A-Za-z0-9+/_=.~-]{6,}", "$1 (removed)"),
            (r"\b((?i-u:authorization|cookie|set-cookie))(\s*[:=]\s*)[^\n]+", "$1$2(removed)"),
            (r"://[^/\s:@]+:[^/\s@]+@", "://(removed)@"),
            (assigned.as_str(), "${1}(removed)"),
        ];
        let patterns = patterns.into_iter().map(|(text, by)| Ok((Regex::new(text)?, by)));
        Ok(Redactor { known: BTreeSet::new(), patterns: patterns.collect::<Result<_, regex::Error>>()? })
    }

    /// This must not be found in the archive, wherever it stands.
    pub(super) fn learn(&mut self, secret: &str) {
        for part in secret.lines().map(str::trim).chain([secret.trim()]) {
            if part.len() >= SHORTEST && !part.starts_with("-----") {
                self.known.insert(part.to_owned());
            }
        }
    }

    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // Longer ones first: one may be part of another.
        let mut known: Vec<&String> = self.known.iter().collect();
        known.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        for secret in known {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), GONE);
            }
        }
        for (pattern, by) in &self.patterns {
            let replaced = pattern.replace_all(&text, |found: &Captures<'_>| {
                let mut with = String::new();
                found.expand(by, &mut with);
                with
            });
            text = replaced.into_owned();
        }
        text
    }

    /// The same of every text in a value; what is no text stays.
    pub(super) fn texts(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.texts(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.texts(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// An object of the API. What is taken out of it is learned, where its name says that it is secret.
    pub(super) fn object(&mut self, object: &mut Value) {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        self.meta(&mut object["metadata"]);
        match kind.as_str() {
            "Secret" => {
                for field in ["data", "stringData"] {
                    self.values(&mut object[field], true);
                }
            }
            "ConfigMap" => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                if !KNOWN_MAPS.contains(&name) {
                    for field in ["data", "binaryData"] {
                        self.values(&mut object[field], false);
                    }
                }
            }
            _ => self.templates(object),
        }
        remove_nulls(object);
    }

    fn meta(&mut self, meta: &mut Value) {
        let Some(meta) = meta.as_object_mut() else { return };
        meta.remove("managedFields");
        let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) else { return };
        for (name, value) in annotations.iter_mut() {
            if name == LAST_APPLIED || !is_known(name) {
                self.gone(name, value, false);
            }
        }
    }

    /// Every value of a map, whose names stay.
    fn values(&mut self, map: &mut Value, secret: bool) {
        for (name, value) in map.as_object_mut().into_iter().flatten() {
            self.gone(name, value, secret);
        }
    }

    fn gone(&mut self, name: &str, value: &mut Value, secret: bool) {
        let Some(text) = value.as_str().filter(|text| !text.starts_with(GONE)) else { return };
        if secret || is_secret(name) {
            let text = text.to_owned();
            self.learn(&text);
            if let Some(decoded) = decoded(&text) {
                self.learn(&decoded);
            }
        }
        *value = format!("{GONE} {} bytes", value.as_str().map_or(0, str::len)).into();
    }

    /// Pods, and templates of pods wherever they stand in an object.
    fn templates(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                if fields.contains_key("annotations") && fields.len() < 20 {
                    let mut meta = Value::Object(std::mem::take(fields));
                    self.meta(&mut meta);
                    if let Value::Object(meta) = meta {
                        *fields = meta;
                    }
                }
                for name in ["containers", "initContainers", "ephemeralContainers"] {
                    for container in fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten()
                    {
                        if let Some(container) = container.as_object_mut() {
                            self.container(container);
                        }
                    }
                }
                fields.values_mut().for_each(|inner| self.templates(inner));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.templates(item)),
            _ => {}
        }
    }

    fn container(&mut self, container: &mut Map<String, Value>) {
        let own = container
            .get("name")
            .and_then(Value::as_str)
            .is_some_and(|name| KNOWN_CONTAINERS.contains(&name));
        for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
            let name = variable["name"].as_str().unwrap_or_default().to_owned();
            if !name.starts_with(KNOWN_VARIABLES) && variable["value"].is_string() {
                self.gone(&name, &mut variable["value"], false);
            }
        }
        if own {
            return;
        }
        for field in ["command", "args"] {
            if container.get(field).is_some_and(|words| !words.is_null()) {
                container.insert(field.to_owned(), Value::Array(vec![GONE.into()]));
            }
        }
        for (field, probe) in
            [("livenessProbe", "exec"), ("readinessProbe", "exec"), ("startupProbe", "exec")]
        {
            if let Some(exec) = container.get_mut(field).and_then(|p| p.get_mut(probe)) {
                *exec = GONE.into();
            }
        }
        for headers in ["livenessProbe", "readinessProbe", "startupProbe"] {
            if let Some(get) =
                container.get_mut(headers).and_then(|p| p.get_mut("httpGet")).and_then(Value::as_object_mut)
            {
                get.remove("httpHeaders");
            }
        }
        container.remove("lifecycle");
    }
}

fn is_known(annotation: &str) -> bool {
    let domain = annotation.split('/').next().unwrap_or_default();
    annotation.contains('/')
        && KNOWN_DOMAINS.iter().any(|known| {
            domain == *known || domain.strip_suffix(known).is_some_and(|head| head.ends_with('.'))
        })
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part)) || name.ends_with("key")
}

fn decoded(text: &str) -> Option<String> {
    use base64::Engine as _;
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text.trim()).ok()?).ok()
}

/// Fields that were asked about and are not there.
fn remove_nulls(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn redactor() -> Redactor {
        Redactor::new().unwrap()
    }

    #[test]
    fn secrets_keep_their_keys_only_and_are_known_from_then_on() {
        let mut redactor = redactor();
        let mut secret = json!({"kind": "Secret", "metadata": {"name": "s", "managedFields": [1]},
            "data": {"key.pem": "aHVzaC1odXNoLTE="}, "stringData": {"plain": "hush-hush-2"}});
        redactor.object(&mut secret);
        assert_eq!(secret["data"]["key.pem"], "(removed) 16 bytes");
        assert!(!secret.to_string().contains("hush") && secret["metadata"].get("managedFields").is_none());
        assert_eq!(redactor.text("a hush-hush-1 b hush-hush-2 c"), "a (removed) b (removed) c");
    }

    #[test]
    fn pods_keep_the_meshs_settings_and_no_others() {
        let mut redactor = redactor();
        let container = |name: &str| {
            json!({"name": name, "args": ["--password=hush"], "command": ["hush"], "lifecycle": {"x": "hush"},
                "livenessProbe": {"exec": {"command": ["hush"]}},
                "readinessProbe": {"httpGet": {"path": "/", "httpHeaders": [{"name": "a", "value": "hush"}]}},
                "env": [{"name": "DB_PASSWORD", "value": "hush-hush-3"}, {"name": "MODE", "value": "hush"},
                    {"name": "LINKERD2_PROXY_LOG", "value": "warn"}, {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "s"}}}]})
        };
        let meta = json!({"annotations": {"config.linkerd.io/opaque-ports": "3306", "example.com/key": "hush",
            "evil-linkerd.io/x": "hush", "plain": "hush", LAST_APPLIED: "hush"}});
        let template = json!({"metadata": meta, "spec": {"containers": [container("app")], "initContainers": [container("setup")]}});
        let mut deployment = json!({"kind": "Deployment", "metadata": meta, "spec": {"template": template}});
        redactor.object(&mut deployment);
        let text = deployment.to_string();
        assert!(!text.contains("hush"), "{text}");
        let kept = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
        assert_eq!(
            (&kept[2]["value"], &kept[3]["valueFrom"]["secretKeyRef"]["name"]),
            (&json!("warn"), &json!("s"))
        );
        assert_eq!(deployment["metadata"]["annotations"]["config.linkerd.io/opaque-ports"], "3306");
        assert!(!redactor.text("connecting with hush-hush-3").contains("hush"));
        let mut proxy = json!({"kind": "Pod", "metadata": {}, "spec": {"containers": [{"name": "linkerd-proxy", "args": ["x"]}]}});
        redactor.object(&mut proxy);
        assert_eq!(proxy["spec"]["containers"][0]["args"], json!(["x"]));
    }

    #[test]
    fn config_maps_of_others_keep_their_keys_only() {
        let mut map = json!({"kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"app.ini": "hush"}});
        redactor().object(&mut map);
        assert_eq!(map["data"]["app.ini"], "(removed) 4 bytes");
        let mut value =
            json!({"message": "token=hush", "secretRef": {"automountToken": false}, "all": ["x"]});
        redactor().texts(&mut value);
        assert_eq!(
            value,
            json!({"message": "token=(removed)", "secretRef": {"automountToken": false}, "all": ["x"]})
        );
        let mut own =
            json!({"kind": "ConfigMap", "metadata": {"name": "linkerd-config"}, "data": {"values": "a: b"}});
        redactor().object(&mut own);
        assert_eq!(own["data"]["values"], "a: b");
    }

    #[test]
    fn texts_lose_what_looks_like_a_secret_and_keep_the_rest() {
        let redactor = redactor();
        for (text, shown) in [
            ("GET /x?access_token=hush&y=1", "GET /x?access_token=(removed)&y=1"),
            ("authorization: Basic aHVzaGh1c2g=\nnext", "authorization: (removed)\nnext"),
            ("sent Bearer hushhushhush to", "sent Bearer (removed) to"),
            ("postgres://user:hush@db/x", "postgres://(removed)@db/x"),
            (r#"{"password": "hu sh", "a": 1}"#, r#"{"password": (removed), "a": 1}"#),
            ("jwt eyJhbGciOiJIUzI1NiJ9.eyJodXNoIjoxfQ.hush end", "jwt (removed) end"),
            ("-----BEGIN EC PRIVATE KEY-----\nhush\n-----END EC PRIVATE KEY-----\nafter", "(removed)\nafter"),
            ("POL-001 no rule allows this caller", "POL-001 no rule allows this caller"),
            (
                "10.77.0.5:8080 client=web.shop.serviceaccount",
                "10.77.0.5:8080 client=web.shop.serviceaccount",
            ),
        ] {
            assert_eq!(redactor.text(text), shown);
        }
    }
}
