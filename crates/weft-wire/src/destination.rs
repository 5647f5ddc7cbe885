//! `io.linkerd.proxy.destination`: endpoints and their updates.

use crate::common::{Invalid, meta_from_api, meta_to_api, need, port};
use linkerd2_proxy_api::destination as api;
use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use weft_model::{
    identity::{Identity, PeerIdentity, Unknown},
    outbound::{Endpoint, Endpoints, Http2Client, Http2KeepAlive, Http2Windows, ProtocolHint},
};

// --- one endpoint

pub fn endpoint_to_api(endpoint: &Endpoint) -> api::WeightedAddr {
    use api::protocol_hint::{H2, Opaque, OpaqueTransport, Protocol};
    let tls_identity = match &endpoint.identity {
        PeerIdentity::Meshed { id, server_name } => Some(identity_to_api(id, server_name)),
        PeerIdentity::Unmeshed | PeerIdentity::Unknown(_) => None,
    };
    let protocol = match endpoint.hint {
        ProtocolHint::Unknown => None,
        ProtocolHint::H2 => Some(Protocol::H2(H2 {})),
        ProtocolHint::Opaque => Some(Protocol::Opaque(Opaque {})),
    };
    let opaque_transport = endpoint.transport_port.map(|port| OpaqueTransport { inbound_port: port.into() });
    api::WeightedAddr {
        addr: Some(endpoint.addr.into()),
        weight: endpoint.weight,
        metric_labels: endpoint.labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        tls_identity,
        protocol_hint: (protocol.is_some() || opaque_transport.is_some())
            .then_some(api::ProtocolHint { protocol, opaque_transport }),
        authority_override: endpoint
            .authority_override
            .clone()
            .map(|authority_override| api::AuthorityOverride { authority_override }),
        http2: http2_to_api(&endpoint.http2),
        resource_ref: endpoint.meta.as_deref().map(meta_to_api),
    }
}

fn identity_to_api(id: &Identity, server_name: &Identity) -> api::TlsIdentity {
    use api::tls_identity::{DnsLikeIdentity, Strategy, UriLikeIdentity};
    let strategy = if id.is_uri() {
        Strategy::UriLikeIdentity(UriLikeIdentity { uri: id.to_string() })
    } else {
        Strategy::DnsLikeIdentity(DnsLikeIdentity { name: id.to_string() })
    };
    let server_name = Some(DnsLikeIdentity { name: server_name.to_string() });
    api::TlsIdentity { strategy: Some(strategy), server_name }
}

/// `shared` are the labels of the set the endpoint came in. A missing identity is [`Unknown::Unmarked`]: the protocol
/// cannot say more.
pub fn endpoint_from_api(
    addr: api::WeightedAddr,
    shared: &HashMap<String, String>,
) -> Result<Endpoint, Invalid> {
    use api::protocol_hint::Protocol;
    let socket = socket_from_api(need(addr.addr, "endpoint.addr")?)?;
    let identity = match addr.tls_identity {
        None => PeerIdentity::Unknown(Unknown::Unmarked),
        Some(tls) => identity_from_api(tls).unwrap_or(PeerIdentity::Unknown(Unknown::Malformed)),
    };
    let hint = addr.protocol_hint.unwrap_or_default();
    let mut labels: BTreeMap<String, String> = shared.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    labels.extend(addr.metric_labels);
    Ok(Endpoint {
        addr: socket,
        identity,
        hint: match hint.protocol {
            None => ProtocolHint::Unknown,
            Some(Protocol::H2(_)) => ProtocolHint::H2,
            Some(Protocol::Opaque(_)) => ProtocolHint::Opaque,
        },
        transport_port: hint
            .opaque_transport
            .and_then(|transport| u16::try_from(transport.inbound_port).ok())
            .filter(|port| (1..u16::MAX).contains(port)),
        authority_override: addr
            .authority_override
            .map(|authority| authority.authority_override)
            .filter(|authority| authority.parse::<http::uri::Authority>().is_ok()),
        weight: addr.weight,
        labels: Arc::new(labels),
        // An origin that cannot be read is no reason to lose the endpoint.
        meta: addr.resource_ref.and_then(|meta| meta_from_api(Some(meta), "endpoint.resource_ref").ok()),
        http2: addr.http2.map(http2_from_api).unwrap_or_default(),
    })
}

