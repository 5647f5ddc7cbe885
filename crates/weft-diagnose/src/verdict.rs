//! From evidence to one answer.

use crate::evidence::{Evidence, PodFacts};
use serde::Serialize;
use std::{collections::BTreeMap, net::SocketAddr};
use weft_fault::Code;
use weft_wire::record::{ConnectionRecord, Decision};

/// The answer to "can FROM reach TO, and if not, why".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub outcome: Outcome,
    /// The code of the failure, if there is one.
    pub code: Option<&'static str>,
    /// One sentence.
    pub says: String,
    /// The evidence, in the order a reader needs it.
    pub because: Vec<String>,
    pub remedy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Allowed, and seen to work.
    Works,
    /// Nothing stands in the way, and nothing was tried.
    WouldWork,
    Denied,
    /// The application, not the mesh.
    ApplicationDown,
    NoEndpoints,
    Failing,
    Unknown,
}

/// Decides. What the policies say now comes first, then what the proxies saw last.
pub fn decide(evidence: &Evidence) -> Verdict {
    if let Some(verdict) = nobody_there(evidence) {
        return verdict;
    }
    if let Some(verdict) = denied_by_policy(evidence) {
        return verdict;
    }
    let last = last_contact(evidence);
    if let Some(contact) = &last
        && contact.failed()
    {
        return failing(evidence, contact);
    }
    if let Some(contact) = last {
        return works(evidence, &contact);
    }
    if evidence.to.pods.iter().all(|pod| !pod.ready) {
        return no_endpoints(evidence);
    }
    nothing_seen(evidence)
}

/// The newest record of either end, and the pod that made it.
struct Contact<'a> {
    pod: &'a PodFacts,
    record: &'a ConnectionRecord,
    at_client: bool,
}

impl Contact<'_> {
    /// A failure that good answers followed on the same connection is over.
    fn failed(&self) -> bool {
        self.record.fault.is_some() && self.record.good_since_fault == 0
    }
    /// When it was last known to be so.
    fn at_ms(&self) -> u64 {
        last_ms(self.record)
    }
}

/// By what it did, not by being open: an idle connection says nothing about now.
fn last_ms(record: &ConnectionRecord) -> u64 {
    let last_event = record.events.last().map_or(0, |e| e.at_us);
    let last = record.duration_us.unwrap_or(0).max(last_event).max(record.answered_us);
    record.started_unix_ms + last / 1_000
}

/// The client's own view is the one the user asked about; the server's view explains it where the two meet.
fn last_contact(evidence: &Evidence) -> Option<Contact<'_>> {
    let client = newest_of(&evidence.from.pods, true);
    let server = newest_of(&evidence.to.pods, false);
    match (client, server) {
        (Some(client), Some(server)) => {
            // The server's fault is nearer to the cause than the client's report of it.
            let same_failure =
                client.failed() && server.failed() && server.at_ms().abs_diff(client.at_ms()) < 5_000;
            Some(if same_failure || server.at_ms() > client.at_ms() + 5_000 { server } else { client })
        }
        (client, server) => client.or(server),
    }
}

fn newest_of(pods: &[PodFacts], at_client: bool) -> Option<Contact<'_>> {
    pods.iter()
        .flat_map(|pod| pod.records.iter().map(move |record| Contact { pod, record, at_client }))
        .max_by_key(Contact::at_ms)
}

fn nobody_there(evidence: &Evidence) -> Option<Verdict> {
    if !evidence.to.pods.is_empty() {
        return None;
    }
    Some(Verdict {
        outcome: Outcome::NoEndpoints,
        code: Some(Code::NoEndpoints.id()),
        says: format!("{} has no pods", evidence.to.title),
        because: vec![format!(
            "no pod in namespace {} is selected by {}",
            evidence.to.namespace, evidence.to.title
        )],
        remedy: Some("Start the workload, or correct the service's selector.".into()),
    })
}

