//! A gateway: what comes in for a name goes out again to that name's own workloads, under this proxy's identity.
//!
//! Whether a caller may use the gateway is decided by the policy of the gateway's own port; what it may reach behind it is
//! decided there, about the gateway.

use super::{Connection, direct::Hail, opaque};
use crate::{
    config::is_under,
    detect::Protocol,
    http::{body::Body, headers, respond::Detail, server::Service},
    io::Io,
    latest::Latest,
    mesh::Mesh,
    outbound,
    record::Story,
};
use http::{HeaderMap, HeaderValue, Request, Response, Version, header};
use std::{
    cell::RefCell,
    collections::HashMap,
    error::Error,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::Arc,
    time::Instant,
};
use tokio::sync::watch;
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::Identity,
    inbound::{Permit, ServerPolicy},
};
use weft_wire::{
    record::Direction,
    transport_header::{Session, TransportHeader},
};

/// Names asked for on one connection; more are a scan.
const NAMES: usize = 64;

/// Where a connection to a gateway leads.
pub(super) struct Gateway {
    outbound: Rc<outbound::Worker>,
    /// Of the connection that came in.
    story: Rc<Story>,
    client: SocketAddr,
    client_id: Identity,
    /// For all requests of the connection; without one, each request's own authority says it.
    name: Option<Name>,
    hail: Hail,
    ways: RefCell<HashMap<Name, Rc<Way>>>,
}

/// By what right a request goes through.
pub(super) struct By<'a> {
    pub(super) connection: &'a Rc<Connection>,
    pub(super) policy: watch::Receiver<Arc<ServerPolicy>>,
    pub(super) permit: &'a Permit,
}

/// A service behind the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    host: String,
    port: u16,
}

/// How the requests for one name go on.
struct Way {
    /// Of the last request: an upgraded connection lasts as long as what allowed it.
    permit: Rc<RefCell<Permit>>,
    requests: Rc<outbound::http::Requests>,
    story: Rc<Story>,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.story.ended("closed");
    }
}

/// Serves a connection whose transport header names a service.
pub(super) async fn relay(
    connection: Connection,
    mut io: Io,
    header: TransportHeader,
    client_id: Identity,
    policy: watch::Receiver<Arc<ServerPolicy>>,
    hail: Hail,
) -> Result<(), Fault> {
    if header.name.is_none() {
        hail.leads_to(header.port, "");
    }
    let name =
        header.name.map(|host| Name { host: host.trim_end_matches('.').to_owned(), port: header.port });
    let Some(outbound) = connection.worker.gateway.clone() else {
        let fault = Fault::new(Code::NotAGateway).in_phase(Phase::TransportHeader);
        let target = name.map_or_else(|| header.port.to_string(), |name| name.authority());
        let fault = fault.peer(connection.client).fact("client", client_id).fact("target", target);
        if header.session.is_none() {
            io.refuse(&fault).await;
        }
        return Err(fault);
    };
    let (story, client) = (connection.story.clone(), connection.client);
    let gateway = Gateway { outbound, story, client, client_id, name, hail, ways: RefCell::default() };
    let protocol = match header.session {
        Some(Session::Http1) => Protocol::Http1,
        Some(Session::Http2) => Protocol::Http2,
        None => Protocol::Opaque,
    };
    connection.story.protocol(protocol.as_str());
    connection.story.event(Phase::Detect, protocol.as_str());
    match protocol {
        Protocol::Http1 | Protocol::Http2 => {
            super::http::relay(connection, io, protocol, policy, Some(gateway)).await
        }
        Protocol::Opaque => {
            let ended = gateway.bytes(&connection, &mut io, policy).await;
            if let Err(fault) = &ended {
                // The client must not take an orderly end for a complete answer.
                io.refuse(fault).await;
            }
            ended
        }
    }
}

