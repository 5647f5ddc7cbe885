//! Asks everybody who may know something: the API, the controller, the proxies at both ends. Nobody's silence stops the
//! explanation; it is told as a gap instead.

use crate::evidence::{Evidence, PodFacts, ServiceFacts, Side};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime},
};
use weft_wire::record::{CONNECTIONS_PATH, ConnectionRecord, Connections, Decision, JournalEntry};

/// Each question to one pod or to the controller.
const ASK_DEADLINE: Duration = Duration::from_secs(3);
/// At most so many pods of a side are asked.
const PODS_ASKED: usize = 8;
/// How far back the journal is read.
const JOURNAL_WINDOW: Duration = Duration::from_secs(15 * 60);

/// Where the controller answers: namespace, service and port.
pub struct ControllerAddress {
    pub namespace: String,
    pub service: String,
    pub port: u16,
}

/// One end as the API knows it.
pub struct End {
    pub title: String,
    pub namespace: String,
    pub pods: Vec<Pod>,
}

/// What is asked. `trust_domain` makes the identities that the pods should have.
pub struct Question {
    pub from: End,
    pub to: End,
    pub service: Option<ServiceFacts>,
    pub port: u16,
    pub controller: ControllerAddress,
    pub trust_domain: String,
}

/// Collects the evidence.
pub async fn gather(client: &Client, question: Question) -> Evidence {
    let Question { from, to, service, port, controller, trust_domain } = question;
    let mut unanswered = Vec::new();
    let facts = |end: &End| -> Vec<PodFacts> {
        end.pods.iter().map(|pod| pod_facts(pod, &controller.namespace, &trust_domain)).collect()
    };
    let (mut from_pods, mut to_pods) = (facts(&from), facts(&to));
    let from_ips: Vec<IpAddr> = from_pods.iter().filter_map(|p| p.ip).collect();
    let mut to_ips: Vec<IpAddr> = to_pods.iter().filter_map(|p| p.ip).collect();
    to_ips.extend(service.as_ref().and_then(|s| s.cluster_ip));
    let service_port = service.as_ref().and_then(|s| s.port);
    let towards = |addr: Option<SocketAddr>| {
        addr.is_some_and(|a| to_ips.contains(&a.ip()) && (a.port() == port || Some(a.port()) == service_port))
    };

    let sent = |record: &ConnectionRecord| towards(record.server) || towards(record.endpoint);
    let received =
        |record: &ConnectionRecord| from_ips.contains(&record.client.ip()) && was_for(record, port);
    records(client, &mut from_pods, "outbound", sent, &mut unanswered).await;
    records(client, &mut to_pods, "inbound", received, &mut unanswered).await;

    let decisions = decisions(client, &controller, &from_pods, &to_pods, port, &mut unanswered).await;
    let journal = journal(client, &controller, &from_pods, &to_pods, service.as_ref(), &mut unanswered).await;
    Evidence {
        from: Side { title: from.title, namespace: from.namespace, pods: from_pods },
        to: Side { title: to.title, namespace: to.namespace, pods: to_pods },
        port,
        service,
        decisions,
        journal,
        unanswered,
        now_unix_ms: now_unix_ms(),
    }
}

/// Whether an inbound connection was for this port. A direct one came to the proxy's own port; its transport header, its
/// endpoint or its refusal names the application's.
fn was_for(record: &ConnectionRecord, port: u16) -> bool {
    let names = |addr: Option<SocketAddr>| addr.is_some_and(|a| a.port() == port);
    let refused = record.fault.as_ref().and_then(|f| f.subject.as_deref());
    names(record.server)
        || names(record.endpoint)
        || names(refused.and_then(|subject| subject.parse().ok()))
        || record.events.iter().any(|e| e.text.starts_with(&format!("for port {port} ")))
}

fn now_unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// What the Pod object says.
fn pod_facts(pod: &Pod, control_ns: &str, trust_domain: &str) -> PodFacts {
    let status = pod.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
    let namespace = pod.namespace().unwrap_or_default();
    let meshed = pod.labels().get("linkerd.io/control-plane-ns").is_some();
    let account =
        pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_else(|| "default".into());
    let identity =
        meshed.then(|| format!("{account}.{namespace}.serviceaccount.identity.{control_ns}.{trust_domain}"));
    let is_ready = ready.is_some_and(|c| c.status == "True");
    let changed = ready.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0.as_millisecond());
    PodFacts {
        name: pod.name_any(),
        ip: status.pod_ip.as_deref().and_then(|ip| ip.parse().ok()),
        phase: status.phase.clone().unwrap_or_default(),
        ready: is_ready,
        ready_changed_unix_ms: changed.and_then(|ms| u64::try_from(ms).ok()),
        waiting: if is_ready { None } else { waiting(pod).or_else(|| ready.and_then(|c| c.message.clone())) },
        meshed,
        identity,
        records: Vec::new(),
        namespace,
    }
}