fn denied_by_policy(evidence: &Evidence) -> Option<Verdict> {
    let denied: Vec<&Decision> = evidence.decisions.iter().filter(|d| !d.allowed).collect();
    let first = denied.first()?;
    let code = first.code.as_deref().and_then(Code::find).unwrap_or(Code::NoRuleAllows);
    let from = &evidence.from;
    let identity = from.pods.iter().find_map(|p| p.identity.clone());
    let meshed = from.pods.iter().any(|p| p.meshed);
    let mut because = vec![match (&identity, meshed) {
        (Some(identity), true) => format!("{} presents the identity {identity}", from.title),
        _ => format!("{} is not meshed, so it presents no identity", from.title),
    }];
    because.push(format!("{} decides for port {} of {}", first.server, evidence.port, evidence.to.title));
    if first.authorizations.is_empty() {
        because.push("no authorization is in force for it, so nobody is allowed".into());
    }
    for accepts in &first.authorizations {
        let clients = if accepts.clients.is_empty() { "nobody".into() } else { accepts.clients.join(", ") };
        because.push(format!("{} allows {clients} from {}", accepts.name, accepts.networks.join(", ")));
    }
    if denied.len() < evidence.decisions.len() {
        because.push(format!("{} of {} server pods refuse it", denied.len(), evidence.decisions.len()));
    }
    because.extend(last_refusal(evidence));
    let remedy = match (identity, meshed) {
        (Some(identity), true) => format!(
            "If {} should reach {}, allow it: add {identity} to a MeshTLSAuthentication that an AuthorizationPolicy for \
             {} requires.",
            from.title, evidence.to.title, first.server
        ),
        _ => format!(
            "Inject {} (annotation linkerd.io/inject: enabled) so that it has an identity, and allow that; or allow its \
             network by a NetworkAuthentication for {}.",
            from.title, first.server
        ),
    };
    Some(Verdict {
        outcome: Outcome::Denied,
        code: Some(code.id()),
        says: format!("{} may not reach {} on port {}", from.title, evidence.to.title, evidence.port),
        because,
        remedy: Some(remedy),
    })
}

/// When a proxy last refused it, so that the reader sees policy and practice agree.
fn last_refusal(evidence: &Evidence) -> Option<String> {
    let refused = |r: &&ConnectionRecord| r.fault.as_ref().is_some_and(|f| f.code.starts_with("POL-"));
    let (pod, record) = evidence
        .to
        .pods
        .iter()
        .flat_map(|pod| pod.records.iter().filter(refused).map(move |r| (pod, r)))
        .max_by_key(|(_, r)| last_ms(r))?;
    let ago = crate::render::ago(evidence.now_unix_ms, last_ms(record));
    Some(format!(
        "{}'s proxy last refused it {ago}, {} in this connection",
        pod.title(),
        times(record.faults)
    ))
}

fn times(n: u64) -> String {
    match n {
        1 => "once".into(),
        n => format!("{n} times"),
    }
}

fn failing(evidence: &Evidence, contact: &Contact<'_>) -> Verdict {
    // `failed()` was asked before.
    let Some(fault) = &contact.record.fault else { return nothing_seen(evidence) };
    let code = Code::find(&fault.code);
    // A direct connection came to the proxy's own port; the one that matters is the application's.
    let served = contact
        .record
        .server
        .map(|a| if contact.at_client { a } else { SocketAddr::new(a.ip(), evidence.port) });
    let endpoint = contact.record.endpoint.or(served);
    let since = failing_since(contact);
    let ago = crate::render::ago(evidence.now_unix_ms, contact.at_ms());
    let mut because = vec![format!(
        "{}'s proxy ({}) recorded {} {} {ago}",
        contact.pod.title(),
        if contact.at_client { "client" } else { "server" },
        fault.code,
        fault.says
    )];
    if let Some(endpoint) = endpoint {
        because.push(format!(
            "endpoint {endpoint}, failing since {}",
            crate::render::clock(fault.since_unix_ms.map_or(since, |s| s.min(since)))
        ));
    }
    if !fault.facts.is_empty() {
        let facts: Vec<_> = fault.facts.iter().map(|(k, v)| format!("{k}={v}")).collect();
        because.push(format!("evidence: {}", facts.join(" ")));
    }
    because.extend(fault.causes.iter().map(|cause| format!("because {cause}")));
    because.extend(not_ready(evidence));
    let application =
        matches!(code, Some(Code::AppRefused | Code::AppConnectTimeout | Code::AppClosed | Code::AppNotHttp));
    let no_endpoints = matches!(code, Some(Code::NoEndpoints | Code::ServiceUnknown));
    let policy = fault.code.starts_with("POL-");
    let says = if application {
        format!("the application of {} is down: {}", evidence.to.title, fault.says)
    } else if policy {
        // What the policies say now was asked for any request: some are allowed.
        format!(
            "a request of {} was refused; the policies allow it others, or allow it since",
            evidence.from.title
        )
    } else {
        format!("{} cannot reach {}: {}", evidence.from.title, evidence.to.title, fault.says)
    };
    Verdict {
        outcome: match () {
            () if application => Outcome::ApplicationDown,
            () if no_endpoints => Outcome::NoEndpoints,
            () => Outcome::Failing,
        },
        code: code.map(Code::id),
        says,
        because,
        remedy: Some(fault.remedy.clone()),
    }
}

