//! The words of a line: codes, addresses, and the texts by which other proxies tell of failures.

use std::net::{IpAddr, SocketAddr};
use weft_fault::Code;
use weft_wire::record::Direction;

/// A code that stands in the line: `POL-001`, also within `l5d-proxy-error`.
pub(super) fn code(line: &str) -> Option<Code> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').find_map(|word| {
        let (family, number) = word.split_once('-')?;
        let shaped = family.len() == 3 && number.len() == 3 && number.bytes().all(|b| b.is_ascii_digit());
        shaped.then(|| Code::find(word)).flatten()
    })
}

/// Whether a line came from the side that receives or the one that sends: from its spans.
pub(super) fn direction(line: &str) -> Option<Direction> {
    let at = |word: &str| line.find(word);
    match (at("inbound"), at("outbound")) {
        (Some(inbound), Some(outbound)) if outbound < inbound => Some(Direction::Outbound),
        (Some(_), _) => Some(Direction::Inbound),
        (None, Some(_)) => Some(Direction::Outbound),
        (None, None) => None,
    }
}

/// What another proxy's words can stand for. The first text that is found decides, so what says more comes first.
pub(super) fn likely(line: &str) -> &'static [Code] {
    let line = line.to_ascii_lowercase();
    let inbound = direction(&line) == Some(Direction::Inbound);
    let plaintext = line.contains("tls=none") || line.contains("noclienthello");
    let rows: [(&str, &'static [Code]); 27] = [
        ("tls detection timed out", &[Code::DetectTimeout]),
        ("certificate does not match tls identity", &[Code::IdentityMismatch]),
        ("invalidcontenttype", &[Code::PeerNotTls]),
        ("certificate expired", &[Code::CertificateExpired]),
        ("certexpired", &[Code::CertificateExpired]),
        ("unknownissuer", &[Code::CertificateUntrusted]),
        ("unknown issuer", &[Code::CertificateUntrusted]),
        ("tls handshake eof", &[Code::HandshakeEof]),
        ("required id", &[Code::IdentityRequired]),
        ("identity required", &[Code::NoClientCertificate, Code::PlaintextOnOwnPort]),
        (
            "direct connections must be mutually authenticated",
            &[Code::PlaintextOnOwnPort, Code::NoClientCertificate, Code::ClientSilent],
        ),
        (
            "request denied",
            if plaintext { &[Code::PlaintextRefused] } else { &[Code::NoRuleAllows, Code::DefaultDenied] },
        ),
        (
            "connection denied",
            if plaintext { &[Code::PlaintextRefused] } else { &[Code::NoRuleAllows, Code::DefaultDenied] },
        ),
        ("unauthorized request", &[Code::NoRuleAllows, Code::PlaintextRefused]),
        ("unauthorized connection", &[Code::NoRuleAllows, Code::PlaintextRefused]),
        ("injected by policy", &[Code::FailureInjected]),
        ("breaker", &[Code::BreakersOpen]),
        ("no endpoints", &[Code::NoEndpoints]),
        ("connect timed out", if inbound { &[Code::AppConnectTimeout] } else { &[Code::ConnectTimeout] }),
        ("connection refused", if inbound { &[Code::AppRefused] } else { &[Code::ConnectRefused] }),
        ("no route to host", &[Code::Unreachable]),
        ("connection reset", &[Code::ConnectionReset]),
        (
            "fail-fast",
            &[
                Code::AllEndpointsFailing,
                Code::NoEndpoints,
                Code::Unresolved,
                Code::DiscoveryFailing,
                Code::BreakersOpen,
            ],
        ),
        ("service unavailable", &[Code::AllEndpointsFailing, Code::NoEndpoints, Code::Unresolved]),
        (
            "client error (connect)",
            if inbound { &[Code::AppRefused] } else { &[Code::ConnectRefused, Code::ConnectTimeout] },
        ),
        ("response timeout", &[Code::ResponseTimeout]),
        ("loop detected", &[Code::ConnectionLoop, Code::GatewayLoop]),
    ];
    rows.into_iter().find(|(text, _)| line.contains(text)).map_or(&[], |(_, codes)| codes)
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) client: Option<IpAddr>,
    pub(super) server: Option<SocketAddr>,
    pub(super) authority: Option<String>,
}

/// The ends that a line names. Of several names for the server's, the one nearest to it counts.
pub(super) fn addresses(line: &str) -> Addresses {
    let mut found = Addresses::default();
    let mut rank = u8::MAX;
    let mut before = "";
    for word in words(line) {
        let (key, value) = word.split_once('=').unwrap_or((before, word));
        before = word;
        let value = value.trim_matches(['"', '\'', ':', ';', ')', '(', ']', '[']);
        match key {
            "client.addr" | "client.ip" | "client" | "from" => {
                let ip = value.parse::<SocketAddr>().map(|addr| addr.ip()).or_else(|_| value.parse());
                found.client = found.client.or(ip.ok());
            }
            // A name that says by itself what it is, wherever it stands.
            _ if value.starts_with("Service.") => {
                found.authority = found.authority.take().or_else(|| authority(value))
            }
            _ => {
                let Some(now) = SERVERS.iter().position(|name| *name == key) else { continue };
                let now = u8::try_from(now).unwrap_or(u8::MAX);
                match value.parse::<SocketAddr>() {
                    Ok(addr) if now < rank => (found.server, rank) = (Some(addr), now),
                    Ok(_) => {}
                    Err(_) => found.authority = found.authority.take().or_else(|| authority(value)),
                }
            }
        }
    }
    found
}

/// What the server's address or name stands behind, the nearest to the endpoint first.
const SERVERS: [&str; 13] = [
    "peer.addr",
    "endpoint",
    "server.addr",
    "target.addr",
    "peer",
    "target",
    "dst",
    "server",
    "addr",
    "service",
    "authority",
    "name",
    "to",
];

/// `web.shop.svc.cluster.local:80`, and what Linkerd calls `Service.shop.web:80`.
fn authority(text: &str) -> Option<String> {
    if let Some(rest) = text.strip_prefix("Service.") {
        let (name, port) = rest.split_once(':')?;
        let (namespace, name) = name.split_once('.')?;
        return Some(format!("{name}.{namespace}:{port}"));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let named = host.contains('.') && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
    let numbered = port.is_empty() || port.parse::<u16>().is_ok();
    (named && numbered && host.parse::<IpAddr>().is_err()).then(|| text.to_owned())
}

/// Words, and what stands in the braces of spans.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| c.is_whitespace() || matches!(c, '{' | '}' | ',')).filter(|word| !word.is_empty())
}

fn value_of<'a>(line: &'a str, keys: &[&str]) -> Option<&'a str> {
    let found = words(line).find_map(|word| {
        let (key, value) = word.split_once('=')?;
        keys.contains(&key).then_some(value)
    });
    found.map(|value| value.trim_matches(['"', ':'])).filter(|value| !value.is_empty())
}

/// When it was written: what stands in the line after `at=`, or any instant of RFC 3339.
pub(super) fn time(line: &str) -> Option<&str> {
    let is_instant = |word: &&str| word.len() >= 20 && word.as_bytes()[4] == b'-' && word.contains('T');
    value_of(line, &["at", "timestamp"])
        .or_else(|| words(line).map(|word| word.trim_matches(['"', '[', ']'])).find(is_instant))
}

pub(super) fn tls(line: &str) -> Option<String> {
    value_of(line, &["client.tls", "tls"]).map(str::to_owned)
}

pub(super) fn connection(line: &str) -> Option<String> {
    value_of(line, &["connection", "connection.id", "conn"]).map(str::to_owned)
}
