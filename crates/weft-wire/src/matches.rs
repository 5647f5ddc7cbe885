//! HTTP matches, filters and hosts, which inbound and outbound routes share.

use crate::common::Invalid;
use http::Method;
use linkerd2_proxy_api::{grpc_route, http_route as api, http_types};
use weft_model::http::{
    Filter, HeaderChange, HeaderMatch, HostMatch, HttpMatch, PathChange, PathMatch, Pattern, QueryMatch,
    Redirect, TextMatch,
};

pub(crate) fn regex(text: &str, field: &'static str) -> Result<Pattern, Invalid> {
    Pattern::new(text).map_err(|e| Invalid::new(field, e))
}

// --- hosts

pub(crate) fn host_to_api(host: &HostMatch) -> api::HostMatch {
    use api::host_match::{Match, Suffix};
    let matched = match host {
        HostMatch::Exact(name) => Match::Exact(name.clone()),
        HostMatch::Suffix(suffix) => Match::Suffix(Suffix { reverse_labels: reversed(suffix) }),
    };
    api::HostMatch { r#match: Some(matched) }
}

pub(crate) fn host_from_api(host: api::HostMatch) -> Result<HostMatch, Invalid> {
    use api::host_match::Match;
    match host.r#match {
        Some(Match::Exact(name)) => Ok(HostMatch::Exact(name.to_ascii_lowercase())),
        Some(Match::Suffix(suffix)) => Ok(HostMatch::Suffix(unreversed(suffix.reverse_labels))),
        None => Err(Invalid::missing("host_match")),
    }
}

pub(crate) fn sni_to_api(host: &HostMatch) -> linkerd2_proxy_api::tls_route::SniMatch {
    use linkerd2_proxy_api::tls_route::sni_match::{Match, Suffix};
    let matched = match host {
        HostMatch::Exact(name) => Match::Exact(name.clone()),
        HostMatch::Suffix(suffix) => Match::Suffix(Suffix { reverse_labels: reversed(suffix) }),
    };
    linkerd2_proxy_api::tls_route::SniMatch { r#match: Some(matched) }
}

pub(crate) fn sni_from_api(sni: linkerd2_proxy_api::tls_route::SniMatch) -> Result<HostMatch, Invalid> {
    use linkerd2_proxy_api::tls_route::sni_match::Match;
    match sni.r#match {
        Some(Match::Exact(name)) => Ok(HostMatch::Exact(name.to_ascii_lowercase())),
        Some(Match::Suffix(suffix)) => Ok(HostMatch::Suffix(unreversed(suffix.reverse_labels))),
        None => Err(Invalid::missing("sni_match")),
    }
}

fn reversed(suffix: &str) -> Vec<String> {
    suffix.split('.').filter(|label| !label.is_empty()).rev().map(str::to_string).collect()
}

fn unreversed(mut labels: Vec<String>) -> String {
    labels.reverse();
    labels.join(".").to_ascii_lowercase()
}

// --- HTTP matches

pub(crate) fn match_to_api(m: &HttpMatch) -> api::HttpRouteMatch {
    api::HttpRouteMatch {
        path: m.path.as_ref().map(|path| {
            use api::path_match::Kind;
            api::PathMatch {
                kind: Some(match path {
                    PathMatch::Exact(path) => Kind::Exact(path.clone()),
                    PathMatch::Prefix(path) => Kind::Prefix(path.clone()),
                    PathMatch::Regex(re) => Kind::Regex(re.as_str().to_string()),
                }),
            }
        }),
        headers: m.headers.iter().map(header_match_to_api).collect(),
        query_params: m.query.iter().map(query_match_to_api).collect(),
        method: m.method.as_deref().map(method_to_api),
    }
}

