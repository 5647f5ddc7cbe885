//! The list of what the API leaves out (`docs/api.md`) is true and complete.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use weft_local::api::{ApiServer, Config, left_out};

use crate::client::Client;
use crate::{home, replay};

/// A request and its answer.
struct Probe {
    /// How a row of the list begins.
    row: &'static str,
    method: &'static str,
    path: &'static str,
    headers: Value,
    body: Value,
    status: u16,
    /// What the answer says; a pointer and a value, or a part of the text.
    says: Says,
}

enum Says {
    Text(&'static str),
    At(&'static str, Value),
}

use Says::{At, Text};

fn probe(row: &'static str, method: &'static str, path: &'static str, status: u16, says: Says) -> Probe {
    Probe { row, method, path, headers: json!({}), body: Value::Null, status, says }
}

impl Probe {
    fn with(mut self, body: Value) -> Self {
        self.body = body;
        self
    }

    fn headed(mut self, name: &str, value: &str) -> Self {
        self.headers[name] = json!(value);
        self
    }
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const CUSTOM: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(name: &str, rule: &str, versions: &[&str], conversion: Value) -> Value {
    let item = json!({ "type": "object", "properties": { "n": { "type": "integer" } },
        "x-kubernetes-validations": [{ "rule": rule }] });
    let schema = json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
        "list": { "type": "array", "items": item },
    } } } });
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| {
            json!({ "name": version, "served": true, "storage": *version == "v1",
                "schema": { "openAPIV3Schema": schema } })
        })
        .collect();
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{name}s.out.example") },
        "spec": { "group": "out.example", "scope": "Namespaced", "versions": versions, "conversion": conversion,
            "names": { "plural": format!("{name}s"), "singular": name, "kind": name.to_uppercase(), "listKind": format!("{name}List") } } })
}

const LARGE: &str = "/apis/out.example/v1/namespaces/default/larges";

/// An object with so many items that break its rule.
fn large(items: usize) -> Value {
    json!({ "apiVersion": "out.example/v1", "kind": "LARGE", "metadata": { "name": "l" },
        "spec": { "list": vec![json!({ "n": 0 }); items] } })
}