/// What HTTP/2 allows for a flow-control window (RFC 9113, 6.9.1).
const MAX_WINDOW: u32 = (1 << 31) - 1;
/// And for a frame (RFC 9113, 4.2).
const FRAME: std::ops::RangeInclusive<u32> = 1 << 14..=(1 << 24) - 1;

/// Zero means "not said" everywhere. What the protocol does not allow is brought to the nearest value that it does.
fn http2_from_api(params: api::Http2ClientParams) -> Http2Client {
    let said = |value: u32| Some(value).filter(|value| *value > 0);
    let window = |value| said(value).map(|value| value.min(MAX_WINDOW));
    let flow = params.flow_control.unwrap_or_default();
    let (stream, connection) =
        (window(flow.initial_stream_window_size), window(flow.initial_connection_window_size));
    let internals = params.internals.unwrap_or_default();
    Http2Client {
        windows: match flow.adaptive_flow_control {
            true => Some(Http2Windows::Adaptive),
            false => (stream.is_some() || connection.is_some())
                .then_some(Http2Windows::Fixed { stream, connection }),
        },
        keep_alive: params.keep_alive.and_then(|alive| {
            let lasts = |it: prost_types::Duration| Duration::try_from(it).ok().filter(|it| !it.is_zero());
            Some(Http2KeepAlive {
                interval: alive.interval.and_then(lasts)?,
                timeout: alive.timeout.and_then(lasts),
                while_idle: alive.while_idle,
            })
        }),
        max_reset_streams: said(internals.max_concurrent_reset_streams),
        max_frame_bytes: said(internals.max_frame_size)
            .map(|bytes| bytes.clamp(*FRAME.start(), *FRAME.end())),
        max_send_buffer_bytes: said(internals.max_send_buf_size),
    }
}

fn http2_to_api(http2: &Http2Client) -> Option<api::Http2ClientParams> {
    use api::http2_client_params::{FlowControl, Internals, KeepAlive};
    if *http2 == Http2Client::default() {
        return None;
    }
    let number = Option::unwrap_or_default;
    let lasts = |it: Duration| prost_types::Duration::try_from(it).ok();
    Some(api::Http2ClientParams {
        flow_control: http2.windows.map(|windows| match windows {
            Http2Windows::Adaptive => FlowControl { adaptive_flow_control: true, ..FlowControl::default() },
            Http2Windows::Fixed { stream, connection } => FlowControl {
                initial_stream_window_size: number(stream),
                initial_connection_window_size: number(connection),
                adaptive_flow_control: false,
            },
        }),
        keep_alive: http2.keep_alive.map(|alive| KeepAlive {
            interval: lasts(alive.interval),
            timeout: alive.timeout.and_then(lasts),
            while_idle: alive.while_idle,
        }),
        internals: Some(Internals {
            max_concurrent_reset_streams: number(http2.max_reset_streams),
            max_frame_size: number(http2.max_frame_bytes),
            max_send_buf_size: number(http2.max_send_buffer_bytes),
        }),
    })
}

/// `None` when the identity is there and cannot be used.
fn identity_from_api(tls: api::TlsIdentity) -> Option<PeerIdentity> {
    use api::tls_identity::Strategy;
    let server_name = tls.server_name.map(|name| Identity::parse(&name.name)).transpose().ok()?;
    let id = match tls.strategy? {
        Strategy::DnsLikeIdentity(dns) => Identity::parse(&dns.name).ok().filter(|id| !id.is_uri())?,
        Strategy::UriLikeIdentity(uri) => Identity::parse(&uri.uri).ok().filter(Identity::is_uri)?,
    };
    let server_name = match server_name {
        Some(name) if !name.is_uri() => name,
        None if !id.is_uri() => id.clone(),
        Some(_) | None => return None,
    };
    Some(PeerIdentity::Meshed { id, server_name })
}

