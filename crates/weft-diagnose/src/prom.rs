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
    fn quantiles_interpolate_within_a_bucket() {
        let buckets = [(1.0, 0.0), (2.0, 50.0), (4.0, 100.0), (f64::INFINITY, 100.0)];
        assert_eq!(quantile(&buckets, 0.5), Some(2.0));
        assert_eq!(quantile(&buckets, 0.75), Some(3.0));
        assert_eq!(quantile(&[(1.0, 0.0), (f64::INFINITY, 0.0)], 0.5), None);
        assert_eq!(quantile(&[(1.0, 0.0), (f64::INFINITY, 7.0)], 0.5), Some(1.0));
    }
}
