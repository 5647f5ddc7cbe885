//! Who talks to whom, how fast and with which identity: read off the proxies' metrics.

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    time::{Duration, Instant},
};
use weft_diagnose::prom::{self, Sample};

/// How long a table that is refreshed each second waits for one pod.
pub(crate) const GLANCE: Duration = Duration::from_millis(900);
const SCRAPES_AT_ONCE: usize = 8;

/// All proxies' counters at one moment.
pub(crate) struct Snapshot {
    at: Instant,
    pods: HashMap<String, PodMetrics>,
    /// Pods whose policy does not let their proxies be read.
    pub(crate) refused: BTreeSet<String>,
    /// Pods whose proxies did not answer in time.
    pub(crate) silent: BTreeSet<String>,
}

/// What a pod's proxy answered.
enum Scraped {
    Metrics(PodMetrics),
    Refused,
    Silent,
}

struct PodMetrics {
    /// `shop/web`: the workload, not the replica.
    workload: String,
    samples: Vec<Sample>,
}

/// One row: a workload, what it calls, and how that went since the earlier snapshot.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Edge {
    pub(crate) from: String,
    pub(crate) to: String,
    /// The server's identity, shortened to `account.namespace`; none for plaintext.
    pub(crate) identity: Option<String>,
    pub(crate) requests_per_second: f64,
    /// 0 to 1; none without requests.
    pub(crate) success: Option<f64>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p95_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) open_connections: f64,
}

/// Scrapes every meshed running pod, of one namespace or all. Each has `patience` to answer.
pub(crate) async fn scrape(
    client: &Client,
    namespace: Option<&str>,
    patience: Duration,
) -> kube::Result<Snapshot> {
    let api: Api<Pod> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let pods = api.list(&ListParams::default().labels("linkerd.io/control-plane-ns")).await?;
    let at = Instant::now();
    let scraped = stream::iter(pods)
        .map(|pod| async move {
            let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:4191/proxy/metrics");
            let request = http::Request::get(path).body(Vec::new()).ok()?;
            let answer = tokio::time::timeout(patience, client.request_text(request)).await;
            let scraped = match answer {
                Ok(Ok(text)) => Scraped::Metrics(PodMetrics {
                    workload: workload(&pod),
                    samples: prom::parse(&text, wanted),
                }),
                Ok(Err(kube::Error::Api(status))) if status.code == 403 => Scraped::Refused,
                // A pod that is starting or ending has no metrics; it shows up when it has.
                Ok(Err(_)) => return None,
                Err(_) => Scraped::Silent,
            };
            Some((format!("{namespace}/{name}"), scraped))
        })
        .buffer_unordered(SCRAPES_AT_ONCE)
        .filter_map(|found| async { found })
        .collect::<Vec<_>>()
        .await;
    let mut snapshot =
        Snapshot { at, pods: HashMap::new(), refused: BTreeSet::new(), silent: BTreeSet::new() };
    for (pod, scraped) in scraped {
        match scraped {
            Scraped::Metrics(metrics) => drop(snapshot.pods.insert(pod, metrics)),
            Scraped::Refused => drop(snapshot.refused.insert(pod)),
            Scraped::Silent => drop(snapshot.silent.insert(pod)),
        }
    }
    Ok(snapshot)
}

fn wanted(name: &str) -> bool {
    matches!(
        name,
        "response_total" | "response_latency_ms_bucket" | "tcp_open_connections" | "tcp_open_total"
    )
}

/// The Deployment or Job behind a pod, else the pod itself.
fn workload(pod: &Pod) -> String {
    let namespace = pod.namespace().unwrap_or_default();
    let owner = pod.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    let hash = pod.labels().get("pod-template-hash");
    let name = match owner {
        Some(owner) => hash
            .and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'))
            .unwrap_or(&owner.name)
            .to_string(),
        None => pod.name_any(),
    };
    format!("{namespace}/{name}")
}

