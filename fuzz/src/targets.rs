//! What each target does with its bytes. What was read can be written, and what was written is read as the same.

use linkerd2_proxy_api::{destination, inbound as inbound_api, outbound as outbound_api};
use prost::Message;
use std::{collections::HashMap, ffi::OsString, time::Instant};
use weft_model::http::{
    HeaderMatch, Headers, HostMatch, HttpMatch, PathMatch, Pattern, QueryMatch, RequestParts, TextMatch,
    best_match,
};
use weft_proxy::{config::Config, foreign};
use weft_tls::hello::{self, Hello};
use weft_wire::{destination::EndpointSet, inbound, outbound, profile, transport_header::TransportHeader};

/// Of conversions. The first writing may lose what a message cannot say, such as why an identity could not be read.
const READABLE: &str = "what is written can be read";

/// The first bytes of a connection. What is decided early must not be decided otherwise by what follows.
pub fn client_hello(bytes: &[u8]) {
    let whole = hello::peek(bytes);
    let mut decided = None;
    for end in (0..bytes.len()).step_by(1 + bytes.len() / 64) {
        match (hello::peek(&bytes[..end]), &decided) {
            (Hello::Incomplete, None) => {}
            (first, None) => decided = Some(first),
            (later, Some(first)) => assert_eq!(&later, first, "after {end} bytes"),
        }
    }
    if let Some(decided) = decided {
        assert_eq!(whole, decided);
    }
}

/// The header of a direct connection.
pub fn transport_header(bytes: &[u8]) {
    let Ok(Some((header, length))) = TransportHeader::decode(bytes) else { return };
    assert!(length <= bytes.len());
    assert_eq!(TransportHeader::decode(&bytes[..length]), Ok(Some((header.clone(), length))));
    assert_eq!(TransportHeader::decode(&bytes[..length - 1]), Ok(None), "one byte less is not whole");
    let written = header.encode();
    assert_eq!(TransportHeader::decode(&written), Ok(Some((header, written.len()))));
}

/// What the controller says about a port.
pub fn server_policy(bytes: &[u8]) {
    let Ok(message) = inbound_api::Server::decode(bytes) else { return };
    let Ok(policy) = inbound::from_api(message) else { return };
    let again = |policy| inbound::from_api(inbound::to_api(policy)).expect(READABLE);
    let written = again(&policy);
    assert_eq!(again(&written), written);
}

/// What the controller says about a destination.
pub fn outbound_policy(bytes: &[u8]) {
    let Ok(message) = outbound_api::OutboundPolicy::decode(bytes) else { return };
    let Ok(policy) = outbound::from_api(message) else { return };
    let again = |policy| outbound::from_api(outbound::to_api(policy)).expect(READABLE);
    let written = again(&policy);
    assert_eq!(again(&written), written);
}

/// A ServiceProfile, as the controller tells it.
pub fn profile(bytes: &[u8]) {
    let Ok(message) = destination::DestinationProfile::decode(bytes) else { return };
    if let Ok(read) = profile::from_api(message) {
        profile::from_api(profile::to_api(&read)).expect(READABLE);
    }
}

/// Changes to a set of endpoints, one after another.
pub fn endpoints(bytes: &[u8]) {
    let mut set = EndpointSet::default();
    let mut rest = bytes;
    while let Ok(update) = destination::Update::decode_length_delimited(&mut rest) {
        let _refused = set.apply(update);
    }
}

/// A route's match and a request, written as lines: see the corpus. What matches must also be the best of its kind.
pub fn route_match(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (mut matched, mut hosts) = (HttpMatch::default(), Vec::new());
    let (mut method, mut host, mut target, mut fields) = ("GET", "", "/", Fields::default());
    for line in text.lines() {
        let Some((key, value)) = line.split_once(' ') else { continue };
        let (name, of_name) = value.split_once('=').unwrap_or((value, ""));
        match key {
            "exact" => matched.path = Some(PathMatch::Exact(value.into())),
            "prefix" => matched.path = Some(PathMatch::Prefix(value.into())),
            "regex" => {
                let Ok(pattern) = Pattern::new(value) else { return };
                matched.path = Some(PathMatch::Regex(pattern));
            }
            "method" => matched.method = Some(value.into()),
            "header" => matched
                .headers
                .push(HeaderMatch { name: name.into(), value: TextMatch::Exact(of_name.into()) }),
            "query" => {
                matched.query.push(QueryMatch { name: name.into(), value: TextMatch::Exact(of_name.into()) })
            }
            "hostname" => hosts.push(HostMatch::Exact(value.into())),
            "suffix" => hosts.push(HostMatch::Suffix(value.into())),
            ":method" => method = value,
            ":host" => host = value,
            ":target" => target = value,
            ":field" => drop(fields.0.insert(name.to_owned(), of_name.to_owned())),
            _ => {}
        }
    }
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let request = RequestParts { method, host, path, query, headers: &fields };
    let fits = matched.matches(&request);
    assert_eq!(best_match(std::slice::from_ref(&matched), &request), fits);
    let twice = [matched.clone(), HttpMatch::default()];
    assert!(best_match(&twice, &request) >= fits, "an alternative never makes it worse");
    match &matched.path {
        Some(PathMatch::Exact(exact)) if fits.is_some() => assert_eq!(exact, path),
        Some(PathMatch::Prefix(prefix)) if fits.is_some() => {
            assert!(path.starts_with(prefix.trim_end_matches('/')));
        }
        _ => {}
    }
    if let Some(best) = HostMatch::best(&hosts, host) {
        assert!(
            hosts.iter().filter_map(|h| HostMatch::best(std::slice::from_ref(h), host)).all(|h| h <= best)
        );
    }
}

#[derive(Debug, Default)]
struct Fields(HashMap<String, String>);

impl Headers for Fields {
    fn get<'s>(&'s self, lower_case_name: &str) -> Option<&'s str> {
        self.0.get(lower_case_name).map(String::as_str)
    }
}

/// A proxy's environment: lines of NAME=VALUE, durations and addresses among them. Every mistake is told, none is a panic.
pub fn environment(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let set: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let read = Config::from_lookup(|name| {
        set.get(name.strip_prefix("LINKERD2_PROXY_").unwrap_or(name)).map(OsString::from)
    });
    if let Err(faults) = read {
        assert!(!faults.is_empty());
    }
}

/// Durations as routes, header fields and variables write them: whatever can be read can be added to a moment, and reads as
/// the same where both forms know it.
pub fn durations(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for line in text.lines() {
        let (of_field, of_variable) = (weft_model::retry::duration(line), foreign::duration(line));
        for read in [of_field, of_variable].into_iter().flatten() {
            assert!(Instant::now().checked_add(read).is_some(), "{read:?}");
        }
        if let (Some(one), Some(other)) = (of_field, of_variable) {
            assert_eq!(one, other);
        }
    }
}
