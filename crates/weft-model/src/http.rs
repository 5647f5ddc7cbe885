//! HTTP matches and filters, shared by inbound and outbound routes.

use crate::meta::Meta;
use regex::{Regex, RegexBuilder};
use std::{cmp::Ordering, sync::Arc};

/// What routing sees of a request. `host` is the authority without its port, lower case.
#[derive(Clone, Copy, Debug)]
pub struct RequestParts<'a> {
    pub method: &'a str,
    pub host: &'a str,
    pub path: &'a str,
    pub query: Option<&'a str>,
    /// Looks a header up by lower-case name; the first value that is text.
    pub headers: &'a dyn Headers,
}

pub trait Headers: std::fmt::Debug {
    fn get<'s>(&'s self, lower_case_name: &str) -> Option<&'s str>;
}

impl Headers for Vec<(String, String)> {
    fn get<'s>(&'s self, name: &str) -> Option<&'s str> {
        self.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMatch {
    Exact(String),
    /// `*.example.com` as `example.com`.
    Suffix(String),
}

/// Exact beats a longer suffix, which beats a shorter one, which beats "any host".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostSpecificity {
    Any,
    Suffix(usize),
    Exact,
}

impl HostMatch {
    /// The best match among `hosts`, `None` when there are hosts and none matches.
    pub fn best(hosts: &[HostMatch], host: &str) -> Option<HostSpecificity> {
        if hosts.is_empty() {
            return Some(HostSpecificity::Any);
        }
        hosts
            .iter()
            .filter_map(|h| match h {
                HostMatch::Exact(name) => name.eq_ignore_ascii_case(host).then_some(HostSpecificity::Exact),
                HostMatch::Suffix(suffix) => {
                    let cut = host.len().checked_sub(suffix.len())?;
                    let tail = host.get(cut..)?;
                    (cut > 1 && tail.eq_ignore_ascii_case(suffix) && host.as_bytes()[cut - 1] == b'.')
                        .then_some(HostSpecificity::Suffix(suffix.len()))
                }
            })
            .max()
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpMatch {
    pub path: Option<PathMatch>,
    pub headers: Vec<HeaderMatch>,
    pub query: Vec<QueryMatch>,
    pub method: Option<String>,
}

#[derive(Clone, Debug)]
pub enum PathMatch {
    Exact(String),
    /// Whole path elements, as the Gateway API says: `/a` matches `/a` and `/a/b`, not `/ab`.
    Prefix(String),
    Regex(Pattern),
}

#[derive(Clone, Debug)]
pub enum TextMatch {
    Exact(String),
    Regex(Pattern),
}

#[derive(Clone, Debug, PartialEq)]
pub struct HeaderMatch {
    /// Lower case.
    pub name: String,
    pub value: TextMatch,
}

#[derive(Clone, Debug, PartialEq)]
pub struct QueryMatch {
    pub name: String,
    pub value: TextMatch,
}

impl PartialEq for PathMatch {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (PathMatch::Exact(a), PathMatch::Exact(b)) | (PathMatch::Prefix(a), PathMatch::Prefix(b)) => {
                a == b
            }
            (PathMatch::Regex(a), PathMatch::Regex(b)) => a.as_str() == b.as_str(),
            _ => false,
        }
    }
}
impl PartialEq for TextMatch {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (TextMatch::Exact(a), TextMatch::Exact(b)) => a == b,
            (TextMatch::Regex(a), TextMatch::Regex(b)) => a.as_str() == b.as_str(),
            _ => false,
        }
    }
}

/// A regular expression that must match the whole text, as the Gateway API's do.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    anchored: Regex,
}

/// The compiled form of one expression; a controller's user writes it, so it is bounded.
const PATTERN_BYTES: usize = 1 << 20;

impl Pattern {
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        // By itself first: what is put around it must not complete what is broken.
        RegexBuilder::new(text).size_limit(PATTERN_BYTES).build()?;
        // Anchored rather than measured: `a|ab` finds `a` in `ab` and looks no further.
        let anchored = RegexBuilder::new(&format!(r"\A(?:{text})\z")).size_limit(PATTERN_BYTES).build()?;
        Ok(Pattern { text: text.to_owned(), anchored })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn fits(&self, text: &str) -> bool {
        self.anchored.is_match(text)
    }
}