/// The start of the unbroken run of failures with this code that ends with `contact`.
fn failing_since(contact: &Contact<'_>) -> u64 {
    let code = contact.record.fault.as_ref().map(|f| f.code.as_str());
    let by_time: BTreeMap<u64, &ConnectionRecord> =
        contact.pod.records.iter().map(|record| (record.started_unix_ms, record)).collect();
    by_time
        .values()
        .rev()
        .skip_while(|r| r.started_unix_ms > contact.record.started_unix_ms)
        .take_while(|r| r.fault.as_ref().map(|f| f.code.as_str()) == code)
        .last()
        .map_or(contact.record.started_unix_ms, |r| r.started_unix_ms)
}

fn works(evidence: &Evidence, contact: &Contact<'_>) -> Verdict {
    let record = contact.record;
    let ago = crate::render::ago(evidence.now_unix_ms, contact.at_ms());
    let mut because = vec![];
    let statuses: Vec<_> = record.statuses.iter().map(|(status, n)| format!("{n} × {status}")).collect();
    let traffic = match (record.requests, statuses.is_empty()) {
        (0, _) => format!("{} bytes read, {} written", record.read_bytes, record.written_bytes),
        (n, true) => format!("{n} requests"),
        (n, false) => format!("{n} requests: {}", statuses.join(", ")),
    };
    because.push(format!(
        "last seen {ago} by {}'s proxy: {} to {}, {traffic}",
        contact.pod.title(),
        record.protocol.as_deref().unwrap_or("a connection"),
        record.endpoint.or(record.server).map_or("?".to_string(), |a| a.to_string()),
    ));
    because.push(match (&record.client_identity, &record.server_identity) {
        (Some(client), Some(server)) => format!("mTLS: {client} → {server}"),
        (Some(client), None) => format!("mTLS: the client is {client}"),
        (None, Some(server)) => format!("mTLS: the server is {server}"),
        (None, None) => format!("in plaintext ({})", record.tls.as_deref().unwrap_or("no TLS")),
    });
    because.extend(allowed_by(evidence));
    because.extend(not_ready(evidence));
    Verdict {
        outcome: Outcome::Works,
        code: None,
        says: format!("{} reaches {} on port {}", evidence.from.title, evidence.to.title, evidence.port),
        because,
        remedy: None,
    }
}

fn allowed_by(evidence: &Evidence) -> Option<String> {
    let decision = evidence.decisions.first()?;
    let by = decision.authorization.as_deref()?;
    let audit = if decision.audited { " (audit only: it would be denied otherwise)" } else { "" };
    Some(format!("{} allows it by {by}{audit}", decision.server))
}

fn not_ready(evidence: &Evidence) -> Vec<String> {
    let pods = evidence.to.pods.iter().filter(|p| !p.ready);
    pods.map(|pod| {
        let since = pod.ready_changed_unix_ms.map(|at| format!(" since {}", crate::render::clock(at)));
        let why = pod.waiting.as_deref().map(|w| format!(": {w}"));
        format!("pod {} is not ready{}{}", pod.title(), since.unwrap_or_default(), why.unwrap_or_default())
    })
    .collect()
}

fn no_endpoints(evidence: &Evidence) -> Verdict {
    Verdict {
        outcome: Outcome::NoEndpoints,
        code: Some(Code::NoEndpoints.id()),
        says: format!("no pod of {} is ready", evidence.to.title),
        because: not_ready(evidence),
        remedy: Some(Code::NoEndpoints.remedy().into()),
    }
}