impl Gateway {
    /// Bytes of any kind: decided once, and again whenever the policy changes.
    async fn bytes(
        &self,
        connection: &Connection,
        io: &mut Io,
        mut policy: watch::Receiver<Arc<ServerPolicy>>,
    ) -> Result<(), Fault> {
        opaque::permit(connection, io, &mut policy).await?;
        self.check_loop(&HeaderMap::new())?;
        let name = self.name.clone().ok_or_else(|| self.refused(Code::GatewayNoName))?;
        let onward = self.connect(&name).await?;
        let story = onward.story.clone();
        let ended = tokio::select! {
            biased;
            fault = opaque::withdrawn(connection, &mut policy) => Err(fault),
            ended = outbound::opaque::forward(&onward, io, None, None) => ended,
        };
        match &ended {
            Ok(()) => story.ended("closed"),
            Err(fault) => {
                story.fault(fault);
                story.ended(fault.code().id());
            }
        }
        ended
    }

    /// A request that the gateway's own policy let in. What its service answers, or what the way there failed at.
    pub(super) async fn request(
        &self,
        mut request: Request<Body>,
        by: By<'_>,
    ) -> Result<Result<Response<Body>, Box<dyn Error + Send + Sync>>, Fault> {
        self.check_loop(request.headers())?;
        let name = match &self.name {
            Some(name) => name.clone(),
            None => Name::of(&request).ok_or_else(|| self.refused(Code::GatewayNoName))?,
        };
        let way = self.way(&name, &by).await?;
        way.permit.replace(by.permit.clone());
        let authority = name.authority();
        let head = request.headers_mut();
        // What the client's application asked of its own proxy is no order to this one, and leads nowhere else.
        for order in [headers::REQUIRE_ID, headers::DST_OVERRIDE] {
            head.remove(order);
        }
        let mesh = &self.outbound.mesh;
        let (own, client) = (&mesh.config.identity.local_name, &self.client_id);
        let passed = format!("by={own};for={client};host={authority};proto=https");
        if let Ok(passed) = HeaderValue::try_from(passed) {
            head.append(header::FORWARDED, passed);
        }
        // The peer's proxy took the client's Host for that of the mirrored service, or took it away.
        if request.version() != Version::HTTP_2
            && let Ok(host) = HeaderValue::try_from(authority)
        {
            request.headers_mut().insert(header::HOST, host);
        }
        Ok(way.requests.clone().call(request).await)
    }

    /// Does the request come from here, by the client's identity or by what gateways wrote on it?
    fn check_loop(&self, head: &HeaderMap) -> Result<(), Fault> {
        let own = &self.outbound.mesh.config.identity.local_name;
        let passed = head.get_all(header::FORWARDED).iter().filter_map(|value| value.to_str().ok());
        if self.client_id != *own && !passed.into_iter().any(|value| is_passed_by(value, own.as_str())) {
            return Ok(());
        }
        Err(self.refused(Code::GatewayLoop).fact("gateway", own))
    }

    async fn way(&self, name: &Name, by: &By<'_>) -> Result<Rc<Way>, Fault> {
        if let Some(way) = self.ways.borrow().get(name) {
            return Ok(way.clone());
        }
        let mut onward = self.connect(name).await?;
        let permit = Rc::new(RefCell::new(by.permit.clone()));
        onward.until = Some(lasts(by, permit.clone()));
        let story = onward.story.clone();
        let way = Rc::new(Way { permit, requests: outbound::http::requests(onward, Detail::Full), story });
        let mut ways = self.ways.borrow_mut();
        if ways.len() >= NAMES {
            ways.clear();
        }
        Ok(ways.entry(name.clone()).or_insert(way).clone())
    }

    /// What is behind a name, as the outbound side sees it.
    async fn connect(&self, name: &Name) -> Result<outbound::Connection, Fault> {
        let mesh = &self.outbound.mesh;
        let suffixes = &mesh.config.inbound.gateway_suffixes;
        if !suffixes.iter().any(|suffix| is_under(&name.host, suffix)) {
            let fault = self.refused(Code::GatewayNameForeign).fact("name", name.authority());
            return Err(fault.fact("served", suffixes.join(" ")));
        }
        let deadline = Instant::now() + mesh.config.outbound.detect_timeout;
        let found = mesh.discovery.by_name(&name.host, name.port, deadline).await.map_err(|fault| {
            let code = match fault.code() {
                Code::DiscoveryRefused | Code::NameNotKnown | Code::DiscoveryUnready => {
                    Code::GatewayNameUnknown
                }
                Code::ServiceUnknown => Code::GatewayNoTarget,
                // No answer is no refusal.
                _ => return fault,
            };
            self.refused(code).fact("name", name.authority()).because(fault)
        })?;
        self.hail.leads_to(name.port, &name.host);
        let dst = SocketAddr::from((Ipv4Addr::UNSPECIFIED, name.port));
        let story = Rc::new(mesh.recorder.story(Direction::Outbound, self.client, None));
        let destination = Latest::new(found);
        story.service(&destination.get().policy.meta);
        story.behind(&self.story, &name.authority());
        story.event(Phase::Discover, format!("through this gateway to {}", name.authority()));
        let worker = self.outbound.clone();
        Ok(outbound::Connection { worker, story, client: self.client, dst, destination, until: None })
    }

