//! Connections to the proxy's own port: from other proxies, over mTLS, with a transport header that names the target.

use super::{Connection, Hailed, Worker, gateway, http, is_own_name, opaque, own_handshake, refuse_name};
use crate::{
    deadline::within,
    detect::{self, Protocol},
    io::Io,
    metrics::{Count, Metrics, labels::Labels},
    record::Story,
};
use std::{cell::Cell, net::SocketAddr, rc::Rc, sync::Arc, time::Instant};
use tokio::net::TcpStream;
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::{ClientTls, Identity},
    inbound::Protocol as PolicyProtocol,
};
use weft_net::prefixed::Prefixed;
use weft_tls::hello::Hello;
use weft_wire::transport_header::{BadHeader, Session, TransportHeader};

pub(super) async fn relay(
    worker: Rc<Worker>,
    mut stream: Prefixed<TcpStream>,
    client: SocketAddr,
    local: SocketAddr,
    story: Rc<Story>,
) -> Result<(), Fault> {
    let mesh = worker.mesh.clone();
    let limit = mesh.config.inbound.detect_timeout;

    // 1. A ClientHello for this workload's own name, and nothing else.
    let hello = detect::client_hello(&mut stream, limit).await.map_err(|fault| fault.peer(client))?;
    let refused = |code| Fault::new(code).in_phase(Phase::TlsAccept).peer(client);
    let weft = match hello {
        Hello::Client { sni: Some(sni), weft } if is_own_name(&mesh, &sni) => weft,
        Hello::Client { sni: Some(sni), .. } => {
            return Err(refuse_name(&mesh, stream.get_mut(), client, &sni).await);
        }
        Hello::Client { sni: None, .. } => {
            return Err(refused(Code::NoServerName).fact("expected", &mesh.config.identity.server_name));
        }
        Hello::NotTls | Hello::Incomplete => {
            return Err(refused(Code::PlaintextOnOwnPort).fact("bytes", stream.prefix().len()));
        }
    };

    // 2. Mutual TLS and the promise of a transport header.
    let (mut io, identity, agreed) =
        own_handshake(&mesh, stream, Hailed { direct: true, weft }, client, &story).await?;
    let Some(identity) = identity else {
        return Err(refused(Code::NoClientCertificate));
    };
    if !agreed.transport {
        let fault = Fault::new(Code::TransportNotOffered).in_phase(Phase::TransportHeader);
        return Err(fault.peer(client).fact("client", &identity));
    }

    // 3. The header.
    let begun = Instant::now();
    let header = match within(limit, read_header(&mut io)).await {
        Ok(read) => read,
        Err(late) => {
            let fault = Fault::new(Code::TransportHeaderLate).fact("bytes", io.stream().prefix().len());
            Err(detect::waited(fault, late))
        }
    };
    let refused = |fault: Fault| fault.in_phase(Phase::TransportHeader).peer(client);
    let header = header.map_err(|fault| refused(fault).fact("client", &identity))?;
    mesh.metrics.phase(Phase::TransportHeader, begun.elapsed());
    let session = match header.session {
        None => "opaque",
        Some(Session::Http1) => "http/1",
        Some(Session::Http2) => "http/2",
    };
    let hail = Hail::new(mesh.metrics.clone(), &header, identity.clone());
    if agreed.weft && header.session.is_none() {
        io.owe_answer();
    }
    let own = mesh.config.inbound.listen;
    let names_self = header.port == own.port() && header.session.is_some() && worker.gateway.is_some();
    if header.name.is_some() || names_self {
        let target = header.name.as_deref().unwrap_or("the requests' own names");
        story.event(Phase::TransportHeader, format!("for {target}, port {} ({session})", header.port));
        let policy = mesh.discovery.inbound(own.port());
        let (tls, app) =
            (ClientTls::Terminated(Some(identity.clone())), SocketAddr::new(local.ip(), own.port()));
        let connection = Connection { worker, story, client, tls, app };
        return Box::pin(gateway::relay(connection, io, header, identity, policy, hail)).await;
    }
    hail.leads_to(header.port, "");
    story.event(Phase::TransportHeader, format!("for port {} ({session})", header.port));

    // 4. Local delivery, under the policy of the port that the header names.
    let app = SocketAddr::new(local.ip(), header.port);
    if mesh.config.is_own_listener(app) {
        let fault = Fault::new(Code::ConnectionLoop).in_phase(Phase::TransportHeader).peer(client);
        if header.session.is_none() {
            io.refuse(&fault).await;
        }
        return Err(fault);
    }
    let policy = mesh.discovery.inbound(header.port);
    let opaque_port = policy.borrow().protocol == PolicyProtocol::Opaque;
    let connection = Connection { worker, story, client, tls: ClientTls::Terminated(Some(identity)), app };
    match header.session {
        Some(session) if !opaque_port => {
            let protocol = match session {
                Session::Http1 => Protocol::Http1,
                Session::Http2 => Protocol::Http2,
            };
            connection.story.protocol(protocol.as_str());
            connection.story.event(Phase::Detect, protocol.as_str());
            http::relay(connection, io, protocol, policy, None).await
        }
        // What the port declares wins over what the client found: opaque bytes are moved untouched.
        _ => {
            connection.story.protocol(Protocol::Opaque.as_str());
            connection.story.event(Phase::Detect, Protocol::Opaque.as_str());
            opaque::relay(connection, io, policy).await
        }
    }
}

