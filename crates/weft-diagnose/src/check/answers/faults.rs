//! What failed in the last minutes, by code, and between whom.

use super::{
    super::{
        Answer, Category, Check, Findings, Reply,
        facts::{Facts, Pod, Read},
    },
    network,
};
use crate::prom::Sample;
use std::{collections::BTreeMap, net::IpAddr};
use weft_fault::Code;
use weft_wire::record::{EntryKind, JournalEntry};

pub(in super::super) const ERRORS: Category = Category {
    name: "weft-data-plane-errors",
    checks: &[
        Check::warning("weft-faults", "no proxy reported a failure in the last minutes", faults).doc(
            "Proxies reported failures to the controller. Each line has the code, who called whom, how often at least, and when last. What failed while one of the two was starting is left out.",
            "`weft explain CODE` says what a code means and what to do; `weft explain FROM TO` tells the whole story of one pair.",
        ),
        Check::warning("weft-denials", "proxies count no errors or denials", counted).doc(
            "Proxies that keep no records (Linkerd's) counted errors or refused requests while this was asked.",
            "`weft diagnostics proxy-metrics POD` or the proxy's log says more; `weft explain FROM TO` names the policy that denies.",
        ),
    ],
};

/// How far back.
pub(in super::super) const MINUTES: u64 = 5;

/// The journal's newest entries; `None` where nobody keeps one.
pub(super) fn journal(facts: &Facts) -> Read<Option<&[JournalEntry]>> {
    let Some(controller) = &facts.controller else { return Ok(None) };
    Ok(Some(controller.as_ref()?.journal.as_ref()?.as_slice()))
}

/// `30 s ago`.
pub(super) fn ago(facts: &Facts, at_unix_ms: u64) -> String {
    crate::render::ago(facts.now_unix_ms, at_unix_ms)
}

/// What nobody needs to look at: it was meant.
const MEANT: [Code; 2] = [Code::Draining, Code::FailureInjected];

/// Failures of one code between the same two. Either end may report the same one.
#[derive(Default)]
struct Pair<'f> {
    /// As the caller and as the server told them.
    times: [u64; 2],
    /// What the caller asked for.
    service: Option<String>,
    last_unix_ms: u64,
    says: &'f str,
    refused_by: Option<String>,
}

fn faults(facts: &Facts) -> Reply {
    let Some(journal) = journal(facts)? else { return Ok(Answer::Idle) };
    let by_ip = pods_by_ip(facts)?;
    let mut pairs: BTreeMap<(&str, String, String), Pair<'_>> = BTreeMap::new();
    for entry in
        journal.iter().filter(|entry| entry.kind == EntryKind::Fault && facts.is_asked_name(&entry.source))
    {
        let Some(fault) = &entry.fault else { continue };
        let passed_over =
            MEANT.iter().any(|code| fault.code == code.id()) || fault.code == Code::Stalled.id();
        if passed_over || was_starting(facts, &by_ip, entry) {
            continue;
        }
        let Way { from, to, service } = way(facts, &by_ip, entry);
        let pair = pairs.entry((&fault.code, from, to)).or_default();
        pair.times[usize::from(is_inbound(entry))] += 1;
        pair.service = pair.service.take().or(service);
        pair.says = &fault.says;
        pair.last_unix_ms = pair.last_unix_ms.max(entry.at_unix_ms);
        if pair.refused_by.is_none() && matches!(fault.code.as_str(), "NET-002" | "NET-003" | "UPS-004") {
            pair.refused_by = blocked(facts, entry, &by_ip);
        }
    }
    let told = pairs.into_iter().map(|((code, from, to), pair)| {
        let ago = ago(facts, pair.last_unix_ms);
        let why = pair.refused_by.map(|why| format!("\n{why}")).unwrap_or_default();
        let to = match pair.service {
            Some(service) if service != to => format!("{service} ({to})"),
            _ => to,
        };
        let times = pair.times[0].max(pair.times[1]);
        format!("{code} {}: {from} → {to}, {times} times at least, last {ago}{why}", pair.says)
    });
    told.collect::<Findings>().reply(&format!("failures of the last {MINUTES} minutes:"))
}

type ByIp<'f> = BTreeMap<IpAddr, &'f Pod>;

fn pods_by_ip(facts: &Facts) -> Read<ByIp<'_>> {
    let live =
        facts.pods.as_ref()?.iter().filter(|pod| !pod.object.is_finished() && !pod.object.spec.host_network);
    Ok(live.flat_map(|pod| pod.object.ips().into_iter().map(move |ip| (ip, pod))).collect())
}

/// The address in a text that may be one.
fn ip_in(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| Some(text.parse::<std::net::SocketAddr>().ok()?.ip()))
}

/// The address of the other end: the fault's peer, what the entry is about, or whom its text says it came from.
fn other_end(entry: &JournalEntry) -> Option<IpAddr> {
    let from = || entry.text.rsplit_once(" from ").and_then(|(_, addr)| ip_in(addr));
    if is_inbound(entry) {
        return from();
    }
    let peer = entry.fault.as_ref().and_then(|fault| fault.peer.as_deref());
    peer.and_then(ip_in).or_else(|| ip_in(&entry.subject))
}

