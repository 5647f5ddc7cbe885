//! Reads Prometheus' text exposition, as much of it as a table of traffic needs.

use std::collections::BTreeMap;

/// One line: `name{label="value",…} number`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Sample {
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// The samples whose name `wanted` accepts. Lines that are not samples are passed over: a proxy of another version may
/// say more than we know.
pub fn parse(text: &str, wanted: impl Fn(&str) -> bool) -> Vec<Sample> {
    text.lines().filter_map(|line| parse_line(line, &wanted)).collect()
}

fn parse_line(line: &str, wanted: &impl Fn(&str) -> bool) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let name = &line[..end];
    if name.starts_with('#') || !wanted(name) {
        return None;
    }
    let mut labels = BTreeMap::new();
    let mut rest = &line[end..];
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.insert(label.trim_start_matches(',').trim().to_string(), value);
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_string(), labels, value })
}

/// Text up to the closing quote, with `\\`, `\"` and `\n` undone, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

/// A latency distribution from `_bucket` counts: `buckets` holds (upper bound, cumulative count), ascending.
pub fn quantile(buckets: &[(f64, f64)], q: f64) -> Option<f64> {
    let total = buckets.last()?.1;
    if total <= 0.0 {
        return None;
    }
    let rank = q * total;
    let mut below = (0.0, 0.0);
    for &(bound, count) in buckets {
        if count >= rank {
            if bound.is_infinite() {
                return Some(below.0);
            }
            let share = if count > below.1 { (rank - below.1) / (count - below.1) } else { 1.0 };
            return Some(below.0 + (bound - below.0) * share);
        }
        below = (bound, count);
    }
    Some(below.0)
}

/// Labels whose values say nothing about whom the mesh belongs to.
const TELLING_NOTHING: [&str; 30] = [
    "backend_kind",
    "classification",
    "code",
    "direction",
    "error",
    "family",
    "grpc_status",
    "http_status",
    "http_version",
    "kind",
    "le",
    "method",
    "no_tls_reason",
    "outcome",
    "peer",
    "phase",
    "process",
    "protocol",
    "quantile",
    "reason",
    "retries",
    "route_kind",
    "srv_kind",
    "authz_kind",
    "status",
    "status_code",
    "tls",
    "type",
    "version",
    "worker",
];

/// A page on which whatever may name a customer's things is replaced by a hash, the same by the same. The comments of a page say
/// nothing about anybody.
pub fn obfuscated(text: &str) -> String {
    let mut page = String::with_capacity(text.len());
    for line in text.lines() {
        match line.split_once('{') {
            Some((name, rest)) if !line.starts_with('#') => {
                page.push_str(name);
                page.push('{');
                hide(rest, &mut page);
            }
            _ => page.push_str(line),
        }
        page.push('\n');
    }
    page
}

/// Label by label; what is no label is left out, since it may be anything.
fn hide(mut rest: &str, page: &mut String) {
    while let Some((label, after)) = rest.split_once("=\"") {
        let Some((value, after)) = quoted(after) else { return };
        let label = label.trim_start_matches(',').trim();
        if !page.ends_with('{') {
            page.push(',');
        }
        let shown = if TELLING_NOTHING.contains(&label) || value.is_empty() { value } else { hash(&value) };
        page.push_str(&format!("{label}={shown:?}"));
        rest = after;
        if rest.starts_with('}') {
            page.push_str(rest);
            return;
        }
    }
    if rest.starts_with('}') {
        page.push_str(rest);
    }
}

fn hash(value: &str) -> String {
    weft_tls::certificate::sha256_hex(value.as_bytes()).chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_samples_and_passes_over_the_rest() {
        let text = "# HELP x y\nx_total{a=\"b\\\"c\",d=\"e,f}\"} 3\nother 1\nx_total 4.5\nx_total{broken\n\n";
        let samples = parse(text, |name| name == "x_total");
        assert_eq!(samples.len(), 2);
        assert_eq!(samples[0].label("a"), "b\"c");
        assert_eq!(samples[0].label("d"), "e,f}");
        assert_eq!(samples[1].value, 4.5);
    }

    #[test]
    fn a_page_for_others_names_nothing_and_keeps_what_belongs_together() {
        let text = "# HELP x y\nx_total{dst_service=\"store\",direction=\"outbound\",le=\"0.5\",pod=\"\"} 3\n\
            y{authority=\"store\",path=\"/a\\\"b}\"} 4 17\nup 1\nz{} 2\n";
        let page = obfuscated(text);
        assert!(!page.contains("store") && !page.contains("/a"), "{page}");
        let lines: Vec<&str> = page.lines().collect();
        let hash = hash("store");
        assert_eq!(
            lines[1],
            format!("x_total{{dst_service=\"{hash}\",direction=\"outbound\",le=\"0.5\",pod=\"\"}} 3")
        );
        assert!(
            lines[2].starts_with(&format!("y{{authority=\"{hash}\",path=\"")) && lines[2].ends_with("} 4 17")
        );
        assert_eq!(lines[3..], ["up 1", "z{} 2"]);
        // It can still be read.
        assert_eq!(parse(&page, |_| true).len(), 4);
    }

    #[test]
    fn quantiles_interpolate_within_a_bucket() {
        let buckets = [(1.0, 0.0), (2.0, 50.0), (4.0, 100.0), (f64::INFINITY, 100.0)];
        assert_eq!(quantile(&buckets, 0.5), Some(2.0));
        assert_eq!(quantile(&buckets, 0.75), Some(3.0));
        assert_eq!(quantile(&[(1.0, 0.0), (f64::INFINITY, 0.0)], 0.5), None);
        assert_eq!(quantile(&[(1.0, 0.0), (f64::INFINITY, 7.0)], 0.5), Some(1.0));
    }
}
