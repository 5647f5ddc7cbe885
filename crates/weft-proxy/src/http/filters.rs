//! What a route does to a message besides forwarding it.

use super::{body::Body, headers, instead::Injected};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use weft_fault::{Code, Fault, Phase};
use weft_model::http::{Filter, HeaderChange, HttpMatch, PathChange, PathMatch, Redirect, Rewrite};

/// What the filters decided about a request.
pub(crate) enum Outcome {
    Forward,
    Answer(Box<Response<Body>>),
    Inject(Injected),
    Refuse(Fault),
}

/// Applies a rule's filters in order. `matches` are the rule's: a redirect may replace the path prefix that matched.
pub(crate) fn request<B>(filters: &[Filter], request: &mut Request<B>, matches: &[HttpMatch]) -> Outcome {
    for filter in filters {
        match filter {
            Filter::RequestHeaders(change) => apply(change, request.headers_mut()),
            Filter::ResponseHeaders(_) => {}
            Filter::Redirect(redirect) => {
                match redirected(redirect, request, prefix_of(matches, request.uri().path())) {
                    Some(response) => return Outcome::Answer(Box::new(response)),
                    None => {
                        let fault = Fault::new(Code::FilterUnknown).in_phase(Phase::Route);
                        return Outcome::Refuse(fault.fact("redirect", "makes no valid location"));
                    }
                }
            }
            Filter::Fail { status, message, ratio } => {
                if *ratio >= 1.0 || rand::random::<f64>() < *ratio {
                    return Outcome::Inject(Injected::new(*status, message));
                }
            }
            Filter::RewriteUrl(rewrite) => {
                let prefix = prefix_of(matches, request.uri().path()).map(str::to_owned);
                if rewrite_url(rewrite, request, prefix.as_deref()).is_none() {
                    let fault = Fault::new(Code::FilterUnknown).in_phase(Phase::Route);
                    return Outcome::Refuse(fault.fact("rewrite", "makes no valid URL"));
                }
            }
            // Copies are made where the body is.
            Filter::Mirror(_) => {}
            Filter::Unknown => {
                return Outcome::Refuse(Fault::new(Code::FilterUnknown).in_phase(Phase::Route));
            }
        }
    }
    Outcome::Forward
}

/// Applies what the filters say about the response.
pub(crate) fn response(filters: &[Filter], headers: &mut HeaderMap) {
    for filter in filters {
        if let Filter::ResponseHeaders(change) = filter {
            apply(change, headers);
        }
    }
}

/// The prefix of a rule that a redirect may replace.
fn prefix_of<'m>(matches: &'m [HttpMatch], path: &str) -> Option<&'m str> {
    matches.iter().find_map(|m| match &m.path {
        Some(PathMatch::Prefix(prefix)) if path.starts_with(prefix.trim_end_matches('/')) => {
            Some(prefix.as_str())
        }
        _ => None,
    })
}

fn apply(change: &HeaderChange, headers: &mut HeaderMap) {
    let parsed = |(name, value): &(String, String)| {
        Some((HeaderName::try_from(name.as_str()).ok()?, HeaderValue::try_from(value.as_str()).ok()?))
    };
    for (name, value) in change.set.iter().filter_map(parsed) {
        headers.insert(name, value);
    }
    for (name, value) in change.add.iter().filter_map(parsed) {
        headers.append(name, value);
    }
    for name in &change.remove {
        headers.remove(name.as_str());
    }
}

fn redirected<B>(redirect: &Redirect, request: &Request<B>, prefix: Option<&str>) -> Option<Response<Body>> {
    let authority = headers::authority(request)?;
    let host = match &redirect.host {
        Some(host) => host.clone(),
        None => headers::host(authority).into_owned(),
    };
    let scheme = redirect.scheme.as_deref().or(request.uri().scheme_str()).unwrap_or("http");
    let default_port = match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    // A port given is kept; else a new scheme or host brings its own default, and the old one stays otherwise.
    let port = match redirect.port {
        Some(port) => Some(port),
        None if redirect.scheme.is_some() || redirect.host.is_some() => None,
        None => authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok()),
    };
    let port = port.filter(|port| Some(*port) != default_port);
    let path = changed_path(redirect.path.as_ref(), request.uri().path(), prefix)?;
    let query = request.uri().query().map_or(String::new(), |query| format!("?{query}"));
    let port = port.map_or(String::new(), |port| format!(":{port}"));
    let location = HeaderValue::try_from(format!("{scheme}://{host}{port}{path}{query}")).ok()?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::from_u16(redirect.status).ok()?;
    response.headers_mut().insert(header::LOCATION, location);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    Some(response)
}