pub fn socket_from_api(addr: linkerd2_proxy_api::net::TcpAddress) -> Result<SocketAddr, Invalid> {
    let ip = IpAddr::try_from(need(addr.ip, "address.ip")?).map_err(|e| Invalid::new("address.ip", e))?;
    Ok(SocketAddr::new(ip, port(addr.port, "address.port")?))
}

// --- the endpoints of a name, as a stream of updates

/// What brings a subscriber that knows `old` (`None`: nothing yet) to `new`.
pub fn to_api(old: Option<&Endpoints>, new: &Endpoints) -> Vec<api::Update> {
    use api::update::Update;
    let nothing = Vec::new();
    let (was, is) = match (old, new) {
        (_, Endpoints::NoSuchService) => {
            let same = matches!(old, Some(Endpoints::NoSuchService));
            return if same { Vec::new() } else { vec![no_endpoints(false)] };
        }
        (Some(Endpoints::Known(was)), Endpoints::Known(is)) => (&**was, &**is),
        (_, Endpoints::Known(is)) => (&nothing, &**is),
    };
    if is.is_empty() {
        let same = matches!(old, Some(Endpoints::Known(_))) && was.is_empty();
        return if same { Vec::new() } else { vec![no_endpoints(true)] };
    }
    let was_at: BTreeMap<SocketAddr, &Arc<Endpoint>> = was.iter().map(|e| (e.addr, e)).collect();
    let is_at: BTreeMap<SocketAddr, &Arc<Endpoint>> = is.iter().map(|e| (e.addr, e)).collect();
    let add: Vec<_> = is
        .iter()
        .filter(|endpoint| was_at.get(&endpoint.addr).is_none_or(|old| old != endpoint))
        .map(|endpoint| endpoint_to_api(endpoint))
        .collect();
    let remove: Vec<_> = was.iter().filter(|e| !is_at.contains_key(&e.addr)).map(|e| e.addr.into()).collect();
    let mut updates = Vec::new();
    // Additions first: the set is never empty in between.
    if !add.is_empty() {
        let set = api::WeightedAddrSet { addrs: add, metric_labels: HashMap::new() };
        updates.push(api::Update { update: Some(Update::Add(set)) });
    }
    if !remove.is_empty() {
        updates.push(api::Update { update: Some(Update::Remove(api::AddrSet { addrs: remove })) });
    }
    updates
}

fn no_endpoints(exists: bool) -> api::Update {
    api::Update { update: Some(api::update::Update::NoEndpoints(api::NoEndpoints { exists })) }
}

/// Collects a stream's updates into whole sets.
#[derive(Debug, Default)]
pub struct EndpointSet {
    known: BTreeMap<SocketAddr, Arc<Endpoint>>,
    /// The next `add` starts anew: it comes from a stream that was just opened.
    replace: bool,
}

impl EndpointSet {
    /// The stream was opened anew: what it says first replaces what was known until then.
    pub fn reopened(&mut self) {
        self.replace = true;
    }