/// One for each row of the list at least.
fn probes() -> Vec<Probe> {
    let hook = |condition: &str| {
        json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": "h" }, "webhooks": [{ "name": "a.b.c", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "clientConfig": { "url": "https://127.0.0.1:1" },
            "matchConditions": [{ "name": "n", "expression": condition }] }] })
    };
    let websocket = |row, path, status, says| {
        probe(row, "GET", path, status, says)
            .headed("connection", "upgrade")
            .headed("upgrade", "websocket")
            .headed("sec-websocket-version", "13")
            .headed("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==")
            .headed("sec-websocket-protocol", "v5.channel.k8s.io")
    };
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": { "name": "s" },
        "addressType": "IPv4", "endpoints": [{ "addresses": ["127.0.0.1"] }], "ports": [] });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
        "spec": { "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30080 }] } });
    let in_protobuf: String = ["k8s\0\n\t\n\u{2}v1\u{12}\u{3}Pod\u{12}\0"].concat();
    let taint = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n" },
        "spec": { "taints": [{ "key": "a", "effect": "NoSchedule" }] } });
    let plain =
        json!({ "metadata": { "name": "q" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    vec![
        probe("eviction", "POST", "/api/v1/namespaces/default/pods/p/eviction", 501, Text("delete the pod"))
            .with(json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "p" } })),
        probe(
            "eviction",
            "POST",
            "/api/v1/namespaces/default/pods/none/eviction",
            404,
            Text("\"none\" not found"),
        ),
        probe(
            "debugging",
            "PATCH",
            "/api/v1/namespaces/default/pods/p/ephemeralcontainers",
            501,
            Text("weft exec"),
        )
        .with(json!({ "spec": { "ephemeralContainers": [{ "name": "d", "image": "d" }] } })),
        probe("copies of pods", "POST", PODS, 415, Text("use kubectl exec"))
            .headed("content-type", "application/vnd.kubernetes.protobuf")
            .with(json!(in_protobuf)),
        probe("resizing", "PATCH", "/api/v1/namespaces/default/pods/p/resize", 501, Text("no limits"))
            .with(json!({})),
        websocket(
            "input of containers",
            "/api/v1/namespaces/default/pods/p/attach?stdin=true&stdout=true",
            501,
            Text("kubectl exec -i"),
        ),
        probe("the kubelet's", "GET", "/api/v1/nodes/weft/proxy/pods", 404, Text("could not find")),
        websocket(
            "SPDY",
            "/api/v1/namespaces/default/pods/p/exec?command=a&stdout=true",
            400,
            Text("kubectl 1.31 or newer"),
        )
        .headed("upgrade", "SPDY/3.1"),
        probe("anonymous", "GET", PODS, 401, Text("Unauthorized")).headed("authorization", ""),
        probe("anonymous", "GET", "/version", 200, At("/minor", json!("36"))).headed("authorization", ""),
        probe("client certificates", "GET", PODS, 401, Text("Unauthorized"))
            .headed("authorization", "Bearer other"),
        probe("protobuf", "GET", PODS, 406, Text("application/json"))
            .headed("accept", "application/vnd.kubernetes.protobuf"),
        probe(
            "protobuf",
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            415,
            Text("send it as JSON"),
        )
        .headed("content-type", "application/vnd.kubernetes.protobuf")
        .with(json!(in_protobuf)),
        probe("CEL: rules in", "POST", CUSTOM, 201, At("/kind", json!("CustomResourceDefinition")))
            .with(definition("rule", "self.n >= oldSelf.n", &["v1"], Value::Null)),
        probe("CEL: rules about", "POST", CUSTOM, 201, At("/metadata/name", json!("larges.out.example")))
            .with(definition("large", "self.n > 0", &["v1"], Value::Null)),
        probe("CEL: rules about", "POST", LARGE, 422, Text("failed rule: self.n > 0")).with(large(1)),
        probe("CEL: rules about", "POST", LARGE, 201, At("/metadata/name", json!("l"))).with(large(20_000)),
        probe(
            "CEL: match",
            "POST",
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
            422,
            Text("unsupported by this API"),
        )
        .with(hook("authorizer.group('').resource('pods').check('get').allowed()")),
        probe("conversion", "POST", CUSTOM, 201, At("/spec/conversion/strategy", json!("Webhook"))).with(
            definition(
                "old",
                "self.n > 0",
                &["v1", "v1beta1"],
                json!({ "strategy": "Webhook", "webhook": { "conversionReviewVersions": ["v1"],
                "clientConfig": { "url": "https://127.0.0.1:1" } } }),
            ),
        ),
        probe(
            "node ports",
            "POST",
            "/api/v1/namespaces/default/services",
            201,
            At("/spec/ports/0/nodePort", json!(30080)),
        )
        .with(service),
        probe("aggregation", "GET", "/apis/metrics.k8s.io/v1beta1/nodes", 404, Text("404 page not found")),
        probe("`/openapi/v2`", "GET", "/openapi/v2", 200, At("/definitions", json!({}))),
        probe(
            "the rule against loopback",
            "POST",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            201,
            At("/endpoints/0/addresses/0", json!("127.0.0.1")),
        )
        .with(slice),
        probe("a scheduler", "POST", "/api/v1/nodes", 201, At("/spec/taints/0/key", json!("a"))).with(taint),
        probe("a scheduler", "POST", PODS, 201, At("/spec/nodeName", json!("weft"))).with(plain),
    ]
}

/// The rows of the list: what is left out, and what happens.
fn rows() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let text = std::fs::read_to_string(path).unwrap();
    let list = text.split("| left out |").nth(1).unwrap();
    let rows = list.lines().skip(2).map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| {
        let (what, happens) = row.split_once(" | ").unwrap();
        (what.to_owned(), happens.to_owned())
    })
    .collect()
}

async fn server() -> (ApiServer, Client) {
    let server = ApiServer::new(Config::default()).unwrap();
    let address = server.spawn_on_loopback().await.unwrap();
    let client = Client::new(address, server.api().authority());
    (server, client)
}

/// Sends a request as the administrator, unless the headers say otherwise.
async fn ask(
    (server, client): &(ApiServer, Client),
    method: &str,
    path: &str,
    headers: &Value,
    body: &Value,
) -> (u16, Value) {
    let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let mut all =
        json!({ "authorization": format!("Bearer {}", server.api().admin_token()), "content-type": media });
    for (name, value) in headers.as_object().into_iter().flatten() {
        all[name] = value.clone();
    }
    let pairs = all
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
    let body = match body {
        Value::Null => None,
        Value::String(raw) => Some(raw.clone()),
        object => Some(object.to_string()),
    };
    let answer = client.send(method, path, pairs.collect(), body).await.unwrap();
    (answer.status, answer.whole().await)
}