fn changed_path(change: Option<&PathChange>, path: &str, prefix: Option<&str>) -> Option<String> {
    Some(match change {
        None => path.to_owned(),
        Some(PathChange::Full(full)) => full.clone(),
        Some(PathChange::Prefix(new)) => {
            let rest = path.strip_prefix(prefix?.trim_end_matches('/'))?.trim_start_matches('/');
            let new = new.trim_end_matches('/');
            if rest.is_empty() && !new.is_empty() { new.to_owned() } else { format!("{new}/{rest}") }
        }
    })
}

/// Asks the backend for another URL. The request keeps its form: a target without an authority stays so.
fn rewrite_url<B>(rewrite: &Rewrite, request: &mut Request<B>, prefix: Option<&str>) -> Option<()> {
    let mut parts = request.uri().clone().into_parts();
    if rewrite.path.is_some() {
        let path = changed_path(rewrite.path.as_ref(), request.uri().path(), prefix)?;
        let query = request.uri().query().map_or(String::new(), |query| format!("?{query}"));
        parts.path_and_query = Some(format!("{path}{query}").parse().ok()?);
    }
    if let Some(host) = &rewrite.host {
        if parts.authority.is_some() {
            parts.authority = Some(host.parse().ok()?);
        }
        if parts.authority.is_none() || request.headers().contains_key(header::HOST) {
            request.headers_mut().insert(header::HOST, HeaderValue::try_from(host).ok()?);
        }
    }
    *request.uri_mut() = Uri::from_parts(parts).ok()?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_rewritten_in_the_form_they_have() {
        let to = |rewrite: &Rewrite, target: &str| {
            let mut request = Request::get(target).header("host", "web").body(()).unwrap();
            rewrite_url(rewrite, &mut request, Some("/a")).unwrap();
            format!("{} {}", request.uri(), request.headers()["host"].to_str().unwrap())
        };
        let path = Rewrite { host: None, path: Some(PathChange::Prefix("/v2".into())) };
        assert_eq!(to(&path, "/a/b?q=1"), "/v2/b?q=1 web");
        let both = Rewrite { host: Some("other:80".into()), path: Some(PathChange::Full("/x".into())) };
        assert_eq!(to(&both, "/a/b?q=1"), "/x?q=1 other:80");
        assert_eq!(to(&both, "http://web/a"), "http://other:80/x other:80");
        let mut request = Request::get("/b").body(()).unwrap();
        assert_eq!(rewrite_url(&path, &mut request, None), None, "no prefix to replace");
    }

    fn location(redirect: Redirect, prefix: Option<&str>) -> String {
        let request = Request::get("/a/b?q=1").header("host", "Web:8080").body(()).unwrap();
        let response = redirected(&redirect, &request, prefix).unwrap();
        response.headers()["location"].to_str().unwrap().to_owned()
    }

    #[test]
    fn redirects_keep_what_they_do_not_change() {
        let base = Redirect { status: 302, ..Redirect::default() };
        assert_eq!(location(base.clone(), None), "http://web:8080/a/b?q=1");
        let https = Redirect { scheme: Some("https".into()), ..base.clone() };
        assert_eq!(location(https, None), "https://web/a/b?q=1");
        let port = Redirect { port: Some(80), ..base.clone() };
        assert_eq!(location(port, None), "http://web/a/b?q=1");
        let path = Redirect { path: Some(PathChange::Prefix("/x/".into())), ..base };
        assert_eq!(location(path.clone(), Some("/a")), "http://web:8080/x/b?q=1");
        assert_eq!(location(path, Some("/a/b")), "http://web:8080/x?q=1");
    }

    #[test]
    fn header_changes_apply_in_the_order_of_the_gateway_api() {
        let change = HeaderChange {
            set: vec![("x".into(), "1".into())],
            add: vec![("x".into(), "2".into()), ("bad name".into(), "".into())],
            remove: vec!["y".into()],
        };
        let mut request = Request::get("/").header("x", "0").header("y", "0").body(()).unwrap();
        let outcome = self::request(&[Filter::RequestHeaders(change)], &mut request, &[]);
        assert!(matches!(outcome, Outcome::Forward));
        let values: Vec<_> = request.headers().get_all("x").iter().collect();
        assert_eq!(values, ["1", "2"]);
        assert!(!request.headers().contains_key("y"));
        let refused = self::request(&[Filter::Unknown], &mut request, &[]);
        assert!(matches!(refused, Outcome::Refuse(fault) if fault.code() == Code::FilterUnknown));
    }
}