/// The rows between two snapshots; a pod that was not there at the earlier one counts from zero. One that was and did not answer
/// has no rows: what it counted meanwhile is not known.
pub(crate) fn edges(before: &Snapshot, now: &Snapshot) -> Vec<Edge> {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
    let mut rows: BTreeMap<(String, String, Option<String>), Sums> = BTreeMap::new();
    for (pod, metrics) in now.pods.iter().filter(|(pod, _)| !before.silent.contains(*pod)) {
        let earlier = before.pods.get(pod).map(|m| by_series(&m.samples)).unwrap_or_default();
        for sample in metrics.samples.iter().filter(|s| s.label("direction") == "outbound") {
            let Some(to) = destination(sample) else { continue };
            let identity = Some(sample.label("server_id")).filter(|id| !id.is_empty()).map(short);
            let row = rows.entry((metrics.workload.clone(), to, identity)).or_default();
            // A counter that went back belongs to a restarted proxy: all of it is new.
            let was = earlier.get(&(sample.name.as_str(), &sample.labels)).copied().unwrap_or(0.0);
            let delta = if sample.value >= was { sample.value - was } else { sample.value };
            match sample.name.as_str() {
                "response_total" if sample.label("classification") == "success" => row.good += delta,
                "response_total" => row.bad += delta,
                "response_latency_ms_bucket" => {
                    let bound = sample.label("le").parse().unwrap_or(f64::INFINITY);
                    *row.latency.entry(bound.to_bits()).or_default() += delta;
                }
                "tcp_open_connections" if sample.label("peer") == "dst" => row.open += sample.value,
                "tcp_open_total" if sample.label("peer") == "dst" => row.opened += sample.value,
                _ => {}
            }
        }
    }
    let rows = rows.into_iter().filter(|(_, sums)| sums.good + sums.bad + sums.open + sums.opened > 0.0);
    rows.map(|((from, to, identity), sums)| sums.edge(from, to, identity, seconds)).collect()
}

#[derive(Default)]
struct Sums {
    good: f64,
    bad: f64,
    open: f64,
    opened: f64,
    /// Upper bound (as ordered bits) to count.
    latency: BTreeMap<u64, f64>,
}

impl Sums {
    fn edge(self, from: String, to: String, identity: Option<String>, seconds: f64) -> Edge {
        let total = self.good + self.bad;
        let buckets: Vec<(f64, f64)> =
            self.latency.iter().map(|(bits, n)| (f64::from_bits(*bits), *n)).collect();
        let quantile = |q| prom::quantile(&buckets, q);
        Edge {
            from,
            to,
            identity,
            requests_per_second: total / seconds,
            success: (total > 0.0).then(|| self.good / total),
            p50_ms: quantile(0.50),
            p95_ms: quantile(0.95),
            p99_ms: quantile(0.99),
            open_connections: self.open,
        }
    }
}

fn by_series(samples: &[Sample]) -> HashMap<(&str, &BTreeMap<String, String>), f64> {
    samples.iter().map(|s| ((s.name.as_str(), &s.labels), s.value)).collect()
}

/// The service if there is one, else the workload or pod, else the address.
fn destination(sample: &Sample) -> Option<String> {
    let namespace = sample.label("dst_namespace");
    for label in ["dst_service", "dst_deployment", "dst_job", "dst_pod"] {
        let name = sample.label(label);
        if !name.is_empty() {
            return Some(if namespace.is_empty() { name.to_string() } else { format!("{namespace}/{name}") });
        }
    }
    let address = sample.label("target_addr");
    (!address.is_empty()).then(|| address.to_string())
}

/// `web.shop` of `web.shop.serviceaccount.identity.linkerd.cluster.local`.
fn short(identity: &str) -> String {
    identity.split(".serviceaccount.").next().unwrap_or(identity).to_string()
}

