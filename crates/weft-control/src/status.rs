//! Conditions of routes: whether a parent takes them, and whether their backends are there.
//!
//! Only for people to read. A route is served as soon as the index has it; nothing waits for its status.

use crate::{
    authority::every,
    index::{
        reader::{GroupedRoute, Reader},
        store::Store,
    },
};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use weft_kube::{
    api,
    kind::Kind,
    meta::ObjectName,
    policy::{
        http_route::{BackendRef, GatewayHttpRoute, HttpRoute, ParentRef, PolicyHttpRoute},
        reference::{GATEWAY_GROUP, POLICY_GROUP},
        route_convert,
        server::Server,
    },
};

const CONTROLLER: &str = "linkerd.io/policy-controller";

/// A status that should be written.
#[derive(Debug, PartialEq)]
struct Write {
    route: ObjectName,
    group: &'static str,
    /// The version it was made from: somebody else's write in between must not be undone.
    version: String,
    parents: Vec<Value>,
}

/// Keeps the statuses in step. Runs until dropped.
pub async fn write(client: Client, store: Arc<Store>, mut synced: watch::Receiver<bool>) {
    // Before that, parents and backends would be called missing that are not.
    if synced.wait_for(|synced| *synced).await.is_err() {
        return;
    }
    let mut timer = every(Duration::from_secs(1));
    loop {
        timer.tick().await;
        let now = Timestamp::now();
        for Write { route, group, version, parents } in store.look(|reader, _| pending(reader, now)) {
            let collection = match group {
                POLICY_GROUP => PolicyHttpRoute::path(Some(&route.namespace)),
                _ => GatewayHttpRoute::path(Some(&route.namespace)),
            };
            let path = format!("{collection}/{}/status", route.name);
            let patch = json!({"metadata": {"resourceVersion": version}, "status": {"parents": parents}});
            match api::merge(&client, &path, &patch).await {
                Ok(_) => {}
                // Gone or changed in the meantime: seen again at the next tick.
                Err(error) if matches!(error.code(), Some(404 | 409)) => {}
                Err(error) => {
                    tracing::warn!(%route, %error, "the status of a route could not be written");
                    // Whatever the reason, the next one would meet it too.
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    break;
                }
            }
        }
    }
}

fn pending(reader: &Reader<'_>, now: Timestamp) -> Vec<Write> {
    reader
        .all_routes()
        .filter_map(|found| {
            let parents = parents(reader, found, now);
            (!same(&parents, &found.route.status.parents)).then(|| Write {
                route: found.route.metadata.key(),
                group: found.group,
                version: found.route.metadata.resource_version.clone(),
                parents,
            })
        })
        .collect()
}

/// The same entries. Controllers disagree about their order, and must not answer each other's writes for ever.
fn same(a: &[Value], b: &[Value]) -> bool {
    a.len() == b.len() && a.iter().all(|entry| b.contains(entry))
}

/// The entries as they should be: those of other controllers untouched, ours computed anew.
fn parents(reader: &Reader<'_>, found: GroupedRoute<'_>, now: Timestamp) -> Vec<Value> {
    let route = found.route;
    let (ours, mut all): (Vec<&Value>, Vec<Value>) = {
        let (ours, others): (Vec<&Value>, Vec<&Value>) =
            route.status.parents.iter().partition(|p| p["controllerName"] == CONTROLLER);
        (ours, others.into_iter().cloned().collect())
    };
    let unreadable = unreadable(found);
    for parent in &route.spec.parent_refs {
        let Some(accepted) = accepted(reader, route, parent, unreadable.as_deref()) else { continue };
        let parent_ref = parent_ref(parent);
        let old = ours.iter().find(|p| p["parentRef"] == parent_ref).map(|p| &p["conditions"]);
        let mut conditions = vec![accepted.json("Accepted", route, old, now)];
        if is_service(parent) {
            conditions.push(resolved(reader, route).json("ResolvedRefs", route, old, now));
        }
        all.push(json!({"parentRef": parent_ref, "controllerName": CONTROLLER, "conditions": conditions}));
    }
    all
}