    fn refused(&self, code: Code) -> Fault {
        Fault::new(code).in_phase(Phase::Route).peer(self.client).fact("client", &self.client_id)
    }
}

/// How long an upgraded connection through here lasts.
fn lasts(by: &By<'_>, permit: Rc<RefCell<Permit>>) -> outbound::Until {
    let (connection, policy) = (by.connection.clone(), by.policy.clone());
    Rc::new(move || {
        let (connection, policy, permit) = (connection.clone(), policy.clone(), permit.borrow().clone());
        Box::pin(async move {
            let why = connection.outlasts(policy, &permit).await;
            super::http::report_failed(&connection, &why);
        })
    })
}

impl Name {
    /// The name that a request asks for itself.
    fn of(request: &Request<Body>) -> Option<Name> {
        let authority = headers::authority(request)?;
        let host = headers::host(authority).into_owned();
        let port = match authority.rsplit_once(':') {
            Some((_, port)) if !authority.ends_with(']') => port.parse().ok()?,
            _ => 80,
        };
        (!host.is_empty()).then_some(Name { host, port })
    }

    /// As HTTP writes it: the port is left out where it is HTTP's own.
    fn authority(&self) -> String {
        match self.port {
            80 => self.host.clone(),
            port => format!("{}:{port}", self.host),
        }
    }
}

/// Did the gateway of this name pass it on (RFC 7239, 4)? One field value may hold several hops.
fn is_passed_by(forwarded: &str, name: &str) -> bool {
    forwarded.split([',', ';']).any(|pair| {
        let Some((key, value)) = pair.split_once('=') else { return false };
        key.trim().eq_ignore_ascii_case("by") && value.trim().trim_matches('"').eq_ignore_ascii_case(name)
    })
}

/// The outbound side of a gateway's worker.
pub(super) fn outbound(mesh: &Arc<Mesh>) -> Option<Rc<outbound::Worker>> {
    let serves = !mesh.config.inbound.gateway_suffixes.is_empty();
    serves.then(|| outbound::Worker::new(mesh.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_end_at_a_label() {
        for (host, under) in [
            ("web.shop.svc.cluster.local", true),
            ("WEB.shop.SVC.cluster.local", true),
            ("svc.cluster.local", true),
            ("xsvc.cluster.local", false),
            ("cluster.local", false),
            ("web.shop.svc.cluster.local.example", false),
            ("", false),
            ("é.svc.cluster.local", true),
        ] {
            assert_eq!(is_under(host, "svc.cluster.local"), under, "{host}");
        }
    }

    #[test]
    fn a_loop_is_seen_in_every_way_to_write_it() {
        for (value, passed) in [
            ("by=gw.x;for=web;host=h;proto=https", true),
            ("for=web;BY=\"gw.x\"", true),
            ("by=other;for=gw.x", false),
            ("by=other;for=web, by=gw.x;for=other", true),
            ("by", false),
            ("", false),
        ] {
            assert_eq!(is_passed_by(value, "gw.x"), passed, "{value}");
        }
    }

    #[test]
    fn a_requests_own_name() {
        let name = |uri: &str, host: Option<&str>| {
            let mut request = Request::get(uri);
            if let Some(host) = host {
                request = request.header("host", host);
            }
            Name::of(&request.body(Body::empty()).unwrap()).map(|name| (name.authority(), name.port))
        };
        assert_eq!(name("http://Web.x:8080/", None), Some(("web.x:8080".into(), 8080)));
        assert_eq!(name("/", Some("web.x")), Some(("web.x".into(), 80)));
        assert_eq!(name("/", Some("web.x:no")), None);
        assert_eq!(name("/", None), None);
    }
}