/// Who called whom.
struct Way {
    from: String,
    /// The pod if it is known, else what was asked for.
    to: String,
    service: Option<String>,
}

fn is_inbound(entry: &JournalEntry) -> bool {
    entry.text.starts_with("inbound")
}

/// `shop/store:80` of a subject that is a Service's, however it is written.
fn service_of(subject: &str, domain: &str) -> Option<String> {
    if let Some(service) = subject.strip_prefix("service/") {
        return Some(service.to_owned());
    }
    let (name, port) = subject.rsplit_once(':')?;
    let (name, namespace) = name.strip_suffix(&format!(".svc.{domain}"))?.split_once('.')?;
    Some(format!("{namespace}/{name}:{port}"))
}

fn domain(facts: &Facts) -> &str {
    facts.setting(&["clusterDomain"]).ok().flatten().and_then(|v| v.as_str()).unwrap_or("cluster.local")
}

fn way(facts: &Facts, by_ip: &ByIp<'_>, entry: &JournalEntry) -> Way {
    let named = |ip: IpAddr| by_ip.get(&ip).map_or_else(|| ip.to_string(), |pod| pod.name().to_string());
    let other = other_end(entry);
    if is_inbound(entry) {
        let from = other.map_or_else(|| "somebody".to_owned(), named);
        return Way { from, to: entry.source.clone(), service: None };
    }
    let service = service_of(&entry.subject, domain(facts));
    let pod = other.filter(|ip| by_ip.contains_key(ip)).map(named);
    let to = pod.or_else(|| service.clone()).unwrap_or_else(|| match entry.subject.as_str() {
        "" => "somewhere".to_owned(),
        subject => subject.to_owned(),
    });
    Way { from: entry.source.clone(), to, service }
}

/// Whether either end was not ready yet.
fn was_starting(facts: &Facts, by_ip: &ByIp<'_>, entry: &JournalEntry) -> bool {
    let not_yet =
        |pod: &Pod| !pod.ready || pod.ready_since_unix_ms.is_some_and(|since| since > entry.at_unix_ms);
    let all = facts.pods.as_ref().map(Vec::as_slice).unwrap_or_default();
    let source = all.iter().find(|pod| pod.name().to_string() == entry.source);
    // One that runs and is not ready is broken rather than starting, unless it is young.
    let young = |pod: &Pod| {
        let born = pod.object.metadata.creation_timestamp.map_or(0, |at| at.as_millisecond());
        u64::try_from(born).is_ok_and(|born| entry.at_unix_ms < born + STARTS_MS)
    };
    let starting = |pod: &Pod| not_yet(pod) && (pod.ready || young(pod));
    source.is_some_and(starting)
        || other_end(entry).and_then(|ip| by_ip.get(&ip)).is_some_and(|pod| starting(pod))
        || behind(facts, &entry.subject)
            .is_some_and(|pods| !pods.is_empty() && pods.into_iter().all(starting))
}

/// What a pod may take to become ready.
const STARTS_MS: u64 = 60_000;

/// The pods behind the service that an entry is about.
fn behind<'f>(facts: &'f Facts, subject: &str) -> Option<Vec<&'f Pod>> {
    let service = service_of(subject, domain(facts))?;
    let (namespace, name) = service.split_once('/')?;
    let name = name.split(':').next()?;
    let services = facts.services.as_ref().ok()?;
    let service = services.iter().find(|s| s.metadata.name == name && s.metadata.namespace == namespace)?;
    if service.spec.selector.is_empty() {
        return None;
    }
    let selected = |pod: &&Pod| {
        let labels = &pod.object.metadata.labels;
        pod.object.metadata.namespace == namespace
            && service.spec.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    Some(facts.pods.as_ref().ok()?.iter().filter(selected).collect())
}

/// The NetworkPolicy that refuses what timed out, if one does.
fn blocked(facts: &Facts, entry: &JournalEntry, by_ip: &ByIp<'_>) -> Option<String> {
    let all = facts.pods.as_ref().ok()?;
    let from = all.iter().find(|pod| pod.name().to_string() == entry.source)?;
    let addr: std::net::SocketAddr = entry
        .fault
        .as_ref()
        .and_then(|fault| fault.peer.as_deref()?.parse().ok())
        .or_else(|| entry.subject.parse().ok())?;
    let to = by_ip.get(&addr.ip())?;
    network::why_refused(facts, from, to, addr.port())
}

/// Families of stock proxies that grow when something fails.
fn is_error(sample: &Sample) -> bool {
    ["inbound_http_authz_deny_total", "inbound_tcp_authz_deny_total"].contains(&sample.name.as_str())
        || (sample.name.ends_with("_errors_total")
            && (sample.name.starts_with("inbound_") || sample.name.starts_with("outbound_")))
}

