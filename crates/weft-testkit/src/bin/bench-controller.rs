//! A controller for `bench/`: one service with one meshed endpoint, every port open to meshed callers (with `hop`, to all),
//! and the answers never change. It serves any proxy that speaks linkerd2-proxy-api, over plaintext on loopback.
//!
//! `prepare DIR NAME…` makes a CA and, for each name, what a proxy of that name needs. `serve DIR …` answers.

use futures_util::stream::{Stream, StreamExt, pending};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use linkerd2_proxy_api::{
    destination::{
        DestinationProfile, GetDestination, Update,
        destination_server::{Destination, DestinationServer},
    },
    identity::{
        CertifyRequest, CertifyResponse,
        identity_server::{Identity as Certifier, IdentityServer},
    },
    inbound::{
        PortSpec, Server,
        inbound_server_policies_server::{InboundServerPolicies, InboundServerPoliciesServer},
    },
    outbound::{
        OutboundPolicy as ApiPolicy, TrafficSpec,
        outbound_policies_server::{OutboundPolicies, OutboundPoliciesServer},
        traffic_spec::Target,
    },
};
use std::{
    env,
    error::Error,
    fs,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tonic::{Request, Response, Status};
use weft_model::{
    identity::{Identity, PeerIdentity},
    inbound::{Authn, Authorization, HttpPolicy, Network, Protocol, ServerPolicy},
    meta::Meta,
    outbound::{
        Backend, BackendKind, Distribution, Endpoint, Endpoints, EwmaConfig, HttpRoute, HttpRoutes, HttpRule,
        OpaqueRoute, OpaqueRoutes, OutboundPolicy, OutboundProtocol, ProtocolHint, RouteBackend, Timeouts,
    },
    profile::Profile,
};
use weft_tls::{
    authority::{Ca, Validity},
    keys::Key,
    request::SigningRequest,
};
use weft_wire::{destination, inbound, outbound};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Answers<T> = Pin<Box<dyn Stream<Item = std::result::Result<T, Status>> + Send>>;

const USAGE: &str = "usage: bench-controller prepare DIR NAME…\n       \
                     bench-controller serve DIR LISTEN SERVICE:PORT ENDPOINT:PORT NAME http|opaque|hop";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long detection may wait; the stock default.
const DETECT: Duration = Duration::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        ["prepare", dir, names @ ..] => prepare(Path::new(dir), names),
        ["serve", dir, listen, service, endpoint, name, kind @ ("http" | "opaque" | "hop")] => {
            serve(Path::new(dir), listen, service, endpoint, name, kind).await
        }
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn identity(name: &str) -> Result<Identity> {
    Ok(Identity::of_service_account(name, "bench", "linkerd", "cluster.local")?)
}

/// `ca.pem`, `ca.key`, and for each name a folder with `key.p8`, `csr.der` (which some proxies read) and `token`.
fn prepare(dir: &Path, names: &[&str]) -> Result<()> {
    let ca = Ca::root("identity.linkerd.cluster.local", 30 * DAY)?;
    fs::create_dir_all(dir)?;
    fs::write(dir.join("ca.pem"), ca.certificate_pem())?;
    fs::write(dir.join("ca.key"), ca.key_pem())?;
    for name in names {
        let folder = dir.join(name);
        fs::create_dir_all(&folder)?;
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let der = key.serialize_der();
        fs::write(folder.join("csr.der"), Key::from_pkcs8(&der)?.certificate_request(&identity(name)?)?)?;
        fs::write(folder.join("key.p8"), der)?;
        fs::write(folder.join("token"), format!("token-of-{name}"))?;
    }
    Ok(())
}

/// What every question is answered with.
#[derive(Clone)]
struct Fixed {
    ca: Arc<Ca>,
    service: SocketAddr,
    path: String,
    endpoint: Arc<Endpoint>,
    opaque: bool,
    authn: Authn,
}

async fn serve(
    dir: &Path,
    listen: &str,
    service: &str,
    endpoint: &str,
    name: &str,
    kind: &str,
) -> Result<()> {
    let mut fixed = Fixed::new(dir, service, endpoint, name, kind == "opaque")?;
    if kind == "hop" {
        fixed.authn = Authn::Unauthenticated;
    }
    tonic::transport::Server::builder()
        .add_service(DestinationServer::new(fixed.clone()))
        .add_service(IdentityServer::new(fixed.clone()))
        .add_service(InboundServerPoliciesServer::new(fixed.clone()))
        .add_service(OutboundPoliciesServer::new(fixed))
        .serve(listen.parse()?)
        .await?;
    Ok(())
}

/// A first answer, and then none: a stream that ends would be opened again.
fn once<T: Send + 'static>(answers: Vec<T>) -> Response<Answers<T>> {
    let first = tokio_stream::iter(answers.into_iter().map(Ok));
    Response::new(Box::pin(first.chain(pending())))
}