/// A connection with a transport header, which is counted once. The name that its client wrote there is a label only where
/// something is behind it: what a client can make up must not make series.
pub(super) struct Hail {
    metrics: Arc<Metrics>,
    /// As Linkerd says it: the absence of a protocol has no name.
    protocol: &'static str,
    client: Identity,
    counted: Cell<bool>,
}

impl Hail {
    fn new(metrics: Arc<Metrics>, header: &TransportHeader, client: Identity) -> Self {
        let protocol = match header.session {
            None => "",
            Some(Session::Http1) => "http/1",
            Some(Session::Http2) => "http/2",
        };
        Hail { metrics, protocol, client, counted: Cell::new(false) }
    }

    /// There is a port, or a service of this name.
    pub(super) fn leads_to(&self, port: u16, name: &str) {
        self.count(&port.to_string(), name);
    }

    fn count(&self, port: &str, name: &str) {
        if self.counted.replace(true) {
            return;
        }
        let labels = Labels::new()
            .with("session_protocol", self.protocol)
            .with("target_port", port)
            .with("target_name", name)
            .with("client_id", &self.client);
        self.metrics.counter(Count::TransportHeaderConnections, &labels).add(1);
    }
}

impl Drop for Hail {
    fn drop(&mut self) {
        self.count("", "");
    }
}

/// What may have to be held is bounded by the decoder: it refuses a length that is too long as soon as it has that.
async fn read_header(io: &mut Io) -> Result<TransportHeader, Fault> {
    let stream = io.stream();
    loop {
        match TransportHeader::decode(stream.prefix()) {
            Ok(Some((header, length))) => {
                stream.consume(length);
                return Ok(header);
            }
            Ok(None) => {}
            Err(bad @ BadHeader::TooLong(_)) => {
                return Err(Fault::new(Code::TransportHeaderLong).because(bad));
            }
            Err(bad) => return Err(Fault::new(Code::TransportHeaderInvalid).because(bad)),
        }
        let read = stream.fill(1024).await;
        match read {
            Ok(0) => {
                let bytes = stream.prefix().len();
                return Err(Fault::new(Code::TransportHeaderMissing).fact("bytes", bytes));
            }
            Ok(_) => {}
            Err(error) => return Err(Fault::new(Code::NetworkIo).because(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn names_that_a_client_makes_up_make_no_series() {
        let metrics = Metrics::new(Duration::from_secs(600));
        let client = Identity::parse("web.shop.serviceaccount.identity.linkerd.cluster.local").unwrap();
        let hail = |port, name: Option<String>| {
            let header = TransportHeader { port, name, session: Some(Session::Http1) };
            Hail::new(metrics.clone(), &header, client.clone())
        };
        for n in 0..10_000_u16 {
            drop(hail(n, Some(format!("n{n}.x.svc.cluster.local"))));
        }
        let known = hail(80, Some("store.shop".into()));
        known.leads_to(80, "store.shop");
        known.leads_to(80, "store.shop");
        drop(known);
        let (send, mut receive) = tokio::sync::mpsc::channel(1_000);
        crate::metrics::write(metrics.clone(), crate::metrics::Encoding::Plain, send).await;
        let mut page = String::new();
        while let Some(piece) = receive.recv().await {
            page.push_str(std::str::from_utf8(&piece).unwrap());
        }
        let family = "inbound_tcp_transport_header_connections_total{";
        let mut lines: Vec<_> = page.lines().filter(|line| line.starts_with(family)).collect();
        lines.sort_unstable();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].contains(r#"target_port="",target_name="""#) && lines[0].ends_with(" 10000"),
            "{lines:?}"
        );
        assert!(
            lines[1].contains(r#"target_port="80",target_name="store.shop""#) && lines[1].ends_with(" 1")
        );
    }
}