struct Condition {
    holds: bool,
    reason: &'static str,
    message: String,
}

impl Condition {
    fn yes(reason: &'static str) -> Self {
        Condition { holds: true, reason, message: String::new() }
    }

    fn no(reason: &'static str, message: impl Into<String>) -> Self {
        Condition { holds: false, reason, message: message.into() }
    }

    /// Keeps the time of the last change while the state stays.
    fn json(&self, kind: &str, route: &HttpRoute, old: Option<&Value>, now: Timestamp) -> Value {
        let status = if self.holds { "True" } else { "False" };
        let since = old
            .and_then(Value::as_array)
            .and_then(|all| all.iter().find(|c| c["type"] == kind && c["status"] == status))
            .and_then(|c| c["lastTransitionTime"].as_str())
            .map_or_else(|| now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), str::to_owned);
        json!({
            "type": kind, "status": status, "reason": self.reason, "message": self.message,
            "observedGeneration": route.metadata.generation, "lastTransitionTime": since,
        })
    }
}

fn is_service(parent: &ParentRef) -> bool {
    parent.is("", "Service")
}

/// `None` for a parent that is none of our business.
fn accepted(
    reader: &Reader<'_>,
    route: &HttpRoute,
    parent: &ParentRef,
    unreadable: Option<&str>,
) -> Option<Condition> {
    let local = &route.metadata.namespace;
    let name = parent.resolve(local);
    let missing = |what: String| Condition::no("NoMatchingParent", what);
    let found = if parent.is(POLICY_GROUP, Server::KIND) {
        if name.namespace != *local {
            Err(missing("a Server takes routes of its own namespace only".to_owned()))
        } else if parent.port.is_some() || parent.section_name.is_some() {
            Err(missing("a Server as parent has neither port nor section".to_owned()))
        } else if reader.servers(local).any(|s| s.metadata.name == name.name) {
            Ok(())
        } else {
            Err(missing(format!("Server {name} does not exist")))
        }
    } else if is_service(parent) {
        match (reader.service(&name), parent.port) {
            (None, _) => Err(missing(format!("Service {name} does not exist"))),
            (Some(service), Some(port)) if service.port(port).is_none() && !service.is_headless() => {
                Err(missing(format!("Service {name} does not define port {port}")))
            }
            (Some(_), _) => Ok(()),
        }
    } else {
        return None;
    };
    Some(match (found, unreadable) {
        (Err(missing), _) => missing,
        (Ok(()), Some(why)) => Condition::no("UnsupportedValue", why),
        (Ok(()), None) => Condition::yes("Accepted"),
    })
}

/// Why the route cannot be served, if so.
fn unreadable(found: GroupedRoute<'_>) -> Option<String> {
    let check = || -> Result<(), String> {
        for rule in &found.route.spec.rules {
            route_convert::rule(rule)?;
            for backend in &rule.backend_refs {
                route_convert::filters(&backend.filters)?;
            }
            let timeouts = rule.timeouts.iter().flat_map(|t| [&t.request, &t.backend_request]);
            for timeout in timeouts.flatten() {
                route_convert::duration(timeout)?;
            }
        }
        Ok(())
    };
    check().err()
}

fn resolved(reader: &Reader<'_>, route: &HttpRoute) -> Condition {
    let local = &route.metadata.namespace;
    let all: Vec<&BackendRef> = route.spec.rules.iter().flat_map(|rule| &rule.backend_refs).collect();
    if let Some(other) = all.iter().find(|b| !b.is_service()) {
        return Condition::no("InvalidKind", format!("backend {} is not a Service", other.name));
    }
    let there = |b: &&BackendRef| {
        b.port.is_some() && reader.service(&b.resolve(local)).is_some_and(|s| !s.is_external_name())
    };
    match all.iter().find(|b| !there(b)) {
        Some(missing) => Condition::no(
            "BackendNotFound",
            format!("Service {} does not exist, or the port is missing", missing.resolve(local)),
        ),
        None => Condition::yes("ResolvedRefs"),
    }
}

