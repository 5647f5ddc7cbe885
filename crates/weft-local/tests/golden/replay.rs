//! Sends the requests of one transcript and compares the answers.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use weft_local::api::auth::{MASTERS, User};
use weft_local::api::{ApiServer, Config};
use weft_local::controllers;

use crate::client::{Answer, Client};
use crate::compare::{Bindings, Difference, forget_wording, normalise, sort_causes};
use crate::hook::Hook;

/// A generous ceiling for whatever a transcript waits for.
const CEILING: Duration = Duration::from_secs(10);

/// Groups whose resources are listed in any order.
const CUSTOM: [&str; 5] =
    ["golden.example", "policy.linkerd.io", "linkerd.io", "workload.linkerd.io", "gateway.networking.k8s.io"];

/// One line of a transcript and how the answer to it differs.
pub(crate) struct Outcome {
    pub sequence: String,
    pub step: u64,
    pub note: String,
    pub differences: Vec<Difference>,
}

/// A server as the recorder found it: two nodes, no scheduler, and controllers only where a transcript needs them.
pub(crate) struct Place {
    server: ApiServer,
    client: Client,
    hook: Hook,
    closed: String,
    _tasks: JoinSet<()>,
}

impl Place {
    pub(crate) async fn make(needs: &Value, definitions: &[Value]) -> Self {
        let has = |what: &str| needs.as_array().unwrap().iter().any(|need| need == what);
        let user = |name: &str, uid: &str, groups: &[&str]| User {
            name: name.to_owned(),
            uid: uid.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            extra: Vec::new(),
        };
        let mut admin = user("admin", "", &[MASTERS, "system:authenticated"]);
        let credential = format!("X509SHA256={}", "0".repeat(64));
        admin.extra.push(("authentication.kubernetes.io/credential-id".into(), credential));
        let config = Config {
            node: None,
            controllers: has("controllers"),
            service_range: "10.96.0.0/16".parse().unwrap(),
            tokens: vec![
                ("admin-token".into(), admin),
                ("viewer-token".into(), user("viewer", "uid-viewer", &["", "system:authenticated"])),
            ],
            ..Config::default()
        };
        let server = ApiServer::new(config).unwrap();
        let address = server.spawn_on_loopback().await.unwrap();
        let client = Client::new(address, server.api().authority());
        let mut tasks = JoinSet::new();
        if has("controllers") {
            tasks.spawn(controllers::run(server.api().clone()));
        }
        // A port that was free a moment ago and that nobody listens on.
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let place = Self { server, client, hook: Hook::start().await, closed, _tasks: tasks };
        for name in ["n1", "n2"] {
            let node = json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "name": name }, "status": {
                "conditions": [{ "type": "Ready", "status": "True" }],
                "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            } });
            place.put("/api/v1/nodes", &node).await;
        }
        if has("crds") {
            for definition in definitions {
                place.put("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
            }
        }
        place
    }

    async fn put(&self, path: &str, object: &Value) {
        let headers = vec![
            ("authorization".to_owned(), "Bearer admin-token".to_owned()),
            ("content-type".to_owned(), "application/json".to_owned()),
        ];
        let answer = self.client.send("POST", path, headers, Some(object.to_string())).await.unwrap();
        let status = answer.status;
        assert_eq!(status, 201, "{path}: {}", answer.whole().await);
    }
}

/// A transcript: its head and its steps.
pub(crate) fn read(path: &Path) -> (Value, Vec<Value>) {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    (lines.next().unwrap(), lines.collect())
}

pub(crate) async fn run(place: &Place, head: &Value, steps: &[Value]) -> Vec<Outcome> {
    let mut replay = Replay {
        place,
        foreign: head["sequence"].as_str().unwrap().starts_with("crd-linkerd-"),
        keep_managed: head["keepManagedFields"] == true,
        bindings: Bindings::default(),
        watches: BTreeMap::new(),
    };
    replay.bindings.bind("webhook", format!("https://{}", place.hook.address));
    replay.bindings.bind("ca-bundle", &*place.hook.certificate);
    replay.bindings.bind("webhook-down", format!("https://{}", place.closed));
    replay.bindings.bind("webhook-down-addr", &*place.closed);
    let mut outcomes = Vec::new();
    let mut calls = VecDeque::new();
    for (i, step) in steps.iter().enumerate() {
        let mut differences = Vec::new();
        if let Some(webhook) = step.get("webhook") {
            replay.compare_call(webhook, calls.pop_front(), &mut differences);
        } else {
            let scripted = steps[i + 1..].iter().map_while(|next| next.get("webhook"));
            let scripted: VecDeque<Value> = scripted.map(|call| call["answer"].clone()).collect();
            let expected = scripted.len();
            place.hook.expect(scripted);
            replay.step(step, &mut differences).await;
            calls = place.hook.take().into();
            if calls.len() > expected {
                let (expected, got) = (format!("{expected} calls"), format!("{} calls", calls.len()));
                differences.push(Difference { at: "/webhook".into(), expected, got });
            }
        }
        outcomes.push(Outcome {
            sequence: head["sequence"].as_str().unwrap().to_owned(),
            step: step["step"].as_u64().unwrap(),
            note: step["note"].as_str().unwrap_or("").to_owned(),
            differences,
        });
    }
    outcomes
}

struct Replay<'a> {
    place: &'a Place,
    /// Whether it is about definitions for which weft has texts of its own.
    foreign: bool,
    keep_managed: bool,
    bindings: Bindings,
    /// Watches that stay open over several steps.
    watches: BTreeMap<String, Answer>,
}