/// How well a match fits: exact path, longer prefix, more headers, more query parameters, method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatchSpecificity {
    path: PathSpecificity,
    headers: usize,
    query: usize,
    method: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum PathSpecificity {
    #[default]
    None,
    Regex(usize),
    Prefix(usize),
    Exact(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteSpecificity {
    pub host: HostSpecificity,
    pub matched: MatchSpecificity,
}

impl PartialOrd for RouteSpecificity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for RouteSpecificity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.host.cmp(&other.host).then(self.matched.cmp(&other.matched))
    }
}

/// The best of `matches` that fits, `Some(default)` when there are none (match all).
pub fn best_match(matches: &[HttpMatch], request: &RequestParts<'_>) -> Option<MatchSpecificity> {
    if matches.is_empty() {
        return Some(MatchSpecificity::default());
    }
    matches.iter().filter_map(|m| m.matches(request)).max()
}

impl HttpMatch {
    pub fn matches(&self, request: &RequestParts<'_>) -> Option<MatchSpecificity> {
        let path = match &self.path {
            None => PathSpecificity::None,
            Some(path) => path.matches(request.path)?,
        };
        if let Some(method) = &self.method
            && method != request.method
        {
            return None;
        }
        let headers =
            self.headers.iter().all(|h| request.headers.get(&h.name).is_some_and(|v| h.value.matches(v)));
        let query = self.query.iter().all(|q| {
            query_pairs(request.query.unwrap_or(""))
                .any(|(name, value)| name == q.name && q.value.matches(&value))
        });
        (headers && query).then_some(MatchSpecificity {
            path,
            headers: self.headers.len(),
            query: self.query.len(),
            method: self.method.is_some(),
        })
    }
}

impl PathMatch {
    pub fn fits(&self, path: &str) -> bool {
        self.matches(path).is_some()
    }

    fn matches(&self, path: &str) -> Option<PathSpecificity> {
        match self {
            PathMatch::Exact(exact) => (exact == path).then_some(PathSpecificity::Exact(exact.len())),
            PathMatch::Prefix(prefix) => {
                let bare = prefix.trim_end_matches('/');
                let rest = path.strip_prefix(bare)?;
                // "/" takes every request, also `OPTIONS *`, whose target is no path.
                let whole = bare.is_empty() || rest.is_empty() || rest.starts_with('/');
                whole.then_some(PathSpecificity::Prefix(prefix.len()))
            }
            PathMatch::Regex(re) => re.fits(path).then_some(PathSpecificity::Regex(re.as_str().len())),
        }
    }
}

impl TextMatch {
    fn matches(&self, text: &str) -> bool {
        match self {
            TextMatch::Exact(exact) => exact == text,
            TextMatch::Regex(re) => re.fits(text),
        }
    }
}

/// Name and value of each query parameter, percent-decoded; `+` is a space.
fn query_pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    query.split('&').filter(|p| !p.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decode(name), percent_decode(value))
    })
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = (byte == b'%')
            .then(|| text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()))
            .flatten();
        out.push(escaped.unwrap_or(if byte == b'+' { b' ' } else { byte }));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What a route does to a request or response besides forwarding it.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    RequestHeaders(HeaderChange),
    ResponseHeaders(HeaderChange),
    Redirect(Redirect),
    /// Answers instead of the backend, for `ratio` (0 to 1) of the requests.
    Fail {
        status: u16,
        message: String,
        ratio: f64,
    },
    RewriteUrl(Rewrite),
    Mirror(Mirror),
    /// A filter this build does not know fails the requests of its rule, and only those.
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChange {
    pub add: Vec<(String, String)>,
    pub set: Vec<(String, String)>,
    pub remove: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    pub scheme: Option<String>,
    pub host: Option<String>,
    pub port: Option<u16>,
    pub path: Option<PathChange>,
    /// 302 unless given.
    pub status: u16,
}