/// As the route has it; fields that it does not set stay absent.
fn parent_ref(parent: &ParentRef) -> Value {
    let mut value = json!({
        "group": parent.group.as_deref().unwrap_or(GATEWAY_GROUP),
        "kind": parent.kind.as_deref().unwrap_or("Gateway"),
        "name": parent.name,
    });
    if let Some(namespace) = &parent.namespace {
        value["namespace"] = json!(namespace);
    }
    if let Some(section) = &parent.section_name {
        value["sectionName"] = json!(section);
    }
    if let Some(port) = parent.port {
        value["port"] = json!(port);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{
        Index,
        kinds::Indexed,
        tests::{object, service},
    };
    use weft_kube::{core::service::Service, watch::Event};

    fn put<K: Indexed>(index: &mut Index, value: Value) {
        index.apply::<K>(Event::Applied(Arc::new(object(value))));
    }

    fn route(filter: &str, backend: &str) -> Value {
        json!({"metadata": {"name": "r", "namespace": "shop", "generation": 3}, "spec": {
            "parentRefs": [{"group": "core", "kind": "Service", "name": "a"}, {"name": "somebody-elses"}],
            "rules": [{"filters": [{"type": filter, "requestHeaderModifier": {}}],
                "backendRefs": [{"name": backend, "port": 80}]}]}})
    }

    fn conditions(index: &Index) -> Vec<(String, String, String)> {
        let writes = pending(&Reader::new(index), Timestamp::UNIX_EPOCH);
        let all = writes.iter().flat_map(|w| &w.parents).filter(|p| p["controllerName"] == CONTROLLER);
        all.flat_map(|p| p["conditions"].as_array().unwrap().clone())
            .map(|c| {
                let text = |key: &str| c[key].as_str().unwrap().to_owned();
                (text("type"), text("status"), text("reason"))
            })
            .collect()
    }

    fn said(kind: &str, status: &str, reason: &str) -> (String, String, String) {
        (kind.to_owned(), status.to_owned(), reason.to_owned())
    }

    #[test]
    fn conditions_say_what_is_missing() {
        let mut index = Index::default();
        put::<PolicyHttpRoute>(&mut index, route("RequestHeaderModifier", "b"));
        assert_eq!(
            conditions(&index),
            [said("Accepted", "False", "NoMatchingParent"), said("ResolvedRefs", "False", "BackendNotFound")]
        );
        put::<Service>(&mut index, service("a", "10.78.0.2"));
        put::<Service>(&mut index, service("b", "10.78.0.3"));
        assert_eq!(
            conditions(&index),
            [said("Accepted", "True", "Accepted"), said("ResolvedRefs", "True", "ResolvedRefs")]
        );
        put::<PolicyHttpRoute>(&mut index, route("CORS", "b"));
        assert_eq!(conditions(&index)[0], said("Accepted", "False", "UnsupportedValue"));
    }

    #[test]
    fn what_was_written_is_not_written_again_and_others_keep_their_entries() {
        let mut index = Index::default();
        put::<Service>(&mut index, service("a", "10.78.0.2"));
        let foreign = json!({"controllerName": "example.com/other", "parentRef": {"name": "x"}});
        let mut value = route("RequestHeaderModifier", "b");
        value["status"] = json!({"parents": [foreign]});
        put::<PolicyHttpRoute>(&mut index, value.clone());
        let writes = pending(&Reader::new(&index), Timestamp::UNIX_EPOCH);
        assert_eq!(writes[0].parents[0], foreign);
        value["status"] = json!({"parents": writes[0].parents});
        // Our own write comes back as an event, and is no news.
        let applied = index.apply::<PolicyHttpRoute>(Event::Applied(Arc::new(object(value))));
        assert!(applied.touched.is_empty() && applied.notes.is_empty());
        assert!(pending(&Reader::new(&index), Timestamp::now()).is_empty());
    }
}