fn nothing_seen(evidence: &Evidence) -> Verdict {
    let mut because = Vec::new();
    because.extend(allowed_by(evidence));
    let ready = evidence.to.pods.iter().filter(|p| p.ready).count();
    because.push(format!("{ready} of {} pods of {} are ready", evidence.to.pods.len(), evidence.to.title));
    because.extend(not_ready(evidence));
    because.push(format!("no proxy remembers a connection from {} to it", evidence.from.title));
    because.extend(evidence.unanswered.iter().cloned());
    // Without the controller's word nothing can be promised.
    let (outcome, says) = if evidence.decisions.is_empty() {
        (Outcome::Unknown, "unknown: the controller could not be asked, and nothing was seen".to_string())
    } else {
        let says =
            format!("{} may reach {}, and nothing was tried yet", evidence.from.title, evidence.to.title);
        (Outcome::WouldWork, says)
    };
    Verdict { outcome, code: None, says, because, remedy: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Side;
    use weft_fault::Fault;
    use weft_wire::record::{Accepts, Direction};

    const NOW: u64 = 1_000_000;

    fn record(direction: Direction, started_unix_ms: u64, fault: Option<Fault>) -> ConnectionRecord {
        ConnectionRecord {
            id: format!("c{started_unix_ms}"),
            peer_id: None,
            direction,
            client: "10.77.0.2:40000".parse().unwrap(),
            server: Some("10.78.0.9:80".parse().unwrap()),
            service: None,
            endpoint: Some("10.77.0.3:8080".parse().unwrap()),
            client_identity: Some("web.shop".into()),
            server_identity: Some("store.shop".into()),
            tls: Some("mutual".into()),
            protocol: Some("HTTP/1.1".into()),
            policy: None,
            authorization: None,
            started_unix_ms,
            duration_us: Some(1_000),
            events: vec![],
            events_dropped: 0,
            requests: 1,
            statuses: BTreeMap::from([(200, 1)]),
            read_bytes: 1,
            written_bytes: 1,
            ended: Some("closed".into()),
            faults: u64::from(fault.is_some()),
            good_since_fault: 0,
            answered_us: 0,
            fault: fault.map(|f| f.record()),
        }
    }

    fn pod(name: &str, ready: bool, records: Vec<ConnectionRecord>) -> PodFacts {
        PodFacts {
            namespace: "shop".into(),
            name: name.into(),
            ready,
            meshed: true,
            identity: Some(format!("{name}.shop")),
            records,
            ..PodFacts::default()
        }
    }

    fn evidence(client: Vec<ConnectionRecord>, server: Vec<ConnectionRecord>, allowed: bool) -> Evidence {
        let side = |title: &str, pods| Side { title: title.into(), namespace: "shop".into(), pods };
        Evidence {
            from: side("deploy/web", vec![pod("web", true, client)]),
            to: side("svc/store", vec![pod("store", true, server)]),
            port: 8080,
            service: None,
            decisions: vec![Decision {
                pod: "shop/store".into(),
                allowed,
                audited: false,
                server: "server/shop/store".into(),
                route: None,
                authorization: allowed.then(|| "authorizationpolicy/shop/store".into()),
                code: (!allowed).then(|| "POL-001".into()),
                authorizations: vec![Accepts {
                    name: "authorizationpolicy/shop/store".into(),
                    networks: vec!["0.0.0.0/0".into()],
                    clients: vec!["catalogue.shop".into()],
                }],
            }],
            journal: vec![],
            unanswered: vec![],
            now_unix_ms: NOW,
        }
    }

    #[test]
    fn an_allowed_call_that_was_seen_works() {
        let verdict = decide(&evidence(vec![record(Direction::Outbound, NOW - 2_000, None)], vec![], true));
        assert_eq!(verdict.outcome, Outcome::Works, "{verdict:?}");
        assert!(verdict.because.iter().any(|b| b.contains("web.shop → store.shop")), "{verdict:?}");
        assert!(verdict.because.iter().any(|b| b.contains("authorizationpolicy/shop/store")), "{verdict:?}");
    }

    #[test]
    fn a_denial_names_policy_identity_and_what_would_allow_it() {
        let refused = record(Direction::Inbound, NOW - 1_000, Some(Fault::new(Code::NoRuleAllows)));
        let verdict = decide(&evidence(vec![], vec![refused], false));
        assert_eq!((verdict.outcome, verdict.code), (Outcome::Denied, Some("POL-001")));
        let all = verdict.because.join("\n") + verdict.remedy.as_deref().unwrap();
        for needle in ["web.shop", "server/shop/store", "catalogue.shop", "MeshTLSAuthentication"] {
            assert!(all.contains(needle), "{needle} in {all}");
        }
    }

    #[test]
    fn an_unmeshed_caller_is_told_to_be_injected() {
        let mut evidence = evidence(vec![], vec![], false);
        evidence.from.pods[0].meshed = false;
        evidence.from.pods[0].identity = None;
        let verdict = decide(&evidence);
        assert!(verdict.remedy.unwrap().contains("linkerd.io/inject"));
    }

    #[test]
    fn an_application_that_is_down_names_the_endpoint_and_since_when() {
        let down =
            |at| record(Direction::Inbound, at, Some(Fault::new(Code::AppRefused).peer("10.77.0.3:8080")));
        let client = record(Direction::Outbound, NOW - 1_000, Some(Fault::new(Code::UpstreamReset)));
        let server = vec![
            down(NOW - 1_000),
            down(NOW - 60_000),
            record(Direction::Inbound, NOW - 90_000, None),
            down(NOW - 99_000),
        ];
        let verdict = decide(&evidence(vec![client], server, true));
        assert_eq!(
            (verdict.outcome, verdict.code),
            (Outcome::ApplicationDown, Some("UPS-010")),
            "{verdict:?}"
        );
        let since = crate::render::clock(NOW - 60_000);
        assert!(
            verdict.because.iter().any(|b| b.contains("10.77.0.3:8080") && b.contains(&since)),
            "{verdict:?}"
        );
    }

    #[test]
    fn a_failure_that_is_over_is_not_reported_as_the_state() {
        let client = vec![
            record(Direction::Outbound, NOW - 1_000, None),
            record(Direction::Outbound, NOW - 60_000, Some(Fault::new(Code::ConnectTimeout))),
        ];
        assert_eq!(decide(&evidence(client, vec![], true)).outcome, Outcome::Works);
    }

    #[test]
    fn an_open_connection_that_recovered_works() {
        let mut open = record(Direction::Outbound, NOW - 60_000, Some(Fault::new(Code::ConnectTimeout)));
        (open.duration_us, open.ended, open.good_since_fault, open.answered_us) = (None, None, 3, 59_900_000);
        let ended = record(Direction::Outbound, NOW - 1_000, Some(Fault::new(Code::ConnectTimeout)));
        assert_eq!(decide(&evidence(vec![open, ended], vec![], true)).outcome, Outcome::Works);
    }

    #[test]
    fn an_idle_connection_does_not_hide_newer_failures() {
        let mut idle = record(Direction::Outbound, NOW - 60_000, None);
        (idle.duration_us, idle.ended, idle.answered_us) = (None, None, 1_000_000);
        let failed = record(Direction::Outbound, NOW - 1_000, Some(Fault::new(Code::ConnectTimeout)));
        assert_eq!(decide(&evidence(vec![idle, failed], vec![], true)).outcome, Outcome::Failing);
    }

    #[test]
    fn a_stale_refusal_is_not_blamed_on_the_policy_of_today() {
        let refused = record(Direction::Inbound, NOW - 1_000, Some(Fault::new(Code::NoRuleAllows)));
        let verdict = decide(&evidence(vec![], vec![refused], true));
        assert_eq!(verdict.outcome, Outcome::Failing);
        assert!(verdict.says.contains("allow it since"), "{verdict:?}");
    }

    #[test]
    fn no_pods_and_no_ready_pods_are_told_apart() {
        let mut none = evidence(vec![], vec![], true);
        none.to.pods.clear();
        assert!(decide(&none).says.contains("has no pods"));
        let mut unready = evidence(vec![], vec![], true);
        unready.to.pods[0].ready = false;
        unready.to.pods[0].waiting = Some("CrashLoopBackOff: exit 1".into());
        let verdict = decide(&unready);
        assert_eq!(verdict.outcome, Outcome::NoEndpoints);
        assert!(verdict.because[0].contains("CrashLoopBackOff"), "{verdict:?}");
    }

    #[test]
    fn without_the_controller_the_answer_is_unknown() {
        let mut evidence = evidence(vec![], vec![], true);
        evidence.decisions.clear();
        evidence.unanswered.push("the controller: connection refused".into());
        let verdict = decide(&evidence);
        assert_eq!(verdict.outcome, Outcome::Unknown);
        assert!(verdict.because.iter().any(|b| b.contains("connection refused")));
    }
}
