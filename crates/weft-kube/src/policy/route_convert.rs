//! Rules of routes as model values. What cannot be expressed makes the route invalid, with a reason that begins with the field.

use super::{
    grpc_route::{GrpcRouteMatch, GrpcRouteRule, MethodMatch},
    http_route::{
        Header, HeaderModifier, HttpRouteFilter, HttpRouteMatch, HttpRouteRule, NamedMatch, PathModifier,
        RequestMirror, RequestRedirect, ValueMatch,
    },
    route::BackendRef,
};
use std::{sync::Arc, time::Duration};
use weft_model::{
    http::{
        Filter, HeaderChange, HeaderMatch, HostMatch, HttpMatch, Mirror, PathChange, PathMatch, Pattern,
        QueryMatch, Redirect, Rewrite, TextMatch,
    },
    meta::Meta,
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

/// Where copies of requests go: the backend's origin and its name with port, `None` for one that is not there (then nothing
/// is copied), or why it cannot be used.
pub type MirrorTo<'a> = &'a dyn Fn(&BackendRef) -> Result<Option<(Arc<Meta>, String)>, String>;

/// The matches and filters of an HTTPRoute's rule.
pub fn http_rule(
    rule: &HttpRouteRule,
    mirror: MirrorTo<'_>,
) -> Result<(Vec<HttpMatch>, Vec<Filter>), String> {
    let matches: Vec<HttpMatch> = each("matches", &rule.matches, http_match)?;
    let filters = filters(&rule.filters, mirror)?;
    let by_prefix = |m: &HttpMatch| matches!(m.path, None | Some(PathMatch::Prefix(_)));
    if filters.iter().any(replaces_prefix) && !matches.iter().all(by_prefix) {
        return Err("filters: ReplacePrefixMatch needs matches by PathPrefix alone".to_owned());
    }
    Ok((matches, filters))
}

fn replaces_prefix(filter: &Filter) -> bool {
    let path = match filter {
        Filter::Redirect(redirect) => &redirect.path,
        Filter::RewriteUrl(rewrite) => &rewrite.path,
        _ => return false,
    };
    matches!(path, Some(PathChange::Prefix(_)))
}

/// The matches and filters of a GRPCRoute's rule. A call is a POST to `/service/method`.
pub fn grpc_rule(
    rule: &GrpcRouteRule,
    mirror: MirrorTo<'_>,
) -> Result<(Vec<HttpMatch>, Vec<Filter>), String> {
    let filters = grpc_filters(&rule.filters, mirror)?;
    Ok((each("matches", &rule.matches, grpc_match)?, filters))
}

pub fn grpc_filters(all: &[HttpRouteFilter], mirror: MirrorTo<'_>) -> Result<Vec<Filter>, String> {
    let filters = filters(all, mirror)?;
    for filter in &filters {
        if !matches!(filter, Filter::RequestHeaders(_) | Filter::Mirror(_)) {
            return Err(
                "filters: of a GRPCRoute's filters, RequestHeaderModifier and RequestMirror are supported"
                    .to_owned(),
            );
        }
    }
    Ok(filters)
}

pub fn filters(all: &[HttpRouteFilter], mirror: MirrorTo<'_>) -> Result<Vec<Filter>, String> {
    let filters: Vec<Option<Filter>> = each("filters", all, |f| filter(f, mirror))?;
    Ok(filters.into_iter().flatten().collect())
}

/// Says in which of several the trouble is.
fn each<T, U>(field: &str, all: &[T], read: impl Fn(&T) -> Result<U, String>) -> Result<Vec<U>, String> {
    let one = |(at, item)| read(item).map_err(|why| format!("{field}[{at}].{why}"));
    all.iter().enumerate().map(one).collect()
}

fn http_match(m: &HttpRouteMatch) -> Result<HttpMatch, String> {
    let query = |q: &NamedMatch| Ok(QueryMatch { name: q.name.clone(), value: text_match(q)? });
    if let Some(method) = &m.method
        && http::Method::from_bytes(method.as_bytes()).is_err()
    {
        return Err(format!("method: {method:?} is no method"));
    }
    Ok(HttpMatch {
        path: m.path.as_ref().map(path_match).transpose()?,
        headers: each("headers", &m.headers, header_match)?,
        query: each("queryParams", &m.query_params, query)?,
        method: m.method.clone(),
    })
}

fn grpc_match(m: &GrpcRouteMatch) -> Result<HttpMatch, String> {
    let path = match &m.method {
        None => None,
        Some(rpc) => rpc_path(rpc)?,
    };
    Ok(HttpMatch { path, headers: each("headers", &m.headers, header_match)?, ..HttpMatch::default() })
}

fn rpc_path(rpc: &MethodMatch) -> Result<Option<PathMatch>, String> {
    match rpc.r#type.as_deref().unwrap_or("Exact") {
        "Exact" => {}
        other => {
            return Err(format!(
                "method.type: {other} cannot be told to proxies, which match services and methods by name"
            ));
        }
    }
    let is_name = |text: &str| {
        text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && !text.bytes().next().is_none_or(|b| b.is_ascii_digit())
    };
    let (service, method) = (rpc.service.as_str(), rpc.method.as_str());
    if !service.is_empty() && !service.split('.').all(is_name) {
        return Err(format!("method.service: {service:?} is no name of a service"));
    }
    if !method.is_empty() && !is_name(method) {
        return Err(format!("method.method: {method:?} is no name of a method"));
    }
    Ok(match (service, method) {
        ("", "") => None,
        (service, "") => Some(PathMatch::Prefix(format!("/{service}/"))),
        ("", method) => Some(PathMatch::Regex(regex(&format!("/[^/]+/{method}"))?)),
        (service, method) => Some(PathMatch::Exact(format!("/{service}/{method}"))),
    })
}