    /// Takes one update and yields the whole set. Endpoints that cannot be read are left out and reported.
    pub fn apply(&mut self, update: api::Update) -> Result<(Endpoints, Vec<Invalid>), Invalid> {
        use api::update::Update;
        let mut unreadable = Vec::new();
        match need(update.update, "update")? {
            Update::Add(set) => {
                if std::mem::take(&mut self.replace) {
                    self.known.clear();
                }
                for addr in set.addrs {
                    match endpoint_from_api(addr, &set.metric_labels) {
                        Ok(endpoint) => {
                            self.known.insert(endpoint.addr, Arc::new(endpoint));
                        }
                        Err(invalid) => unreadable.push(invalid),
                    }
                }
            }
            Update::Remove(set) => {
                for addr in set.addrs {
                    match socket_from_api(addr) {
                        Ok(addr) => {
                            self.known.remove(&addr);
                        }
                        Err(invalid) => unreadable.push(invalid),
                    }
                }
            }
            Update::NoEndpoints(none) => {
                self.replace = false;
                self.known.clear();
                if !none.exists {
                    return Ok((Endpoints::NoSuchService, unreadable));
                }
            }
        }
        Ok((Endpoints::Known(Arc::new(self.known.values().cloned().collect())), unreadable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(last: u8, id: Option<&str>) -> Arc<Endpoint> {
        let identity = match id {
            Some(id) => {
                let id = Identity::parse(id).unwrap();
                PeerIdentity::Meshed { server_name: id.clone(), id }
            }
            None => PeerIdentity::Unknown(Unknown::Unmarked),
        };
        Arc::new(Endpoint::bare(SocketAddr::from(([10, 0, 0, last], 80)), identity))
    }
    fn set(endpoints: &[Arc<Endpoint>]) -> Endpoints {
        Endpoints::Known(Arc::new(endpoints.to_vec()))
    }

    #[test]
    fn updates_lead_from_any_state_to_any_other() {
        let states = [
            Endpoints::NoSuchService,
            set(&[]),
            set(&[endpoint(1, None)]),
            set(&[endpoint(1, Some("a.b.serviceaccount.identity.linkerd.cluster.local"))]),
            set(&[endpoint(1, None), endpoint(2, None)]),
            set(&[endpoint(2, None), endpoint(3, Some("c.d"))]),
        ];
        for from in &states {
            for to in &states {
                let mut seen = EndpointSet::default();
                let mut now = None;
                for update in to_api(None, from).into_iter().chain(to_api(Some(from), to)) {
                    now = Some(seen.apply(update).unwrap().0);
                }
                assert_eq!(now.as_ref(), Some(to), "from {from:?}");
                assert_eq!(to_api(Some(to), to), vec![]);
            }
        }
    }

    #[test]
    fn the_first_addition_of_a_reopened_stream_replaces() {
        let mut seen = EndpointSet::default();
        let feed = |seen: &mut EndpointSet, state: &Endpoints| {
            to_api(None, state).into_iter().map(|u| seen.apply(u).unwrap().0).last().unwrap()
        };
        feed(&mut seen, &set(&[endpoint(1, None)]));
        seen.reopened();
        let after = set(&[endpoint(2, None)]);
        assert_eq!(feed(&mut seen, &after), after);
    }

    #[test]
    fn an_identity_that_cannot_be_read_is_not_a_missing_one() {
        use api::tls_identity::{DnsLikeIdentity, Strategy, UriLikeIdentity};
        let read = |strategy, server_name: Option<&str>| {
            let mut addr = endpoint_to_api(&endpoint(1, None));
            let server_name = server_name.map(|name| DnsLikeIdentity { name: name.into() });
            addr.tls_identity = Some(api::TlsIdentity { strategy, server_name });
            endpoint_from_api(addr, &HashMap::new()).unwrap().identity
        };
        let malformed = PeerIdentity::Unknown(Unknown::Malformed);
        let uri = Some(Strategy::UriLikeIdentity(UriLikeIdentity { uri: "spiffe://a/b".into() }));
        let dns = |name: &str| Some(Strategy::DnsLikeIdentity(DnsLikeIdentity { name: name.into() }));
        assert_eq!(read(None, None), malformed);
        assert_eq!(read(uri.clone(), None), malformed);
        assert_eq!(read(dns("not a name"), None), malformed);
        assert!(matches!(read(uri, Some("a.b")), PeerIdentity::Meshed { .. }));
        assert!(matches!(read(dns("a.b"), None), PeerIdentity::Meshed { .. }));
    }
}
