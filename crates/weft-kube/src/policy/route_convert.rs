//! HTTPRoute rules as model values. What cannot be expressed makes the route invalid, with a reason to show.

use super::http_route::{
    HeaderModifier, HttpRouteFilter, HttpRouteMatch, HttpRouteRule, NamedMatch, RequestRedirect, ValueMatch,
};
use std::time::Duration;
use weft_model::http::{
    Filter, HeaderChange, HeaderMatch, HostMatch, HttpMatch, PathChange, PathMatch, Pattern, QueryMatch,
    Redirect, TextMatch,
};

pub fn hosts(hostnames: &[String]) -> Vec<HostMatch> {
    hostnames
        .iter()
        .map(|name| match name.strip_prefix("*.") {
            Some(suffix) => HostMatch::Suffix(suffix.to_ascii_lowercase()),
            None => HostMatch::Exact(name.to_ascii_lowercase()),
        })
        .collect()
}

/// The matches and filters of a rule.
pub fn rule(rule: &HttpRouteRule) -> Result<(Vec<HttpMatch>, Vec<Filter>), String> {
    let matches = rule.matches.iter().map(http_match).collect::<Result<_, _>>()?;
    Ok((matches, filters(&rule.filters)?))
}

pub fn filters(filters: &[HttpRouteFilter]) -> Result<Vec<Filter>, String> {
    filters.iter().map(filter).collect()
}

fn http_match(m: &HttpRouteMatch) -> Result<HttpMatch, String> {
    Ok(HttpMatch {
        path: m.path.as_ref().map(path_match).transpose()?,
        headers: m
            .headers
            .iter()
            .map(|h| Ok(HeaderMatch { name: h.name.to_ascii_lowercase(), value: text_match(h)? }))
            .collect::<Result<_, String>>()?,
        query: m
            .query_params
            .iter()
            .map(|q| Ok(QueryMatch { name: q.name.clone(), value: text_match(q)? }))
            .collect::<Result<_, String>>()?,
        method: m.method.clone(),
    })
}

fn path_match(path: &ValueMatch) -> Result<PathMatch, String> {
    let value = path.value.clone().unwrap_or_else(|| "/".into());
    match path.r#type.as_deref().unwrap_or("PathPrefix") {
        "RegularExpression" => Ok(PathMatch::Regex(regex(&value)?)),
        kind if !value.starts_with('/') => Err(format!("{kind} path {value:?} does not start with /")),
        "Exact" => Ok(PathMatch::Exact(value)),
        "PathPrefix" => Ok(PathMatch::Prefix(value)),
        other => Err(format!("path match type {other:?} is not known")),
    }
}

fn text_match(m: &NamedMatch) -> Result<TextMatch, String> {
    match m.r#type.as_deref().unwrap_or("Exact") {
        "Exact" => Ok(TextMatch::Exact(m.value.clone())),
        "RegularExpression" => Ok(TextMatch::Regex(regex(&m.value)?)),
        other => Err(format!("match type {other:?} is not known")),
    }
}

fn regex(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| format!("the regular expression {text:?} cannot be used: {error}"))
}

fn filter(f: &HttpRouteFilter) -> Result<Filter, String> {
    let missing = || format!("the filter {} lacks its settings", f.r#type);
    match f.r#type.as_str() {
        "RequestHeaderModifier" => {
            Ok(Filter::RequestHeaders(header_change(f.request_header_modifier.as_ref().ok_or_else(missing)?)))
        }
        "ResponseHeaderModifier" => Ok(Filter::ResponseHeaders(header_change(
            f.response_header_modifier.as_ref().ok_or_else(missing)?,
        ))),
        "RequestRedirect" => redirect(f.request_redirect.as_ref().ok_or_else(missing)?).map(Filter::Redirect),
        other => Err(format!("the filter type {other:?} is not supported")),
    }
}

fn header_change(m: &HeaderModifier) -> HeaderChange {
    let pairs = |headers: &[super::http_route::Header]| {
        headers.iter().map(|h| (h.name.to_ascii_lowercase(), h.value.clone())).collect()
    };
    HeaderChange {
        add: pairs(&m.add),
        set: pairs(&m.set),
        remove: m.remove.iter().map(|n| n.to_ascii_lowercase()).collect(),
    }
}

fn redirect(r: &RequestRedirect) -> Result<Redirect, String> {
    let path = match &r.path {
        None => None,
        Some(p) => Some(match (p.r#type.as_str(), &p.replace_full_path, &p.replace_prefix_match) {
            ("ReplaceFullPath", Some(path), _) => PathChange::Full(path.clone()),
            ("ReplacePrefixMatch", _, Some(path)) => PathChange::Prefix(path.clone()),
            (other, ..) => return Err(format!("the path change {other:?} cannot be read")),
        }),
    };
    let status = r.status_code.unwrap_or(302);
    if !(300..400).contains(&status) {
        return Err(format!("{status} is not a redirect status"));
    }
    Ok(Redirect { scheme: r.scheme.clone(), host: r.hostname.clone(), port: r.port, path, status })
}

/// A Gateway API duration: `1h30m`, `10s`, `500ms`, `0s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration");
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit_ms: u64 = match &rest[..letters] {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return Err(bad()),
        };
        rest = &rest[letters..];
        let piece = Duration::from_millis(number.checked_mul(unit_ms).ok_or_else(bad)?);
        total = total.checked_add(piece).ok_or_else(bad)?;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(value: Value) -> Result<(Vec<HttpMatch>, Vec<Filter>), String> {
        rule(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn matches_and_filters() {
        let (matches, filters) = read(json!({
            "matches": [
                {"path": {"type": "Exact", "value": "/a"}, "method": "GET"},
                {"path": {"value": "/b"}, "headers": [{"name": "X-User", "value": "ann"}]},
                {"queryParams": [{"type": "RegularExpression", "name": "q", "value": "[0-9]+"}]},
            ],
            "filters": [
                {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "A", "value": "b"}]}},
                {"type": "RequestRedirect", "requestRedirect": {"hostname": "h", "statusCode": 301,
                    "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/c"}}},
            ],
        }))
        .unwrap();
        assert_eq!(matches[0].path, Some(PathMatch::Exact("/a".into())));
        assert_eq!(matches[1].headers[0].name, "x-user");
        assert!(matches!(matches[2].query[0].value, TextMatch::Regex(_)));
        assert!(matches!(&filters[0], Filter::RequestHeaders(c) if c.set == [("a".into(), "b".into())]));
        assert!(matches!(&filters[1], Filter::Redirect(r) if r.status == 301));
    }

    #[test]
    fn what_cannot_be_expressed_is_refused_with_a_reason() {
        for (rule, reason) in [
            (
                json!({"matches": [{"path": {"type": "RegularExpression", "value": "("}}]}),
                "regular expression",
            ),
            (json!({"matches": [{"path": {"type": "Exact", "value": "a"}}]}), "start with /"),
            (json!({"filters": [{"type": "CORS"}]}), "CORS"),
            (json!({"filters": [{"type": "RequestRedirect"}]}), "settings"),
            (
                json!({"filters": [{"type": "RequestRedirect", "requestRedirect": {"statusCode": 200}}]}),
                "200",
            ),
        ] {
            let error = read(rule).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["", "5", "s", "1.5s", "1x", "99999999999999999999h", "18446744073709551615h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