impl Replay<'_> {
    async fn step(&mut self, step: &Value, found: &mut Vec<Difference>) {
        if step["action"] == "compact" {
            return; // History is bounded by its length here: nobody can ask for it to be dropped.
        }
        let expected = &step["response"];
        if let Some(name) = step["collect"].as_str() {
            if let Some(answer) = self.watches.remove(name) {
                self.compare_stream(expected, answer, found).await;
            } else {
                let (expected, got) = ("an open watch".into(), "none".into());
                found.push(Difference { at: "/stream".into(), expected, got });
            }
            return;
        }
        if step["await"] == true {
            return self.compare_in_time(step, found).await;
        }
        // A watch that stays open over several steps must not end before these are done, however long they take.
        let path = step["request"]["path"].as_str().unwrap();
        let stays = step.get("open").is_some()
            || step["response"]["end"].as_str().is_some_and(|end| end != "server closed");
        let path = if stays { path.replace("timeoutSeconds=", "timeoutSeconds=30") } else { path.to_owned() };
        let answer = match self.send_to(&step["request"], &path).await {
            Ok(answer) => answer,
            Err(got) => {
                let (at, expected) = ("/status".into(), "an answer".into());
                return found.push(Difference { at, expected, got });
            }
        };
        self.compare_head(step, &answer, found);
        if let Some(name) = step["open"].as_str() {
            self.watches.insert(name.to_owned(), answer);
        } else if expected.get("stream").is_some() && answer.status == 200 {
            self.compare_stream(expected, answer, found).await;
        } else if expected.get("stream").is_none() && step["response"]["bodyElided"] != true {
            let body = answer.whole().await;
            self.compare_body(step, body, found);
        }
        if let Some(decoded) = step.get("decoded") {
            self.bindings.unify_tokens(decoded, found);
        }
    }

    async fn send(&self, request: &Value) -> Result<Answer, String> {
        self.send_to(request, request["path"].as_str().unwrap()).await
    }

    async fn send_to(&self, request: &Value, path: &str) -> Result<Answer, String> {
        let text = |field: &str| request[field].as_str().unwrap();
        let mut headers: Vec<(String, String)> = Vec::new();
        for (key, value) in request["headers"].as_object().into_iter().flatten() {
            headers.push((key.clone(), self.bindings.fill(value.as_str().unwrap())));
        }
        if !headers.iter().any(|(key, _)| key.eq_ignore_ascii_case("user-agent")) {
            headers.push(("user-agent".into(), "golden/1".into()));
        }
        match request["as"].as_str() {
            _ if headers.iter().any(|(key, _)| key.eq_ignore_ascii_case("authorization")) => {}
            None => headers.push(("authorization".into(), "Bearer admin-token".into())),
            Some("viewer") => headers.push(("authorization".into(), "Bearer viewer-token".into())),
            Some(_) => {}
        }
        let body = match (request.get("body"), request["bodyText"].as_str()) {
            (Some(body), _) => Some(self.bindings.fill_value(body).to_string()),
            (None, text) => text.map(|text| self.bindings.fill(text)),
        };
        let path = self.bindings.fill(path);
        self.place.client.send(text("method"), &path, headers, body).await
    }

    fn compare_head(&mut self, step: &Value, answer: &Answer, found: &mut Vec<Difference>) {
        let expected = &step["response"];
        if step["setup"] == true && [200, 201, 409].contains(&answer.status) {
            return;
        }
        self.bindings.unify(&expected["status"], &json!(answer.status), "/status", found);
        self.bindings.unify(&expected["headers"], &answer.headers, "/headers", found);
    }

    fn compare_body(&mut self, step: &Value, mut got: Value, found: &mut Vec<Difference>) {
        let mut expected = step["response"]["body"].clone();
        if step["request"]["path"] == "/version" {
            for side in [&mut expected, &mut got] {
                *side = json!({ "major": side["major"], "minor": side["minor"] });
            }
        }
        if expected["causesSorted"] == true {
            sort_causes(&mut got);
        }
        let group = expected["groupVersion"].as_str().and_then(|version| version.split('/').next());
        if expected["kind"] == "APIResourceList"
            && CUSTOM.contains(&group.unwrap_or(""))
            && let Some(list) = got["resources"].as_array_mut()
        {
            list.sort_by_key(|resource| resource["name"].as_str().unwrap_or("").to_owned());
        }
        for side in [&mut expected, &mut got] {
            normalise(side, self.keep_managed);
            if self.foreign {
                forget_wording(side);
            }
        }
        let mut differences = Vec::new();
        self.bindings.unify(&expected, &got, "", &mut differences);
        if step["setup"] != true {
            found.extend(differences);
        }
    }

    async fn compare_stream(&mut self, expected: &Value, mut answer: Answer, found: &mut Vec<Difference>) {
        let counted = |event: &Value| {
            event["type"] != "BOOKMARK"
                || event["object"]["metadata"]["annotations"].get("k8s.io/initial-events-end").is_some()
        };
        let events: Vec<&Value> =
            expected["stream"].as_array().into_iter().flatten().filter(|event| counted(event)).collect();
        let server_closes = expected["end"] == "server closed";
        let mut got = Vec::new();
        let read = async {
            while server_closes || got.len() < events.len() {
                let Some(event) = answer.line().await else { return true };
                if counted(&event) {
                    got.push(event);
                }
            }
            false
        };
        let closed = tokio::time::timeout(CEILING, read).await;
        let mut expected_events = json!(events);
        let mut got = Value::Array(got);
        for side in [&mut expected_events, &mut got] {
            normalise(side, self.keep_managed);
        }
        self.bindings.unify(&expected_events, &got, "/stream", found);
        match closed {
            Ok(closed) => self.bindings.unify(&json!(server_closes), &json!(closed), "/end", found),
            Err(_) => {
                let (expected, got) = (expected["end"].to_string(), "still open".to_owned());
                found.push(Difference { at: "/end".into(), expected, got });
            }
        }
    }

    fn compare_call(
        &mut self,
        expected: &Value,
        call: Option<crate::hook::Call>,
        found: &mut Vec<Difference>,
    ) {
        let Some(call) = call else {
            let (expected, got) = ("a call".into(), "none".into());
            return found.push(Difference { at: "/webhook".into(), expected, got });
        };
        let (mut wanted, mut request) = (expected["request"].clone(), call.request);
        for side in [&mut wanted, &mut request] {
            normalise(side, self.keep_managed);
        }
        self.bindings.unify(&expected["path"], &json!(call.path), "/webhook/path", found);
        self.bindings.unify(&expected["headers"], &call.headers, "/webhook/headers", found);
        self.bindings.unify(&wanted, &request, "/webhook/request", found);
    }

    /// Asks again at each change until the answer fits.
    async fn compare_in_time(&mut self, step: &Value, found: &mut Vec<Difference>) {
        let mut changed = self.place.server.api().store.subscribe();
        let deadline = tokio::time::Instant::now() + CEILING;
        loop {
            let before = self.bindings.clone();
            let mut differences = Vec::new();
            let answer = self.send(&step["request"]).await.unwrap();
            self.compare_head(step, &answer, &mut differences);
            let body = answer.whole().await;
            self.compare_body(step, body, &mut differences);
            if differences.is_empty() {
                return;
            }
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                found.extend(differences);
                return;
            }
            self.bindings = before;
        }
    }
}
