//! The admin server: liveness, metrics, the journal, and what the controller would answer. Read only.

pub mod metrics;
pub mod query;
pub mod render;

use self::query::Query;
use crate::{
    admission::metrics::Injections,
    authority::Authorities,
    index::{feed::Feed, registry::Subject, store::Store},
    serve::http::{Answer, json as json_answer, text},
    service::client::{Target, target},
    view::{
        beside::WorkloadName,
        decision::{Attempt, AttemptedRequest, decide},
        endpoints::EndpointsOf,
        inbound::InboundOf,
        profile::{ProfileOf, ProfileTarget},
    },
};
use http::{Method, StatusCode, request::Parts};
use serde_json::json;
use std::{net::IpAddr, sync::Arc, time::Duration};
use tokio::sync::watch;
use weft_kube::meta::ObjectName;
use weft_model::identity::Identity;

/// A longer silence of the API means that what is served may be long out of date.
const LIVE_WITHOUT_API: Duration = Duration::from_secs(100);

#[derive(Clone, Debug)]
pub struct Admin {
    pub store: Arc<Store>,
    pub feed: Feed,
    pub authorities: Authorities,
    pub webhooks: watch::Receiver<bool>,
    pub injections: Arc<Injections>,
}

impl Admin {
    pub fn answer(&self, request: &Parts) -> Answer {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "nothing can be changed here\n");
        }
        let query = Query::parse(request.uri.query().unwrap_or_default());
        match request.uri.path() {
            "/live" | "/ping" => self.live(),
            "/ready" => self.ready(),
            "/metrics" => text(StatusCode::OK, metrics::render(self)),
            "/weft/journal" => self.journal(&query),
            "/weft/authorize" => answered(self.authorize(&query)),
            "/weft/policy" => answered(self.policy(&query)),
            "/weft/endpoints" => answered(self.endpoints(&query)),
            "/weft/profile" => answered(self.profile(&query)),
            _ => text(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }

    fn live(&self) -> Answer {
        let silence = self.feed.pulse.silence();
        if silence > LIVE_WITHOUT_API {
            let why = format!("the Kubernetes API has not answered for {} s\n", silence.as_secs());
            return text(StatusCode::SERVICE_UNAVAILABLE, why);
        }
        text(StatusCode::OK, "live\n")
    }

    fn ready(&self) -> Answer {
        let mut missing: Vec<String> = self
            .feed
            .progress
            .iter()
            .filter(|p| !p.synced())
            .map(|p| format!("the list of {} objects", p.kind))
            .collect();
        if self.authorities.current().is_none() {
            missing.push("a usable issuer".to_owned());
        }
        if !*self.webhooks.borrow() {
            missing.push("certificates of the webhooks".to_owned());
        }
        if missing.is_empty() {
            text(StatusCode::OK, "ready\n")
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", missing.join(", ")))
        }
    }

    /// `?subject=shop/store&since=UNIX_MS`
    fn journal(&self, query: &Query) -> Answer {
        let since = query.get("since").and_then(|s| s.parse().ok()).unwrap_or(0);
        json_answer(&self.store.journal.find(query.get("subject").unwrap_or_default(), since))
    }

    /// `?pod=shop/store-1&port=8080&client-ip=10.77.0.5&client-id=…&method=GET&path=/x&host=…`
    fn authorize(&self, query: &Query) -> Result<serde_json::Value, Refusal> {
        let (workload, port) = workload_and_port(query)?;
        let client_ip = match query.get("client-ip") {
            None => IpAddr::from([0, 0, 0, 0]),
            Some(ip) => ip.parse().map_err(|_| Refusal::Bad("client-ip is not an address".to_owned()))?,
        };
        let client_id = match query.get("client-id").filter(|id| !id.is_empty()) {
            None => None,
            Some(id) => Some(Identity::parse(id).map_err(|e| Refusal::Bad(e.to_string()))?),
        };
        let request = query.get("path").map(|path| AttemptedRequest {
            method: query.get("method").unwrap_or("GET").to_owned(),
            path: path.to_owned(),
            host: query.get("host").unwrap_or_default().to_owned(),
        });
        let attempt = Attempt { workload, port, client_ip, client_id, request };
        let decision = self.store.look(|reader, config| decide(reader, config, &attempt));
        let decision =
            decision.ok_or_else(|| Refusal::Unknown(format!("{} is not known", attempt.workload)))?;
        serde_json::to_value(decision).map_err(|e| Refusal::Bad(e.to_string()))
    }

    /// `?pod=shop/store-1&port=8080`, or `external=shop/vm`: the policy in words.
    fn policy(&self, query: &Query) -> Result<serde_json::Value, Refusal> {
        let (workload, port) = workload_and_port(query)?;
        let subject = InboundOf { workload: workload.clone(), port };
        let policy = self
            .store
            .look(|reader, config| subject.compute(reader, config))
            .ok_or_else(|| Refusal::Unknown(format!("{workload} is not known")))?;
        Ok(render::policy(&policy))
    }

    /// `?dst=store.shop.svc.cluster.local:80&node=NAME`
    fn endpoints(&self, query: &Query) -> Result<serde_json::Value, Refusal> {
        let client_node = query.get("node").map(str::to_owned);
        let subject = match self.target(query, "dst")? {
            Target::Addr(_) => {
                return Err(Refusal::Bad("an address has no endpoints; see /weft/profile".to_owned()));
            }
            Target::Service { service, port } => EndpointsOf { service, port, hostname: None, client_node },
            Target::Member { service, hostname, port } => {
                EndpointsOf { service, port, hostname: Some(hostname), client_node }
            }
        };
        Ok(render::endpoints(&self.store.look(|reader, config| subject.compute(reader, config))))
    }

    /// `?addr=10.77.0.5:8080`, or a name.
    fn profile(&self, query: &Query) -> Result<serde_json::Value, Refusal> {
        let target = match self.target(query, "addr")? {
            Target::Addr(addr) => ProfileTarget::Addr(addr),
            Target::Service { service, port } => ProfileTarget::Service { service, port },
            Target::Member { service, hostname, port } => ProfileTarget::Member { service, hostname, port },
        };
        let subject = ProfileOf {
            target,
            client_node: query.get("node").map(str::to_owned),
            client_namespace: query.get("namespace").unwrap_or_default().to_owned(),
        };
        Ok(render::profile(&self.store.look(|reader, config| subject.compute(reader, config))))
    }

    fn target(&self, query: &Query, name: &'static str) -> Result<Target, Refusal> {
        let text = query.get(name).ok_or_else(|| Refusal::Bad(format!("{name}= is missing")))?;
        target(text, &self.store.config.cluster_domain).map_err(|s| Refusal::Bad(s.message().to_owned()))
    }
}