fn path_match(path: &ValueMatch) -> Result<PathMatch, String> {
    let value = path.value.clone().unwrap_or_else(|| "/".into());
    match path.r#type.as_deref().unwrap_or("PathPrefix") {
        "RegularExpression" => {
            Ok(PathMatch::Regex(regex(&value).map_err(|why| format!("path.value: {why}"))?))
        }
        kind if !value.starts_with('/') => {
            Err(format!("path.value: the {kind} path {value:?} does not start with /"))
        }
        "Exact" => Ok(PathMatch::Exact(value)),
        "PathPrefix" => Ok(PathMatch::Prefix(value)),
        other => Err(format!("path.type: {other:?} is not known")),
    }
}

fn header_match(m: &NamedMatch) -> Result<HeaderMatch, String> {
    Ok(HeaderMatch { name: header_name(&m.name)?, value: text_match(m)? })
}

fn text_match(m: &NamedMatch) -> Result<TextMatch, String> {
    match m.r#type.as_deref().unwrap_or("Exact") {
        "Exact" => Ok(TextMatch::Exact(m.value.clone())),
        "RegularExpression" => Ok(TextMatch::Regex(regex(&m.value).map_err(|why| format!("value: {why}"))?)),
        other => Err(format!("type: {other:?} is not known")),
    }
}

fn regex(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| format!("the regular expression {text:?} cannot be used: {error}"))
}

/// Proxies refuse a policy with a header that cannot be sent, so it must not get there.
fn header_name(name: &str) -> Result<String, String> {
    let name = name.to_ascii_lowercase();
    match http::HeaderName::from_bytes(name.as_bytes()) {
        Ok(_) => Ok(name),
        Err(_) => Err(format!("name: {name:?} is no name of a header")),
    }
}

/// `None` for a copy to a Service that is not there.
fn filter(f: &HttpRouteFilter, mirror: MirrorTo<'_>) -> Result<Option<Filter>, String> {
    let missing = || format!("type: the filter {} lacks its settings", f.r#type);
    Ok(Some(match f.r#type.as_str() {
        "RequestHeaderModifier" => {
            let change = f.request_header_modifier.as_ref().ok_or_else(missing)?;
            Filter::RequestHeaders(header_change(change, "requestHeaderModifier")?)
        }
        "ResponseHeaderModifier" => {
            let change = f.response_header_modifier.as_ref().ok_or_else(missing)?;
            Filter::ResponseHeaders(header_change(change, "responseHeaderModifier")?)
        }
        "RequestRedirect" => Filter::Redirect(redirect(f.request_redirect.as_ref().ok_or_else(missing)?)?),
        "URLRewrite" => {
            let rewrite = f.url_rewrite.as_ref().ok_or_else(missing)?;
            Filter::RewriteUrl(Rewrite {
                host: rewrite
                    .hostname
                    .clone()
                    .map(|host| host_name(host, "urlRewrite.hostname"))
                    .transpose()?,
                path: rewrite.path.as_ref().map(|p| path_change(p, "urlRewrite.path")).transpose()?,
            })
        }
        "RequestMirror" => {
            let settings = f.request_mirror.as_ref().ok_or_else(missing)?;
            let fraction = fraction(settings)?;
            let to =
                mirror(&settings.backend_ref).map_err(|why| format!("requestMirror.backendRef: {why}"))?;
            let Some((meta, path)) = to else { return Ok(None) };
            Filter::Mirror(Mirror { meta, path, fraction })
        }
        other => return Err(format!("type: {other:?} is not supported")),
    }))
}