/// The rows as aligned columns.
pub(crate) fn table(edges: &[Edge]) -> String {
    let header = ["FROM", "TO", "IDENTITY", "RPS", "SUCCESS", "P50", "P95", "P99", "CONNS"];
    let ms = |v: Option<f64>| v.map_or("-".to_string(), |v| format!("{v:.0}ms"));
    let rows = edges.iter().map(|e| {
        [
            e.from.clone(),
            e.to.clone(),
            e.identity.clone().unwrap_or_else(|| "(plaintext)".into()),
            format!("{:.1}", e.requests_per_second),
            e.success.map_or("-".to_string(), |s| format!("{:.1}%", s * 100.0)),
            ms(e.p50_ms),
            ms(e.p95_ms),
            ms(e.p99_ms),
            format!("{:.0}", e.open_connections),
        ]
    });
    columns(header, rows)
}

/// Left-aligned text, right-aligned numbers (columns from the fourth on).
fn columns<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(header.map(str::to_string)).chain(rows).collect();
    let widths: Vec<usize> =
        (0..N).map(|i| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in &rows {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if i < 3 { write!(out, "{cell:<width$}  ") } else { write!(out, "{cell:>width$}  ") };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(at: Instant, text: &str) -> Snapshot {
        let metrics = PodMetrics { workload: "shop/web".into(), samples: prom::parse(text, wanted) };
        let pods = HashMap::from([("shop/web-1".to_string(), metrics)]);
        Snapshot { at, pods, refused: BTreeSet::new(), silent: BTreeSet::new() }
    }

    const LABELS: &str = r#"direction="outbound",dst_namespace="shop",dst_service="store",server_id="store.shop.serviceaccount.identity.linkerd.cluster.local""#;

    #[test]
    fn rates_are_differences_over_time() {
        let start = Instant::now();
        let text = |good: u32, bad: u32| {
            format!(
                "response_total{{{LABELS},classification=\"success\"}} {good}\n\
                 response_total{{{LABELS},classification=\"failure\"}} {bad}\n\
                 response_latency_ms_bucket{{{LABELS},le=\"10\"}} {good}\n\
                 response_latency_ms_bucket{{{LABELS},le=\"+Inf\"}} {good}\n\
                 response_total{{direction=\"inbound\",classification=\"success\"}} 99\n"
            )
        };
        let before = snapshot(start, &text(100, 10));
        let now = snapshot(start + Duration::from_secs(2), &text(118, 12));
        let edges = edges(&before, &now);
        assert_eq!(edges.len(), 1);
        assert_eq!((edges[0].from.as_str(), edges[0].to.as_str()), ("shop/web", "shop/store"));
        assert_eq!(edges[0].identity.as_deref(), Some("store.shop"));
        assert!((edges[0].requests_per_second - 10.0).abs() < 1e-9);
        assert_eq!(edges[0].success, Some(0.9));
        assert!(edges[0].p50_ms.is_some_and(|p| p < 10.0));
    }

    #[test]
    fn a_restarted_proxy_does_not_count_backwards() {
        let start = Instant::now();
        let text = |n: u32| format!("response_total{{{LABELS},classification=\"success\"}} {n}\n");
        let edges = edges(&snapshot(start, &text(1000)), &snapshot(start + Duration::from_secs(1), &text(5)));
        assert!((edges[0].requests_per_second - 5.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_counted_before_an_unanswered_look_is_no_traffic_of_the_moment() {
        let start = Instant::now();
        let text = format!("response_total{{{LABELS},classification=\"success\"}} 1000\n");
        let mut before = snapshot(start, "");
        before.pods.clear();
        let now = snapshot(start + Duration::from_secs(1), &text);
        assert_eq!(edges(&before, &now).len(), 1, "a pod that is new");
        before.silent.insert("shop/web-1".to_string());
        assert!(edges(&before, &now).is_empty());
    }

    #[test]
    fn the_table_is_aligned() {
        let text = table(&[]);
        assert!(text.starts_with("FROM  TO  IDENTITY"));
    }
}