enum Refusal {
    Bad(String),
    Unknown(String),
}

fn answered(result: Result<serde_json::Value, Refusal>) -> Answer {
    let (status, why) = match result {
        Ok(value) => return json_answer(&value),
        Err(Refusal::Bad(why)) => (StatusCode::BAD_REQUEST, why),
        Err(Refusal::Unknown(why)) => (StatusCode::NOT_FOUND, why),
    };
    let mut answer = json_answer(&json!({"error": why}));
    *answer.status_mut() = status;
    answer
}

fn workload_and_port(query: &Query) -> Result<(WorkloadName, u16), Refusal> {
    let name = |key: &str| {
        let (namespace, name) = query.get(key)?.split_once('/')?;
        Some(ObjectName::new(namespace, name))
    };
    let pod = name("pod").map(WorkloadName::Pod);
    let workload = pod
        .or_else(|| name("external").map(WorkloadName::External))
        .ok_or_else(|| Refusal::Bad("pod=NAMESPACE/NAME or external=NAMESPACE/NAME is missing".to_owned()))?;
    let port = query
        .get("port")
        .and_then(|port| port.parse::<u16>().ok())
        .filter(|port| *port != 0)
        .ok_or_else(|| Refusal::Bad("port= is missing or not a port".to_owned()))?;
    Ok((workload, port))
}
