//! `docs/metrics.md` is what the families say of themselves.

use super::Metrics;
use std::{fmt::Write, time::Duration};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");

const HEAD: &str = "# Metrics

What the proxy counts, at `/metrics` of its admin port (4191), in Prometheus's text form, compressed for whoever asks for gzip. Names and labels are
those of Linkerd's proxy, so that its dashboards and alerts go on working; families that begin with `weft_`, and the label `code` (see
[faults.md](faults.md)), are weft's own. A family stands on the page once it has a series.

- Histograms have the label `le` as well. `dst_*` are the labels that the controller gives an endpoint, `rt_*` those of a ServiceProfile's route.
- `tls` is `true` (with `client_id` or `server_id`), `no_identity` (with `no_tls_reason`), or `opaque`. The server name of TLS that passes through is not a
  label: clients choose it, and could fill the page with it.
- `hostname` and `authority` of inbound requests are empty unless `OUTBOUND_METRICS_HOSTNAME_LABELS` or `INBOUND_METRICS_AUTHORITY_LABELS` ask for them
  ([config.md](config.md)), for the same reason. `target_name` of direct connections, with its port, is empty unless something is behind the name.
- A group of families that are counted together has at most 20,000 label sets; what is beyond is counted in one series, `{weft_overflow=\"true\"}`, until others are dropped.
- Series that nobody uses and nothing changes are dropped after `METRICS_RETAIN_IDLE`.
- A page is written beside the traffic, in pieces, with a quarter of a core at most. Who asks while one is written reads the same page from its beginning; more than
  eight scrapers at once get 503.
- Balancers have no queue of their own here: a request waits for the first answer about its endpoints, and that wait is what the families `…_balancer_queue_*` count.
  Each worker balances on its own: the gauges of endpoints are sums, in which an endpoint counts once for each worker that uses its service.
- Linkerd's families `stack_*` count the layers of its implementation, and `tokio_rt_*` its runtime. There is nothing here that they could name; `weft_phase_duration_seconds`
  tells where time goes, by the steps of [life-of-a-connection.md](life-of-a-connection.md).
- Of the phases, `accept` is how long a connection waited for its worker; `request-headers`, from the first byte of a head to its last, is of HTTP/1 alone.
- `error` of the families `…response_total` is there where a response did not come to its end: `h2(REASON)` where the server reset the stream, else `unclassified`.

| family | type | labels | what is counted |
|---|---|---|---|
";

fn page() -> String {
    let mut page = HEAD.to_string();
    let mut families = Metrics::new(Duration::ZERO).describe();
    families.sort_by(|a, b| a.name.cmp(&b.name));
    for family in families {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, labels) = (family.kind.as_str(), labels.join(" "));
        writeln!(page, "| `{}` | {kind} | {labels} | {} |", family.name, family.help).unwrap();
    }
    page
}

#[test]
fn the_page_of_families_is_current() {
    let now = page();
    if std::env::var_os("WEFT_WRITE_DOCS").is_some() {
        std::fs::write(PATH, &now).unwrap();
    }
    let written = std::fs::read_to_string(PATH).unwrap_or_default();
    assert!(
        written == now,
        "docs/metrics.md is not what the families say; run WEFT_WRITE_DOCS=1 cargo test -p weft-proxy --lib metrics"
    );
}

#[test]
fn every_family_is_declared_once_and_said_in_a_sentence() {
    let families = Metrics::new(Duration::ZERO).describe();
    let mut names: Vec<&str> = families.iter().map(|family| family.name.as_str()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "a family is declared twice");
    for family in families {
        let counter = family.name.ends_with("_total");
        assert_eq!(counter, family.kind == super::Kind::Counter, "{}", family.name);
        assert!(!family.help.is_empty() && !family.help.ends_with('.'), "{}: {:?}", family.name, family.help);
        let mut labels = family.labels.clone();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), family.labels.len(), "{} has a label twice", family.name);
    }
}