/// What the backend is asked for instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    pub host: Option<String>,
    pub path: Option<PathChange>,
}

/// A copy of the request for another service, whose answer nobody waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirror {
    pub meta: Arc<Meta>,
    /// `host:port`, as `Destination.Get` is asked for it.
    pub path: String,
    /// 0 to 1: the share of the requests that is copied.
    pub fraction: f64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    Full(String),
    Prefix(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(
        method: &'a str,
        host: &'a str,
        path: &'a str,
        query: Option<&'a str>,
        headers: &'a dyn Headers,
    ) -> RequestParts<'a> {
        RequestParts { method, host, path, query, headers }
    }

    #[test]
    fn paths_match_by_whole_elements() {
        let none: Vec<(String, String)> = vec![];
        let fits = |m: PathMatch, path| {
            let m = HttpMatch { path: Some(m), ..Default::default() };
            m.matches(&parts("GET", "h", path, None, &none)).is_some()
        };
        assert!(fits(PathMatch::Prefix("/a".into()), "/a/b"));
        assert!(fits(PathMatch::Prefix("/a/".into()), "/a"));
        assert!(!fits(PathMatch::Prefix("/a".into()), "/ab"));
        assert!(fits(PathMatch::Prefix("/".into()), "/anything"));
        assert!(fits(PathMatch::Prefix("/".into()), "*"), "OPTIONS *");
        assert!(!fits(PathMatch::Prefix("/a".into()), "*"));
        assert!(fits(PathMatch::Regex(Pattern::new("/v[0-9]+").unwrap()), "/v12"));
        assert!(!fits(PathMatch::Regex(Pattern::new("/v[0-9]+").unwrap()), "/v12/x"));
        // The first alternative that fits the beginning is not the one that fits the whole.
        assert!(fits(PathMatch::Regex(Pattern::new("/a|/ab").unwrap()), "/ab"));
        assert!(!fits(PathMatch::Regex(Pattern::new("/a").unwrap()), "/a\n"));
        assert!(Pattern::new("a)|(b").is_err());
        assert!(Pattern::new("(?x) a # comment").is_err(), "it would swallow what anchors it");
    }

    #[test]
    fn more_specific_wins() {
        let headers: Vec<(String, String)> = vec![("x-user".into(), "ann".into())];
        let request = parts("GET", "h", "/a/b", Some("q=a%20b&r=1"), &headers);
        let by = |m: HttpMatch| m.matches(&request).unwrap();
        let exact = by(HttpMatch { path: Some(PathMatch::Exact("/a/b".into())), ..Default::default() });
        let prefix = by(HttpMatch { path: Some(PathMatch::Prefix("/a".into())), ..Default::default() });
        let header = by(HttpMatch {
            path: Some(PathMatch::Prefix("/a".into())),
            headers: vec![HeaderMatch { name: "x-user".into(), value: TextMatch::Exact("ann".into()) }],
            ..Default::default()
        });
        let query = by(HttpMatch {
            query: vec![QueryMatch { name: "q".into(), value: TextMatch::Exact("a b".into()) }],
            ..Default::default()
        });
        assert!(exact > header && header > prefix && prefix > query && query > MatchSpecificity::default());
    }

    #[test]
    fn hosts_match_exactly_or_by_suffix() {
        let hosts = [HostMatch::Suffix("example.com".into()), HostMatch::Exact("a.example.com".into())];
        assert_eq!(HostMatch::best(&hosts, "a.example.com"), Some(HostSpecificity::Exact));
        assert_eq!(HostMatch::best(&hosts, "b.example.com"), Some(HostSpecificity::Suffix(11)));
        assert_eq!(HostMatch::best(&hosts, "example.com"), None);
        assert_eq!(HostMatch::best(&hosts, "bexample.com"), None);
        assert_eq!(HostMatch::best(&[], "x"), Some(HostSpecificity::Any));
    }

    #[test]
    fn percent_decoding_survives_nonsense() {
        assert_eq!(percent_decode("a%2fb+c%zz%4"), "a/b c%zz%4");
    }
}