pub(crate) fn match_from_api(m: api::HttpRouteMatch) -> Result<HttpMatch, Invalid> {
    use api::path_match::Kind;
    let path = match m.path {
        None => None,
        Some(path) => Some(match path.kind.ok_or_else(|| Invalid::missing("match.path"))? {
            Kind::Exact(path) => PathMatch::Exact(path),
            Kind::Prefix(path) => PathMatch::Prefix(path),
            Kind::Regex(re) => PathMatch::Regex(regex(&re, "match.path.regex")?),
        }),
    };
    let query = m.query_params.into_iter().map(|q| {
        use api::query_param_match::Value;
        let value = match q.value.ok_or_else(|| Invalid::missing("match.query_params.value"))? {
            Value::Exact(text) => TextMatch::Exact(text),
            Value::Regex(re) => TextMatch::Regex(regex(&re, "match.query_params.regex")?),
        };
        Ok(QueryMatch { name: q.name, value })
    });
    Ok(HttpMatch {
        path,
        headers: m.headers.into_iter().map(header_match_from_api).collect::<Result<_, _>>()?,
        query: query.collect::<Result<_, _>>()?,
        method: m.method.map(method_from_api).transpose()?,
    })
}

fn header_match_to_api(m: &HeaderMatch) -> api::HeaderMatch {
    use api::header_match::Value;
    let value = match &m.value {
        TextMatch::Exact(text) => Value::Exact(text.clone().into_bytes()),
        TextMatch::Regex(re) => Value::Regex(re.as_str().to_string()),
    };
    api::HeaderMatch { name: m.name.clone(), value: Some(value) }
}

fn header_match_from_api(m: api::HeaderMatch) -> Result<HeaderMatch, Invalid> {
    use api::header_match::Value;
    let value = match m.value.ok_or_else(|| Invalid::missing("match.headers.value"))? {
        Value::Exact(bytes) => TextMatch::Exact(
            String::from_utf8(bytes).map_err(|_| Invalid::new("match.headers.exact", "not UTF-8"))?,
        ),
        Value::Regex(re) => TextMatch::Regex(regex(&re, "match.headers.regex")?),
    };
    Ok(HeaderMatch { name: m.name.to_ascii_lowercase(), value })
}

fn query_match_to_api(m: &QueryMatch) -> api::QueryParamMatch {
    use api::query_param_match::Value;
    let value = match &m.value {
        TextMatch::Exact(text) => Value::Exact(text.clone()),
        TextMatch::Regex(re) => Value::Regex(re.as_str().to_string()),
    };
    api::QueryParamMatch { name: m.name.clone(), value: Some(value) }
}

pub(crate) fn method_to_api(method: &str) -> http_types::HttpMethod {
    match Method::from_bytes(method.as_bytes()) {
        Ok(method) => method.into(),
        // Cannot stand in a request either: it matches nothing there as here.
        Err(_) => http_types::HttpMethod {
            r#type: Some(http_types::http_method::Type::Unregistered(method.to_string())),
        },
    }
}

pub(crate) fn method_from_api(method: http_types::HttpMethod) -> Result<String, Invalid> {
    Method::try_from(method).map(|m| m.as_str().to_string()).map_err(|e| Invalid::new("match.method", e))
}

// --- gRPC matches, which the model expresses as paths

pub(crate) fn rpc_to_api(m: &HttpMatch) -> grpc_route::GrpcRouteMatch {
    let rpc = m.path.as_ref().map(|path| {
        let (service, method) = match path {
            PathMatch::Exact(path) | PathMatch::Prefix(path) => {
                path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_matches('/'), ""))
            }
            PathMatch::Regex(re) => ("", re.as_str().strip_prefix(ANY_SERVICE).unwrap_or("")),
        };
        // Names of services and methods hold nothing that an expression has to escape but the dot.
        grpc_route::GrpcRpcMatch { service: service.into(), method: method.replace("\\.", ".") }
    });
    grpc_route::GrpcRouteMatch { rpc, headers: m.headers.iter().map(header_match_to_api).collect() }
}

const ANY_SERVICE: &str = "/[^/]+/";

