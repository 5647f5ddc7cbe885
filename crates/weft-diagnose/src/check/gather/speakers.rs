//! What the controller and the proxies say of themselves.

use super::{
    super::{
        answers::faults::MINUTES,
        facts::{Controller, Facts, Plane, Pod, Proxy, Read, ServiceView, Unread},
        names::{ADMIN_PORT, CONTROLLER_ADMIN, CONTROLLER_SERVICE},
    },
    ask::{AT_ONCE, Asker, PATIENCE, skew},
};
use crate::prom::{self, Sample};
use futures_util::{StreamExt as _, stream};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};
use weft_kube::{api::ApiError, core::service::Service, meta::ObjectName};
use weft_wire::record::{CONNECTIONS_PATH, Connections};

/// Ports of Services that the controller is asked about.
const VIEWS: usize = 200;
/// Records of each proxy.
const RECORDS: usize = 300;
/// Between the two looks at counters that tell no time.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// Families of the controller that checks look at.
const CONTROLLER_FAMILIES: [&str; 2] = ["weft_api_silence_seconds", "issuer_cert_ttl_seconds"];

/// Families of proxies that checks look at.
fn is_wanted(name: &str) -> bool {
    const EXACT: [&str; 9] = [
        "control_identity_cert_expiration_timestamp_seconds",
        "control_identity_cert_refresh_timestamp_seconds",
        "identity_cert_expiration_timestamp_seconds",
        "weft_identity_cert_anchor",
        "weft_identity_trust_anchor_expiration_timestamp_seconds",
        "weft_cgroup_throttled_seconds_total",
        "process_start_time_seconds",
        "tcp_open_connections",
        "inbound_http_authz_deny_total",
    ];
    EXACT.contains(&name) || name == "inbound_tcp_authz_deny_total" || name.ends_with("_errors_total")
}

/// Why nobody behind the API answered.
fn unread(error: ApiError) -> Unread {
    match error {
        ApiError::Timeout => Unread::Silent(format!("no answer within {} s", PATIENCE.as_secs())),
        other => other.into(),
    }
}

/// weft's controller; `None` where there is none.
pub(super) async fn controller(ask: &Asker<'_>, facts: &Facts) -> Option<Read<Controller>> {
    match facts.plane() {
        Ok(None | Some(Plane::Linkerd)) => return None,
        Ok(Some(Plane::Weft | Plane::Local)) => {}
        Err(unread) => return Some(Err(unread)),
    }
    let namespace = &facts.asked.control_namespace;
    let path = |rest: &str| {
        format!("/api/v1/namespaces/{namespace}/services/{CONTROLLER_SERVICE}:{CONTROLLER_ADMIN}/proxy{rest}")
    };
    let waits = match ask.behind(&path("/ready")).await {
        Ok(_) => None,
        // Its own words have no reason with them.
        Err(ApiError::Status { code: 503, reason, message, .. }) if reason.is_empty() => {
            Some(message.trim().to_owned())
        }
        Err(error) => return Some(Err(unread(error))),
    };
    let since = facts.now_unix_ms.saturating_sub(MINUTES * 60_000);
    let (journal_path, metrics_path) = (path(&format!("/weft/journal?since={since}")), path("/metrics"));
    let (journal, metrics) = tokio::join!(ask.behind(&journal_path), ask.behind(&metrics_path));
    let journal = match journal {
        Ok(Some((body, _))) => {
            serde_json::from_slice(&body).map_err(|e| Unread::Silent(format!("the journal: {e}")))
        }
        Ok(None) => Err(Unread::Silent("this controller keeps no journal".into())),
        Err(error) => Err(unread(error)),
    };
    let (samples, clock) = match metrics {
        Ok(Some((body, clock))) => {
            (prom::parse(&String::from_utf8_lossy(&body), |name| CONTROLLER_FAMILIES.contains(&name)), clock)
        }
        _ => (Vec::new(), None),
    };
    let (endpoints, not_asked) = views(ask, facts, path("/weft/endpoints")).await;
    Some(Ok(Controller { waits, clock, samples, journal, endpoints, not_asked }))
}

/// What it would answer about the ports of Services.
async fn views(ask: &Asker<'_>, facts: &Facts, path: String) -> (Vec<ServiceView>, usize) {
    let domain =
        facts.setting(&["clusterDomain"]).ok().flatten().and_then(Value::as_str).unwrap_or("cluster.local");
    let wanted: Vec<(ObjectName, u16)> = facts
        .services
        .iter()
        .flatten()
        .filter(|service| is_comparable(service))
        .filter(|service| {
            facts.asked.namespace.as_ref().is_none_or(|only| *only == service.metadata.namespace)
        })
        .flat_map(|service| {
            let ports = service.spec.ports.iter().filter(|port| port.is_tcp());
            ports.map(move |port| (service.metadata.key(), port.port))
        })
        .collect();
    let not_asked = wanted.len().saturating_sub(VIEWS);
    let views = stream::iter(wanted.into_iter().take(VIEWS)).map(|(service, port)| {
        let question = format!("{path}?dst={}.{}.svc.{domain}:{port}", service.name, service.namespace);
        async move {
            let endpoints = match ask.behind(&question).await {
                Ok(Some((body, _))) => endpoints_of(&body),
                Ok(None) => Err(Unread::Silent("this controller does not tell".into())),
                Err(error) => Err(unread(error)),
            };
            ServiceView { service, port, endpoints }
        }
    });
    (views.buffered(AT_ONCE).collect().await, not_asked)
}