#[tonic::async_trait]
impl Destination for Fixed {
    type GetStream = Answers<Update>;
    async fn get(
        &self,
        request: Request<GetDestination>,
    ) -> std::result::Result<Response<Self::GetStream>, Status> {
        let known = request.get_ref().path.trim_end_matches('.') == self.path;
        let endpoints = if known {
            Endpoints::Known(Arc::new(vec![self.endpoint.clone()]))
        } else {
            Endpoints::NoSuchService
        };
        Ok(once(destination::to_api(None, &endpoints)))
    }

    type GetProfileStream = Answers<DestinationProfile>;
    async fn get_profile(
        &self,
        request: Request<GetDestination>,
    ) -> std::result::Result<Response<Self::GetProfileStream>, Status> {
        let asked = &request.get_ref().path;
        if *asked != self.service.to_string() {
            return Err(Status::not_found("one service only"));
        }
        let profile = Profile {
            fully_qualified_name: Some("server.bench.svc.cluster.local".to_string()),
            opaque: self.opaque,
            ..Profile::default()
        };
        Ok(once(vec![weft_wire::profile::to_api(&profile)]))
    }
}

#[tonic::async_trait]
impl OutboundPolicies for Fixed {
    async fn get(&self, request: Request<TrafficSpec>) -> std::result::Result<Response<ApiPolicy>, Status> {
        self.outbound(request.get_ref()).map(Response::new)
    }

    type WatchStream = Answers<ApiPolicy>;
    async fn watch(
        &self,
        request: Request<TrafficSpec>,
    ) -> std::result::Result<Response<Self::WatchStream>, Status> {
        Ok(once(vec![self.outbound(request.get_ref())?]))
    }
}

impl Fixed {
    fn new(dir: &Path, service: &str, endpoint: &str, name: &str, opaque: bool) -> Result<Self> {
        let ca =
            Ca::from_pem(&fs::read_to_string(dir.join("ca.pem"))?, &fs::read_to_string(dir.join("ca.key"))?)?;
        let service: SocketAddr = service.parse()?;
        let id = identity(name)?;
        let endpoint = Endpoint {
            hint: if opaque { ProtocolHint::Opaque } else { ProtocolHint::H2 },
            transport_port: opaque.then_some(4143),
            ..Endpoint::bare(endpoint.parse()?, PeerIdentity::Meshed { server_name: id.clone(), id })
        };
        let path = format!("server.bench.svc.cluster.local:{}", service.port());
        Ok(Fixed {
            ca: Arc::new(ca),
            service,
            path,
            endpoint: Arc::new(endpoint),
            opaque,
            authn: Authn::AnyTls,
        })
    }

    fn outbound(&self, spec: &TrafficSpec) -> std::result::Result<ApiPolicy, Status> {
        let asked = match spec.target.clone() {
            Some(Target::Addr(addr)) => destination::socket_from_api(addr).ok(),
            Some(Target::Authority(_)) | None => None,
        };
        if asked != Some(self.service) {
            return Err(Status::not_found("one service only"));
        }
        let meta = Arc::new(Meta::default_named("bench"));
        let balance = BackendKind::Balance { path: self.path.clone(), ewma: EwmaConfig::DEFAULT };
        let backend =
            RouteBackend { backend: Backend { meta: meta.clone(), kind: balance }, filters: Vec::new() };
        let backends = Distribution::FirstAvailable(vec![backend]);
        let rule = HttpRule {
            matches: Vec::new(),
            filters: Vec::new(),
            backends: backends.clone(),
            timeouts: Timeouts::default(),
            retry: None,
            allow_request_headers: false,
        };
        let http = HttpRoutes {
            routes: vec![HttpRoute { meta: meta.clone(), hosts: Vec::new(), rules: vec![rule] }],
            accrual: None,
        };
        let route = OpaqueRoute { meta: meta.clone(), hosts: Vec::new(), backends, refuses: None };
        let opaque = OpaqueRoutes { routes: vec![route] };
        let protocol = if self.opaque {
            OutboundProtocol::Opaque(opaque)
        } else {
            OutboundProtocol::Detect { timeout: DETECT, http1: http.clone(), http2: http, opaque }
        };
        Ok(outbound::to_api(&OutboundPolicy { meta, protocol }))
    }