pub(crate) fn rpc_from_api(m: grpc_route::GrpcRouteMatch) -> Result<HttpMatch, Invalid> {
    let path = match m.rpc {
        None => None,
        Some(rpc) => match (rpc.service.as_str(), rpc.method.as_str()) {
            ("", "") => None,
            (service, "") => Some(PathMatch::Prefix(format!("/{service}/"))),
            ("", method) => Some(PathMatch::Regex(regex(
                &format!("{ANY_SERVICE}{}", regex::escape(method)),
                "match.rpc",
            )?)),
            (service, method) => Some(PathMatch::Exact(format!("/{service}/{method}"))),
        },
    };
    let headers = m.headers.into_iter().map(header_match_from_api).collect::<Result<_, _>>()?;
    Ok(HttpMatch { path, headers, ..HttpMatch::default() })
}

// --- filters

pub(crate) fn headers_to_api(pairs: &[(String, String)]) -> Option<http_types::Headers> {
    let headers = pairs.iter().map(|(name, value)| http_types::headers::Header {
        name: name.clone(),
        value: value.clone().into_bytes(),
    });
    (!pairs.is_empty()).then(|| http_types::Headers { headers: headers.collect() })
}

fn headers_from_api(headers: Option<http_types::Headers>) -> Result<Vec<(String, String)>, Invalid> {
    let headers = headers.map(|h| h.headers).unwrap_or_default();
    let pairs = headers.into_iter().map(|header| {
        let name = header.name.to_ascii_lowercase();
        let value =
            String::from_utf8(header.value).map_err(|_| Invalid::new("filter.headers", "not UTF-8"))?;
        // Checked once here, so that applying the filter cannot fail.
        http::HeaderName::from_bytes(name.as_bytes()).map_err(|e| Invalid::new("filter.headers.name", e))?;
        http::HeaderValue::from_str(&value).map_err(|e| Invalid::new("filter.headers.value", e))?;
        Ok((name, value))
    });
    pairs.collect()
}

pub(crate) fn request_headers_to_api(change: &HeaderChange) -> api::RequestHeaderModifier {
    api::RequestHeaderModifier {
        add: headers_to_api(&change.add),
        set: headers_to_api(&change.set),
        remove: change.remove.clone(),
    }
}

pub(crate) fn request_headers_from_api(m: api::RequestHeaderModifier) -> Result<Filter, Invalid> {
    change_from_api(m.add, m.set, m.remove).map(Filter::RequestHeaders)
}

pub(crate) fn response_headers_to_api(change: &HeaderChange) -> api::ResponseHeaderModifier {
    api::ResponseHeaderModifier {
        add: headers_to_api(&change.add),
        set: headers_to_api(&change.set),
        remove: change.remove.clone(),
    }
}

pub(crate) fn response_headers_from_api(m: api::ResponseHeaderModifier) -> Result<Filter, Invalid> {
    change_from_api(m.add, m.set, m.remove).map(Filter::ResponseHeaders)
}

fn change_from_api(
    add: Option<http_types::Headers>,
    set: Option<http_types::Headers>,
    remove: Vec<String>,
) -> Result<HeaderChange, Invalid> {
    Ok(HeaderChange {
        add: headers_from_api(add)?,
        set: headers_from_api(set)?,
        remove: remove.into_iter().map(|name| name.to_ascii_lowercase()).collect(),
    })
}

pub(crate) fn redirect_to_api(redirect: &Redirect) -> api::RequestRedirect {
    use api::path_modifier::Replace;
    api::RequestRedirect {
        scheme: redirect.scheme.as_deref().map(|scheme| http_types::Scheme {
            r#type: Some(match scheme {
                "http" => http_types::scheme::Type::Registered(http_types::scheme::Registered::Http.into()),
                "https" => http_types::scheme::Type::Registered(http_types::scheme::Registered::Https.into()),
                other => http_types::scheme::Type::Unregistered(other.to_string()),
            }),
        }),
        host: redirect.host.clone().unwrap_or_default(),
        path: redirect.path.as_ref().map(|path| api::PathModifier {
            replace: Some(match path {
                PathChange::Full(path) => Replace::Full(path.clone()),
                PathChange::Prefix(path) => Replace::Prefix(path.clone()),
            }),
        }),
        port: redirect.port.map_or(0, u32::from),
        status: redirect.status.into(),
    }
}