#[tokio::test]
async fn what_is_written_down_as_left_out_is_answered_so() {
    let place = server().await;
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "i", "stdin": true }] } });
    assert_eq!(ask(&place, "POST", PODS, &Value::Null, &pod).await.0, 201);
    let rows = rows();
    let mut tried: BTreeSet<&str> = BTreeSet::new();
    for probe in probes() {
        let (status, answer) = ask(&place, probe.method, probe.path, &probe.headers, &probe.body).await;
        let about = format!("{} {} {}: {status} {answer}", probe.row, probe.method, probe.path);
        assert_eq!(status, probe.status, "{about}");
        match &probe.says {
            Text(part) => assert!(answer.to_string().replace("\\\"", "\"").contains(part), "{about}"),
            At(pointer, value) => assert_eq!(answer.pointer(pointer), Some(value), "{about}"),
        }
        let row = rows.iter().find(|(what, _)| what.starts_with(probe.row));
        let (what, happens) = row.unwrap_or_else(|| panic!("{about}: not written down"));
        let refused = [401, 404, 415, 501].contains(&status) && !probe.path.contains("/none/");
        assert!(!refused || happens.contains(&status.to_string()), "{about}: {happens}");
        tried.insert(what);
    }
    // Each kind that is refused is named, and no other.
    let (what, happens) = &rows[0];
    let written: BTreeSet<&str> = what.split(": ").nth(1).unwrap().split(", ").collect();
    let many = |kind: &str| if kind.ends_with('s') { format!("{kind}es") } else { format!("{kind}s") };
    let refused: Vec<String> = left_out::KINDS.iter().map(|(kind, _)| many(kind)).collect();
    assert_eq!(written, refused.iter().map(String::as_str).collect());
    assert!(happens.contains("501"));
    tried.insert(what);
    for (what, happens) in &rows {
        // The history of a server is long: a transcript shortens it.
        let replayed = what == "compaction" && home().join("transcripts/expired.jsonl").exists();
        let other = what.starts_with("other kinds") && happens.starts_with("404");
        assert!(tried.contains(what.as_str()) || replayed || other, "nothing asks about: {what}");
    }
}

/// The resources and their parts in a discovery document.
fn resources(list: &Value) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for group in list["items"].as_array().unwrap() {
        let name = group["metadata"]["name"].as_str().unwrap_or("").to_owned();
        for version in group["versions"].as_array().unwrap() {
            for resource in version["resources"].as_array().unwrap() {
                let plural = resource["resource"].as_str().unwrap().to_owned();
                for part in resource["subresources"].as_array().into_iter().flatten() {
                    found.insert((
                        name.clone(),
                        format!("{plural}/{}", part["subresource"].as_str().unwrap()),
                    ));
                }
                found.insert((name.clone(), plural));
            }
        }
    }
    found
}

#[tokio::test]
async fn every_kind_of_a_real_server_is_served_or_written_down() {
    let (_, steps) = replay::read(&home().join("transcripts/discovery.jsonl"));
    let recorded = steps.iter().map(|step| &step["response"]["body"]);
    let recorded = recorded.filter(|body| body["kind"] == "APIGroupDiscoveryList").flat_map(resources);
    let place = server().await;
    let mut served = BTreeSet::new();
    let accept = json!({ "accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" });
    for path in ["/api", "/apis"] {
        served.append(&mut resources(&ask(&place, "GET", path, &accept, &Value::Null).await.1));
    }
    // Custom kinds were defined on the recorded server, and are not here. Parts of what is absent are not named.
    let of_kubernetes = |group: &str| {
        !["linkerd.io", "gateway.networking.k8s.io", "golden.example"]
            .iter()
            .any(|custom| group.ends_with(custom))
    };
    let absent: BTreeSet<(String, String)> = recorded
        .filter(|(group, name)| of_kubernetes(group) && !served.contains(&(group.clone(), name.clone())))
        .collect();
    let parents: BTreeSet<&str> = absent.iter().map(|(_, name)| name.as_str()).collect();
    let missing: BTreeSet<&str> = absent
        .iter()
        .map(|(_, name)| name.as_str())
        .filter(|name| name.split_once('/').is_none_or(|(of, _)| !parents.contains(of)))
        .collect();
    let rows = rows();
    // Rows about CEL quote fields and variables.
    let about_kinds = rows.iter().filter(|(what, _)| !what.starts_with("CEL"));
    let named = about_kinds.flat_map(|(what, _)| what.split('`').skip(1).step_by(2));
    let written: BTreeSet<&str> =
        named.filter(|name| !name.contains(' ') && !name.starts_with('/')).collect();
    assert_eq!(missing, written, "left: absent here; right: written down in docs/api.md");
}