/// Services of which the EndpointSlices say exactly what callers are to get.
fn is_comparable(service: &Service) -> bool {
    let all = service.spec.internal_traffic_policy.as_deref() != Some("Local");
    !service.spec.selector.is_empty() && !service.is_external_name() && !service.is_headless() && all
}

fn endpoints_of(body: &[u8]) -> Read<Vec<(String, String)>> {
    let view: Value = serde_json::from_slice(body).map_err(|e| Unread::Silent(e.to_string()))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = view["endpoints"].as_array().into_iter().flatten();
    Ok(all.map(|endpoint| (text(&endpoint["addr"]), text(&endpoint["identity"]))).collect())
}

/// Every meshed pod that should answer.
pub(super) async fn proxies(ask: &Asker<'_>, facts: &Facts) -> BTreeMap<ObjectName, Read<Proxy>> {
    let Ok(pods) = facts.meshed_pods() else { return BTreeMap::new() };
    let running: Vec<&Pod> = pods.filter(|pod| pod.runs()).collect();
    let began = Instant::now();
    let asked = stream::iter(running).map(|pod| async move { (pod.name(), proxy(ask, &pod.name()).await) });
    let mut all: BTreeMap<ObjectName, Read<Proxy>> = asked.buffer_unordered(AT_ONCE).collect().await;
    // Those that keep no records have only counters, which say nothing about when.
    let without: Vec<ObjectName> = all
        .iter()
        .filter(|(_, read)| read.as_ref().is_ok_and(|proxy| proxy.connections.is_none()))
        .map(|(name, _)| name.clone())
        .collect();
    if without.is_empty() {
        return all;
    }
    tokio::time::sleep(LOOK_AGAIN.saturating_sub(began.elapsed())).await;
    let again = stream::iter(without).map(|name| async move { (name.clone(), metrics(ask, &name).await) });
    let again: Vec<(ObjectName, Read<Vec<Sample>>)> = again.buffer_unordered(AT_ONCE).collect().await;
    for (name, later) in again {
        if let (Some(Ok(proxy)), Ok(later)) = (all.get_mut(&name), later) {
            proxy.later = Some((began.elapsed().as_secs_f64(), later));
        }
    }
    all
}

fn path(pod: &ObjectName, rest: &str) -> String {
    format!("/api/v1/namespaces/{}/pods/{}:{ADMIN_PORT}/proxy{rest}", pod.namespace, pod.name)
}

async fn metrics(ask: &Asker<'_>, pod: &ObjectName) -> Read<Vec<Sample>> {
    match ask.behind(&path(pod, "/metrics")).await {
        Ok(Some((body, _))) => Ok(prom::parse(&String::from_utf8_lossy(&body), is_wanted)),
        Ok(None) => Err(Unread::Silent("it has no metrics".into())),
        Err(error) => Err(unread(error)),
    }
}

async fn proxy(ask: &Asker<'_>, pod: &ObjectName) -> Read<Proxy> {
    let page = match ask.behind(&path(pod, "/metrics")).await {
        Ok(Some(page)) => page,
        Ok(None) => return Err(Unread::Silent("it has no metrics".into())),
        Err(error) => return Err(unread(error)),
    };
    let samples = prom::parse(&String::from_utf8_lossy(&page.0), is_wanted);
    let before = SystemTime::now();
    let records =
        ask.behind(&path(pod, &format!("{CONNECTIONS_PATH}?limit={RECORDS}"))).await.map_err(unread)?;
    let after = SystemTime::now();
    let mut proxy = Proxy { samples, later: None, connections: None, clock: page.1 };
    if let Some((body, _)) = records {
        let told: Connections =
            serde_json::from_slice(&body).map_err(|error| Unread::Silent(format!("its records: {error}")))?;
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(told.now_unix_ms);
        proxy.clock = skew(at, Duration::ZERO, before, after);
        proxy.connections = Some(told.connections);
    }
    Ok(proxy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn endpoints_are_read_with_their_identity() {
        let body = json!({"exists": true, "endpoints": [{"addr": "10.0.0.1:80", "identity": "a.b"}, {"addr": "10.0.0.2:80", "identity": null}]});
        let read = endpoints_of(body.to_string().as_bytes()).unwrap();
        assert_eq!(
            read,
            [("10.0.0.1:80".to_owned(), "a.b".to_owned()), ("10.0.0.2:80".to_owned(), String::new())]
        );
        assert!(endpoints_of(b"<html>").is_err());
    }

    #[test]
    fn only_what_checks_look_at_is_kept() {
        for name in ["tcp_open_connections", "outbound_http_errors_total", "inbound_tcp_authz_deny_total"] {
            assert!(is_wanted(name), "{name}");
        }
        assert!(!is_wanted("response_latency_ms_bucket"));
    }
}