fn fraction(mirror: &RequestMirror) -> Result<f64, String> {
    match (mirror.percent, mirror.fraction) {
        (None, None) => Ok(1.0),
        (Some(percent), None) if percent <= 100 => Ok(f64::from(percent) / 100.0),
        (None, Some(f)) => match f.denominator.unwrap_or(100) {
            of if of > 0 && f.numerator <= of => Ok(f64::from(f.numerator) / f64::from(of)),
            _ => Err("requestMirror.fraction: it is not between 0 and 1".to_owned()),
        },
        (Some(_), None) => Err("requestMirror.percent: it is above 100".to_owned()),
        (Some(_), Some(_)) => Err("requestMirror: percent and fraction exclude each other".to_owned()),
    }
}

fn header_change(m: &HeaderModifier, field: &str) -> Result<HeaderChange, String> {
    let pair = |header: &Header| match http::HeaderValue::from_str(&header.value) {
        Ok(_) => Ok((header_name(&header.name)?, header.value.clone())),
        Err(_) => Err(format!("value: {:?} cannot stand in a header", header.value)),
    };
    let read = || {
        Ok(HeaderChange {
            add: each("add", &m.add, pair)?,
            set: each("set", &m.set, pair)?,
            remove: each("remove", &m.remove, |name| header_name(name))?,
        })
    };
    read().map_err(|why: String| format!("{field}.{why}"))
}

fn host_name(host: String, field: &str) -> Result<String, String> {
    match host.parse::<http::uri::Authority>() {
        Ok(parsed) if parsed.host() == host => Ok(host),
        _ => Err(format!("{field}: {host:?} is no host name")),
    }
}

fn redirect(r: &RequestRedirect) -> Result<Redirect, String> {
    let status = r.status_code.unwrap_or(302);
    if !(300..400).contains(&status) {
        return Err(format!("requestRedirect.statusCode: {status} is not a redirect status"));
    }
    if let Some(scheme) = r.scheme.as_deref()
        && !matches!(scheme, "http" | "https")
    {
        return Err(format!("requestRedirect.scheme: {scheme:?} is neither http nor https"));
    }
    Ok(Redirect {
        scheme: r.scheme.clone(),
        host: r.hostname.clone().map(|host| host_name(host, "requestRedirect.hostname")).transpose()?,
        port: r.port,
        path: r.path.as_ref().map(|p| path_change(p, "requestRedirect.path")).transpose()?,
        status,
    })
}

fn path_change(p: &PathModifier, field: &str) -> Result<PathChange, String> {
    let change = match (p.r#type.as_str(), &p.replace_full_path, &p.replace_prefix_match) {
        ("ReplaceFullPath", Some(path), _) => PathChange::Full(path.clone()),
        ("ReplacePrefixMatch", _, Some(path)) => PathChange::Prefix(path.clone()),
        (other, ..) => return Err(format!("{field}: the change {other:?} is not known or lacks its value")),
    };
    let (PathChange::Full(path) | PathChange::Prefix(path)) = &change;
    // A prefix may be replaced by nothing.
    let nothing = path.is_empty() && matches!(change, PathChange::Prefix(_));
    let absolute = path.starts_with('/') && path.parse::<http::uri::PathAndQuery>().is_ok();
    match nothing || absolute {
        true => Ok(change),
        false => Err(format!("{field}: {path:?} is no absolute path")),
    }
}

/// The `timeouts` of an HTTPRoute's rule: for the request, and for one try. Zero is none.
pub fn timeouts(rule: &HttpRouteRule) -> Result<(Option<Duration>, Option<Duration>), String> {
    let Some(timeouts) = &rule.timeouts else { return Ok((None, None)) };
    let read = |field: &str, text: &Option<String>| -> Result<Option<Duration>, String> {
        let read =
            text.as_deref().map(duration).transpose().map_err(|why| format!("timeouts.{field}: {why}"))?;
        Ok(read.filter(|d| !d.is_zero()))
    };
    let request = read("request", &timeouts.request)?;
    let backend = read("backendRequest", &timeouts.backend_request)?;
    match (request, backend) {
        (Some(whole), Some(one)) if one > whole => {
            Err("timeouts.backendRequest: one try may not take longer than timeouts.request".to_owned())
        }
        both => Ok(both),
    }
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
mod tests;
