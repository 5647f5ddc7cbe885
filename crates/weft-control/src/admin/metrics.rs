//! Prometheus text. Every number is read when asked for, so nothing is counted twice.

use super::Admin;
use crate::admission::metrics::{Asked, Counts};
use std::{fmt::Write, time::SystemTime};

pub(super) fn render(admin: &Admin) -> String {
    let mut out = Text(String::new());
    let sizes = admin.store.sizes();
    out.family("weft_index_objects", "gauge", "Objects in the index, by kind");
    for (kind, count) in &sizes.objects {
        out.value("weft_index_objects", &[("kind", kind)], count);
    }
    out.family("weft_view_subscribers", "gauge", "Open streams, by view");
    for (view, count) in &sizes.subscribers {
        out.value("weft_view_subscribers", &[("view", view)], count);
    }
    let progress = &admin.feed.progress;
    out.family("weft_watch_synced", "gauge", "1 when the whole set of the kind was received");
    for p in progress.iter() {
        out.value("weft_watch_synced", &[("kind", p.kind), ("group", p.group)], u8::from(p.synced()));
    }
    out.family("weft_watch_lists_total", "counter", "How often the kind was listed");
    for p in progress.iter() {
        out.value("weft_watch_lists_total", &[("kind", p.kind), ("group", p.group)], p.lists());
    }
    out.family("weft_watch_failures_total", "counter", "Lists and watches that failed");
    for p in progress.iter() {
        out.value("weft_watch_failures_total", &[("kind", p.kind), ("group", p.group)], p.failures());
    }
    out.family("weft_watch_idle_seconds", "gauge", "Time since the watch last heard of the API");
    for p in progress.iter() {
        out.value("weft_watch_idle_seconds", &[("kind", p.kind), ("group", p.group)], p.idle().as_secs_f64());
    }
    out.family("weft_api_silence_seconds", "gauge", "Time since the Kubernetes API last answered");
    out.value("weft_api_silence_seconds", &[], admin.feed.pulse.silence().as_secs_f64());
    if let Some(authority) = admin.authorities.current() {
        let left = |until: SystemTime| {
            until.duration_since(SystemTime::now()).map_or(0.0, |left| left.as_secs_f64())
        };
        out.family("issuer_cert_ttl_seconds", "gauge", "Time until the issuer certificate expires");
        out.value("issuer_cert_ttl_seconds", &[], left(authority.ca.facts().not_after));
    }
    injections(&mut out, &admin.injections.counts());
    out.0
}

fn injections(out: &mut Text, counts: &Counts) {
    let name = "proxy_inject_admission_requests_total";
    out.family(name, "counter", "How often the injector was asked about a pod");
    for (asked, count) in &counts.requests {
        out.value(name, &labels(asked), count);
    }
    let name = "proxy_inject_admission_responses_total";
    out.family(name, "counter", "What the injector answered: whether the pod was skipped, and why");
    for ((asked, skipped), count) in &counts.responses {
        let skip = if skipped.is_some() { "true" } else { "false" };
        let answer = [("skip", skip), ("skip_reason", skipped.unwrap_or_default())];
        out.value(name, &[&labels(asked)[..], &answer].concat(), count);
    }
}

fn labels(asked: &Asked) -> [(&'static str, &str); 3] {
    [
        ("owner_kind", &asked.owner_kind),
        ("namespace", &asked.namespace),
        ("annotation_at", asked.annotation_at),
    ]
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    /// Label values are our own words and names of namespaces: nothing in them needs escaping.
    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}