    fn inbound(&self) -> Server {
        let meta = Arc::new(Meta::default_named("all-authenticated"));
        let everywhere = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
        let authorization = Authorization {
            meta: meta.clone(),
            networks: everywhere.into_iter().map(|net| Network { net, except: Vec::new() }).collect(),
            authn: self.authn.clone(),
        };
        let protocol = if self.opaque {
            Protocol::Opaque
        } else {
            Protocol::Detect { timeout: DETECT, http: HttpPolicy::default() }
        };
        inbound::to_api(&ServerPolicy { meta, protocol, authorizations: vec![authorization], audit: false })
    }
}

#[tonic::async_trait]
impl InboundServerPolicies for Fixed {
    async fn get_port(&self, _: Request<PortSpec>) -> std::result::Result<Response<Server>, Status> {
        Ok(Response::new(self.inbound()))
    }

    type WatchPortStream = Answers<Server>;
    async fn watch_port(
        &self,
        _: Request<PortSpec>,
    ) -> std::result::Result<Response<Self::WatchPortStream>, Status> {
        Ok(once(vec![self.inbound()]))
    }
}

#[tonic::async_trait]
impl Certifier for Fixed {
    async fn certify(
        &self,
        request: Request<CertifyRequest>,
    ) -> std::result::Result<Response<CertifyResponse>, Status> {
        let request = request.into_inner();
        // Whoever asks on loopback gets what it asks for: this is no identity service.
        let id = Identity::parse(&request.identity).map_err(|e| Status::invalid_argument(e.to_string()))?;
        let csr = SigningRequest::parse(&request.certificate_signing_request, &id)
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        let issued = self
            .ca
            .sign(&csr, Validity::of(DAY), SystemTime::now())
            .map_err(|e| Status::internal(e.to_string()))?;
        Ok(Response::new(CertifyResponse {
            leaf_certificate: issued.leaf.to_vec(),
            intermediate_certificates: issued.intermediates.iter().map(|der| der.to_vec()).collect(),
            valid_until: Some(issued.not_after.into()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(opaque: bool) -> (tempfile::TempDir, Fixed) {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path(), &["client", "server"]).unwrap();
        let fixed = Fixed::new(dir.path(), "192.0.2.100:8080", "192.0.2.2:8080", "server", opaque).unwrap();
        (dir, fixed)
    }

    #[tokio::test]
    async fn a_prepared_request_is_certified() {
        let (dir, fixed) = fixed(false);
        let request = |name: &str| CertifyRequest {
            identity: identity(name).unwrap().to_string(),
            token: Vec::new(),
            certificate_signing_request: fs::read(dir.path().join("client/csr.der")).unwrap(),
        };
        let answer = fixed.certify(Request::new(request("client"))).await.unwrap().into_inner();
        assert!(!answer.leaf_certificate.is_empty());
        assert!(fixed.certify(Request::new(request("server"))).await.is_err(), "another's request");
    }

    #[tokio::test]
    async fn one_service_is_known() {
        for opaque in [false, true] {
            let (_dir, fixed) = fixed(opaque);
            let spec = |addr: &str| TrafficSpec {
                target: Some(Target::Addr(addr.parse::<SocketAddr>().unwrap().into())),
                ..TrafficSpec::default()
            };
            let policy = outbound::from_api(fixed.outbound(&spec("192.0.2.100:8080")).unwrap()).unwrap();
            assert_eq!(matches!(policy.protocol, OutboundProtocol::Opaque(_)), opaque);
            assert!(fixed.outbound(&spec("192.0.2.100:8081")).is_err());
            assert!(inbound::from_api(fixed.inbound()).unwrap().authorizations[0].authn == Authn::AnyTls);
            let asked = GetDestination { path: fixed.path.clone(), ..GetDestination::default() };
            let mut updates = Destination::get(&fixed, Request::new(asked)).await.unwrap().into_inner();
            let first = updates.next().await.unwrap().unwrap();
            let (endpoints, _) = destination::EndpointSet::default().apply(first).unwrap();
            let Endpoints::Known(endpoints) = endpoints else { panic!("{endpoints:?}") };
            assert_eq!(endpoints[0].dial_addr().port(), if opaque { 4143 } else { 8080 });
        }
    }
}