/// The first container that waits or ended, and why.
fn waiting(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let all =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    all.filter_map(|container| {
        let state = container.state.as_ref()?;
        if let Some(waiting) = &state.waiting {
            let reason = waiting.reason.as_deref().unwrap_or("waiting");
            let message = waiting.message.as_deref().map(|m| format!(": {m}")).unwrap_or_default();
            return Some(format!("container {}: {reason}{message}", container.name));
        }
        let ended = state.terminated.as_ref().filter(|t| t.exit_code != 0)?;
        Some(format!("container {} exited with {}", container.name, ended.exit_code))
    })
    .next()
}

/// Fills in what each pod's proxy remembers of the other side.
async fn records(
    client: &Client,
    pods: &mut [PodFacts],
    direction: &str,
    concerns: impl Fn(&ConnectionRecord) -> bool,
    unanswered: &mut Vec<String>,
) {
    let asked: Vec<_> = pods
        .iter()
        .enumerate()
        .filter(|(_, pod)| pod.meshed && pod.ip.is_some() && pod.phase == "Running")
        .take(PODS_ASKED)
        .map(|(index, pod)| {
            let path = format!(
                "/api/v1/namespaces/{}/pods/{}:4191/proxy{CONNECTIONS_PATH}?direction={direction}&limit=500",
                pod.namespace, pod.name
            );
            (index, pod.title(), path)
        })
        .collect();
    let answers: Vec<_> = stream::iter(asked)
        .map(|(index, title, path)| async move { (index, title, ask::<Connections>(client, &path).await) })
        .buffer_unordered(PODS_ASKED)
        .collect()
        .await;
    for (index, title, answer) in answers {
        match answer {
            Ok(answer) => {
                let wanted = |r: &ConnectionRecord| r.direction.as_str() == direction && concerns(r);
                pods[index].records = answer.connections.into_iter().filter(wanted).collect();
            }
            Err(error) => unanswered.push(format!("the proxy of {title} did not answer: {error}")),
        }
    }
}

/// What the policies say now: the first client pod against each server pod.
async fn decisions(
    client: &Client,
    controller: &ControllerAddress,
    from: &[PodFacts],
    to: &[PodFacts],
    port: u16,
    unanswered: &mut Vec<String>,
) -> Vec<Decision> {
    let caller = from.iter().find(|p| p.ip.is_some()).or(from.first());
    let mut decisions = Vec::new();
    for pod in to.iter().filter(|p| p.meshed).take(PODS_ASKED) {
        let mut path = controller.path("/weft/authorize");
        path.push_str(&format!("?pod={}/{}&port={port}", pod.namespace, pod.name));
        if let Some(ip) = caller.and_then(|c| c.ip) {
            path.push_str(&format!("&client-ip={ip}"));
        }
        if let Some(identity) = caller.and_then(|c| c.identity.as_deref()) {
            path.push_str(&format!("&client-id={identity}"));
        }
        match ask::<Decision>(client, &path).await {
            Ok(decision) => decisions.push(decision),
            Err(error) => {
                unanswered.push(format!("the controller could not be asked about {}: {error}", pod.title()));
                break;
            }
        }
    }
    decisions
}

async fn journal(
    client: &Client,
    controller: &ControllerAddress,
    from: &[PodFacts],
    to: &[PodFacts],
    service: Option<&ServiceFacts>,
    unanswered: &mut Vec<String>,
) -> Vec<JournalEntry> {
    let window = u64::try_from(JOURNAL_WINDOW.as_millis()).unwrap_or(u64::MAX);
    let since = now_unix_ms().saturating_sub(window);
    let path = format!("{}?since={since}", controller.path("/weft/journal"));
    let entries = match ask::<Vec<JournalEntry>>(client, &path).await {
        Ok(entries) => entries,
        Err(error) => {
            unanswered.push(format!("the journal could not be read: {error}"));
            return Vec::new();
        }
    };
    let mut names: Vec<String> = from.iter().chain(to).map(PodFacts::title).collect();
    names.extend(service.map(|s| format!("{}/{}", s.namespace, s.name)));
    let from_ips: Vec<String> = from.iter().filter_map(|p| p.ip).map(|ip| format!("{ip}:")).collect();
    entries.into_iter().filter(|entry| concerns(entry, &names, &from_ips)).collect()
}

/// Changes of either side's objects, and faults between the two: not those that a proxy had with others.
fn concerns(entry: &JournalEntry, names: &[String], from_ips: &[String]) -> bool {
    let Some(fault) = &entry.fault else { return names.iter().any(|name| entry.subject.contains(name)) };
    let peer = fault.peer.as_deref().unwrap_or_default();
    names.contains(&entry.source) && from_ips.iter().any(|ip| peer.starts_with(ip) || entry.text.contains(ip))
}

impl ControllerAddress {
    pub(crate) fn path(&self, path: &str) -> String {
        format!("/api/v1/namespaces/{}/services/{}:{}/proxy{path}", self.namespace, self.service, self.port)
    }
}

async fn ask<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, String> {
    let request = http::Request::get(path).body(Vec::new()).map_err(|e| e.to_string())?;
    match tokio::time::timeout(ASK_DEADLINE, client.request::<T>(request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(status.message.clone()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer in {} s", ASK_DEADLINE.as_secs())),
    }
}
