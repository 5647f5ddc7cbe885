//! Which requests a tap wants. Pure.

use ipnet::IpNet;
use linkerd2_proxy_api::tap::observe_request::{
    Match as Api,
    r#match::{Match as ApiKind, http, tcp},
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

/// A tree that is deeper, or has more parts, is nobody's question.
const DEPTH: usize = 16;
const PARTS: usize = 256;

/// What is known of a request when it is looked at.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) destination_labels: &'a BTreeMap<String, String>,
    pub(super) route_labels: &'a BTreeMap<String, String>,
    pub(super) scheme: &'a str,
    pub(super) method: &'a str,
    pub(super) authority: &'a str,
    pub(super) path: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Match {
    All(Vec<Match>),
    Any(Vec<Match>),
    Not(Box<Match>),
    Source(Address),
    Destination(Address),
    DestinationLabel(String, String),
    RouteLabel(String, String),
    Scheme(String),
    Method(String),
    Authority(Text),
    Path(Text),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Network(IpNet),
    Ports(u16, u16),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Exact(String),
    Prefix(String),
}

impl Match {
    /// The error says what is wrong with the question.
    pub(super) fn read(api: Api) -> Result<Match, String> {
        let mut parts = 0;
        read(api, DEPTH, &mut parts)
    }

    pub(super) fn holds(&self, subject: &Subject<'_>) -> bool {
        let labelled = |labels: &BTreeMap<String, String>, key: &str, value: &str| {
            labels.get(key).is_some_and(|found| found == value)
        };
        match self {
            Match::All(all) => all.iter().all(|m| m.holds(subject)),
            Match::Any(any) => any.iter().any(|m| m.holds(subject)),
            Match::Not(not) => !not.holds(subject),
            Match::Source(address) => address.holds(subject.source),
            Match::Destination(address) => address.holds(subject.destination),
            Match::DestinationLabel(key, value) => labelled(subject.destination_labels, key, value),
            Match::RouteLabel(key, value) => labelled(subject.route_labels, key, value),
            Match::Scheme(scheme) => subject.scheme.eq_ignore_ascii_case(scheme),
            Match::Method(method) => subject.method == method,
            Match::Authority(text) => text.holds(subject.authority),
            Match::Path(text) => text.holds(subject.path),
        }
    }
}

impl Address {
    fn holds(&self, addr: SocketAddr) -> bool {
        match self {
            Address::Network(net) => net.contains(&addr.ip()),
            Address::Ports(min, max) => (*min..=*max).contains(&addr.port()),
        }
    }
}

impl Text {
    fn holds(&self, text: &str) -> bool {
        match self {
            Text::Exact(exact) => text == exact,
            Text::Prefix(prefix) => text.starts_with(prefix),
        }
    }
}

fn read(api: Api, depth: usize, parts: &mut usize) -> Result<Match, String> {
    *parts += 1;
    if depth == 0 || *parts > PARTS {
        return Err(format!("a match of more than {DEPTH} levels or {PARTS} parts"));
    }
    let mut each = |matches: Vec<Api>| -> Result<Vec<Match>, String> {
        matches.into_iter().map(|m| read(m, depth - 1, parts)).collect()
    };
    Ok(match api.r#match.ok_or("a match without a kind")? {
        ApiKind::All(all) => Match::All(each(all.matches)?),
        ApiKind::Any(any) => Match::Any(each(any.matches)?),
        ApiKind::Not(not) => Match::Not(Box::new(read(*not, depth - 1, parts)?)),
        ApiKind::Source(tcp) => Match::Source(address(tcp.r#match)?),
        ApiKind::Destination(tcp) => Match::Destination(address(tcp.r#match)?),
        ApiKind::DestinationLabel(label) => Match::DestinationLabel(label.key, label.value),
        ApiKind::RouteLabel(label) => Match::RouteLabel(label.key, label.value),
        ApiKind::Http(request) => match request.r#match.ok_or("an HTTP match without a kind")? {
            http::Match::Scheme(scheme) => {
                let scheme: ::http::uri::Scheme = scheme
                    .try_into()
                    .map_err(|e: linkerd2_proxy_api::http_types::InvalidScheme| e.to_string())?;
                Match::Scheme(scheme.as_str().to_owned())
            }
            http::Match::Method(method) => {
                let method: ::http::Method = method
                    .try_into()
                    .map_err(|e: linkerd2_proxy_api::http_types::InvalidMethod| e.to_string())?;
                Match::Method(method.as_str().to_owned())
            }
            http::Match::Authority(text) => Match::Authority(text_of(text.r#match)?),
            http::Match::Path(text) => Match::Path(text_of(text.r#match)?),
        },
    })
}

fn address(api: Option<tcp::Match>) -> Result<Address, String> {
    match api.ok_or("an address match without a kind")? {
        tcp::Match::Netmask(netmask) => {
            let ip = netmask.ip.ok_or("a netmask without an address")?;
            let ip = IpAddr::try_from(ip).map_err(|e| e.to_string())?;
            let length = u8::try_from(netmask.mask).map_err(|e| e.to_string())?;
            IpNet::new(ip, length).map(Address::Network).map_err(|e| e.to_string())
        }
        tcp::Match::Ports(range) => {
            // An upper end of 0 is left out: one port.
            let max = if range.max == 0 { range.min } else { range.max };
            let (min, max) = (u16::try_from(range.min), u16::try_from(max));
            match (min, max) {
                (Ok(min), Ok(max)) if min <= max => Ok(Address::Ports(min, max)),
                _ => Err(format!("a range of ports from {} to {}", range.min, range.max)),
            }
        }
    }
}

fn text_of(api: Option<http::string_match::Match>) -> Result<Text, String> {
    Ok(match api.ok_or("a text match without a kind")? {
        http::string_match::Match::Exact(text) => Text::Exact(text),
        http::string_match::Match::Prefix(text) => Text::Prefix(text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use linkerd2_proxy_api::tap::observe_request::r#match::{Http, Label, Seq, Tcp};

    fn api(kind: ApiKind) -> Api {
        Api { r#match: Some(kind) }
    }

    fn tcp(kind: tcp::Match) -> Tcp {
        Tcp { r#match: Some(kind) }
    }

    fn net(ip: [u8; 4], mask: u32) -> Tcp {
        tcp(tcp::Match::Netmask(tcp::Netmask { ip: Some(IpAddr::from(ip).into()), mask }))
    }

    fn ports(min: u32, max: u32) -> Tcp {
        tcp(tcp::Match::Ports(tcp::PortRange { min, max }))
    }

    fn http_match(kind: http::Match) -> ApiKind {
        ApiKind::Http(Http { r#match: Some(kind) })
    }

    fn text(kind: http::string_match::Match) -> http::StringMatch {
        http::StringMatch { r#match: Some(kind) }
    }

    /// Does it hold for a request to `POST http://web.shop:80/cart` from 10.0.0.1:4321 to 10.0.0.2:8080?
    fn holds(kind: ApiKind) -> bool {
        let labels = BTreeMap::from([("deployment".to_owned(), "web".to_owned())]);
        let routes = BTreeMap::from([("route".to_owned(), "cart".to_owned())]);
        let subject = Subject {
            source: "10.0.0.1:4321".parse().unwrap(),
            destination: "10.0.0.2:8080".parse().unwrap(),
            destination_labels: &labels,
            route_labels: &routes,
            scheme: "http",
            method: "POST",
            authority: "web.shop:80",
            path: "/cart",
        };
        Match::read(api(kind)).unwrap().holds(&subject)
    }

    #[test]
    fn addresses_labels_and_heads_are_compared() {
        let label = |key: &str, value: &str| Label { key: key.into(), value: value.into() };
        let exact = |value: &str| text(http::string_match::Match::Exact(value.into()));
        let prefix = |value: &str| text(http::string_match::Match::Prefix(value.into()));
        assert!(holds(ApiKind::Source(net([10, 0, 0, 0], 24))));
        assert!(!holds(ApiKind::Source(net([10, 0, 0, 2], 32))));
        assert!(holds(ApiKind::Destination(ports(8080, 0))));
        assert!(holds(ApiKind::Destination(ports(8000, 8080))));
        assert!(!holds(ApiKind::Source(ports(8000, 8080))));
        assert!(holds(ApiKind::DestinationLabel(label("deployment", "web"))));
        assert!(!holds(ApiKind::DestinationLabel(label("deployment", "db"))));
        assert!(holds(ApiKind::RouteLabel(label("route", "cart"))));
        assert!(holds(http_match(http::Match::Scheme("http".into()))));
        assert!(!holds(http_match(http::Match::Scheme("https".into()))));
        assert!(holds(http_match(http::Match::Method(::http::Method::POST.into()))));
        assert!(holds(http_match(http::Match::Authority(exact("web.shop:80")))));
        assert!(!holds(http_match(http::Match::Authority(exact("web.shop")))));
        assert!(holds(http_match(http::Match::Path(prefix("/ca")))));
    }

    #[test]
    fn trees_are_evaluated_and_bounded() {
        let (yes, no) = (api(ApiKind::Source(ports(4321, 0))), api(ApiKind::Source(ports(1, 0))));
        let seq = |matches: &[&Api]| Seq { matches: matches.iter().map(|m| (*m).clone()).collect() };
        assert!(holds(ApiKind::All(seq(&[&yes, &yes]))));
        assert!(!holds(ApiKind::All(seq(&[&yes, &no]))));
        assert!(holds(ApiKind::Any(seq(&[&no, &yes]))));
        assert!(holds(ApiKind::Not(Box::new(no.clone()))));
        // As Linkerd has it: all of nothing holds, any of nothing does not.
        assert!(holds(ApiKind::All(seq(&[]))) && !holds(ApiKind::Any(seq(&[]))));
        let mut deep = yes.clone();
        for _ in 0..20 {
            deep = api(ApiKind::Not(Box::new(deep)));
        }
        assert!(Match::read(deep).is_err());
        let wide = Seq { matches: vec![yes; 300] };
        assert!(Match::read(api(ApiKind::All(wide))).is_err());
        for nonsense in [
            ApiKind::Source(ports(9, 8)),
            ApiKind::Source(ports(70_000, 0)),
            ApiKind::Source(net([0; 4], 33)),
        ] {
            assert!(Match::read(api(nonsense)).is_err());
        }
        assert!(Match::read(Api { r#match: None }).is_err());
    }
}