fn counted(facts: &Facts) -> Reply {
    let mut found = Findings::default();
    let mut asked = false;
    for (pod, read) in &facts.proxies {
        let Ok(proxy) = read else { continue };
        let Some((seconds, later)) = &proxy.later else { continue };
        asked = true;
        for sample in later.iter().filter(|sample| is_error(sample)) {
            let before = proxy.samples.iter().find(|s| s.name == sample.name && s.labels == sample.labels);
            let more = sample.value - before.map_or(0.0, |before| before.value);
            if more > 0.0 {
                let labels = ["error", "target_addr", "client_id", "tls", "srv_name"];
                let labels: Vec<String> = labels
                    .iter()
                    .filter(|name| !sample.label(name).is_empty())
                    .map(|name| format!("{name}={}", sample.label(name)))
                    .collect();
                found.problem(format!(
                    "{pod}: {} {more:.0} times in {seconds:.0} s ({})",
                    sample.name,
                    labels.join(" ")
                ));
            }
        }
    }
    if asked { found.reply("counted meanwhile:") } else { Ok(Answer::Idle) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::facts::healthy::{fault, healthy},
        prom,
    };
    use weft_kube::meta::ObjectName;

    fn with(entries: Vec<JournalEntry>, facts: &mut Facts) {
        facts.controller.as_mut().unwrap().as_mut().unwrap().journal = Ok(entries);
    }

    fn entry(facts: &Facts, seconds: u64, code: Code, peer: &str) -> JournalEntry {
        let mut entry = fault(facts, seconds, "shop/web-1", code, &[]);
        entry.subject = "store.shop.svc.cluster.local:80".into();
        entry.text = "outbound connection c1 from 10.77.0.11:40000".into();
        entry.fault.as_mut().unwrap().peer = Some(peer.into());
        entry
    }

    #[test]
    fn failures_are_told_by_code_and_pair() {
        let mut facts = healthy();
        assert_eq!(faults(&facts), Ok(Answer::Good));
        let mut inbound = fault(&facts, 20, "shop/store-1", Code::NoRuleAllows, &[]);
        inbound.text = "inbound connection s1 from 10.77.0.11:40000".into();
        let mut same = entry(&facts, 20, Code::NoRuleAllows, "10.77.0.12:8080");
        same.subject = "service/shop/store:80".into();
        let entries = vec![
            entry(&facts, 40, Code::ConnectRefused, "10.77.0.12:8080"),
            entry(&facts, 10, Code::ConnectRefused, "10.77.0.12:8080"),
            entry(&facts, 10, Code::Draining, "10.77.0.12:8080"),
            inbound,
            same,
        ];
        with(entries, &mut facts);
        let Ok(Answer::Bad(said)) = faults(&facts) else { panic!() };
        assert!(
            said.contains("shop/web-1 → shop/store:80 (shop/store-1), 2 times at least, last 10 s ago"),
            "{said}"
        );
        assert!(
            said.contains("POL-001") && said.contains("shop/web-1 → shop/store:80 (shop/store-1), 1 times"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 3, "what both ends report is one failure: {said}");
        assert!(!said.contains("LIM-004"), "{said}");
    }

    #[test]
    fn what_failed_while_a_pod_was_starting_is_left_out() {
        let mut facts = healthy();
        let early = entry(&facts, 200, Code::NoEndpoints, "");
        with(vec![early], &mut facts);
        assert!(matches!(faults(&facts), Ok(Answer::Bad(_))));
        // The only pod behind the service became ready after it.
        let (since, now) = (facts.now_unix_ms - 100_000, facts.now_unix_ms);
        facts.pods.as_mut().unwrap()[1].ready_since_unix_ms = Some(since);
        assert_eq!(faults(&facts), Ok(Answer::Good));
        // One that is not ready at all, and not young, is no excuse.
        let store = &mut facts.pods.as_mut().unwrap()[1];
        (store.ready, store.ready_since_unix_ms) = (false, Some(now));
        assert!(matches!(faults(&facts), Ok(Answer::Bad(_))));
    }

    #[test]
    fn stock_proxies_are_compared_with_themselves() {
        let mut facts = healthy();
        assert_eq!(counted(&facts), Ok(Answer::Idle));
        let page = |n: u32| {
            prom::parse(
                &format!(
                    "inbound_http_authz_deny_total{{target_addr=\"10.0.0.1:80\",tls=\"no_identity\"}} {n}\n"
                ),
                |_| true,
            )
        };
        let web = facts.proxies.get_mut(&ObjectName::new("shop", "web-1")).unwrap().as_mut().unwrap();
        (web.samples, web.later) = (page(5), Some((3.0, page(5))));
        assert_eq!(counted(&facts), Ok(Answer::Good));
        facts.proxies.get_mut(&ObjectName::new("shop", "web-1")).unwrap().as_mut().unwrap().later =
            Some((3.0, page(9)));
        assert!(
            matches!(counted(&facts), Ok(Answer::Bad(why)) if why.contains("4 times in 3 s (target_addr=10.0.0.1:80 tls=no_identity)"))
        );
    }
}