pub(crate) fn redirect_from_api(redirect: api::RequestRedirect) -> Result<Filter, Invalid> {
    use api::path_modifier::Replace;
    let scheme = match redirect.scheme.and_then(|scheme| scheme.r#type) {
        None => None,
        Some(http_types::scheme::Type::Registered(n)) => {
            let known = http_types::scheme::Registered::try_from(n);
            let known = known.map_err(|_| Invalid::new("filter.redirect.scheme", n))?;
            Some(known.as_str_name().to_ascii_lowercase())
        }
        Some(http_types::scheme::Type::Unregistered(text)) => Some(text),
    };
    let path = match redirect.path.and_then(|path| path.replace) {
        None => None,
        Some(Replace::Full(path)) => Some(PathChange::Full(path)),
        Some(Replace::Prefix(path)) => Some(PathChange::Prefix(path)),
    };
    let status = match redirect.status {
        0 => 302,
        status => http_status(status, "filter.redirect.status")?,
    };
    Ok(Filter::Redirect(Redirect {
        scheme,
        host: (!redirect.host.is_empty()).then_some(redirect.host),
        port: match crate::common::port(redirect.port, "filter.redirect.port")? {
            0 => None,
            port => Some(port),
        },
        path,
        status,
    }))
}

fn http_status(status: u32, field: &'static str) -> Result<u16, Invalid> {
    u16::try_from(status)
        .ok()
        .filter(|status| (100..1000).contains(status))
        .ok_or_else(|| Invalid::new(field, format!("{status} is no HTTP status")))
}

pub(crate) fn fail_to_api(status: u16, message: &str, ratio: f64) -> api::HttpFailureInjector {
    api::HttpFailureInjector {
        status: status.into(),
        message: message.into(),
        ratio: Some(ratio_to_api(ratio)),
    }
}

pub(crate) fn fail_from_api(fail: api::HttpFailureInjector) -> Result<Filter, Invalid> {
    let status = http_status(fail.status, "filter.failure_injector.status")?;
    Ok(Filter::Fail { status, message: fail.message, ratio: ratio_from_api(fail.ratio)? })
}

/// A gRPC failure is kept under its code, which is below every HTTP status.
pub(crate) fn grpc_fail_to_api(code: u16, message: &str, ratio: f64) -> grpc_route::GrpcFailureInjector {
    grpc_route::GrpcFailureInjector {
        code: code.into(),
        message: message.into(),
        ratio: Some(ratio_to_api(ratio)),
    }
}

pub(crate) fn grpc_fail_from_api(fail: grpc_route::GrpcFailureInjector) -> Result<Filter, Invalid> {
    let code = u16::try_from(fail.code).ok().filter(|code| *code <= 16);
    let code = code.ok_or_else(|| Invalid::new("filter.failure_injector.code", fail.code))?;
    Ok(Filter::Fail { status: code, message: fail.message, ratio: ratio_from_api(fail.ratio)? })
}

const RATIO_PARTS: u32 = 1_000_000;

fn ratio_to_api(ratio: f64) -> api::Ratio {
    let numerator = (ratio.clamp(0.0, 1.0) * f64::from(RATIO_PARTS)).round() as u32;
    api::Ratio { numerator, denominator: RATIO_PARTS }
}

fn ratio_from_api(ratio: Option<api::Ratio>) -> Result<f64, Invalid> {
    match ratio {
        None => Ok(1.0),
        Some(r) if r.denominator != 0 => Ok((f64::from(r.numerator) / f64::from(r.denominator)).min(1.0)),
        Some(_) => Err(Invalid::new("filter.failure_injector.ratio", "denominator 0")),
    }
}
