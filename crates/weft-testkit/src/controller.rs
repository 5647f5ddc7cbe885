//! A control plane that says what a test tells it: destination, policy, identity and `weft.dev`, in one plaintext HTTP/2
//! server on loopback, or behind TLS.

use crate::pki::Pki;
use linkerd2_proxy_api::{destination as dst, identity as idn, inbound, outbound};
use std::{
    collections::HashMap,
    hash::Hash,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::{Stream, StreamExt, wrappers::TcpListenerStream};
use tonic::{Code, Request, Response, Status};
use weft_model::{
    identity::Identity,
    inbound::ServerPolicy,
    outbound::{Endpoints, OutboundPolicy},
    profile::Profile,
};
use weft_tls::{authority::Validity, named::NamedServer, request::SigningRequest};
use weft_wire::{destination::to_api, mesh, profile, record::JournalEntry};

/// What the controller says on a stream, now. Telling it another step changes open streams too.
#[derive(Clone, Debug)]
pub enum Step<T> {
    Say(T),
    /// The stream ends with this status; a new one is refused with it.
    End(Code),
    /// Nothing is said.
    Silence,
}

/// The handle of a running controller. It ends when the handle is dropped.
pub struct Controller {
    pub addr: SocketAddr,
    script: Arc<Script>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[derive(Default)]
struct Script {
    profiles: Steps<String, Profile>,
    policies: Steps<String, OutboundPolicy>,
    endpoints: Steps<String, Endpoints>,
    servers: Steps<u16, ServerPolicy>,
    /// `None`: the service is unimplemented, as with a stock controller.
    confirm: Mutex<Option<HashMap<SocketAddr, mesh::ConfirmResponse>>>,
    certify: Mutex<Option<Status>>,
    lifetime: Mutex<Option<Duration>>,
    /// Signs instead of the one that the controller began with.
    issuer: Mutex<Option<Arc<Pki>>>,
    extensions: Mutex<Option<Vec<mesh::Extension>>>,
    journal: Mutex<Vec<JournalEntry>>,
    asked: Mutex<HashMap<(&'static str, String), usize>>,
}

type Steps<K, T> = Mutex<HashMap<K, watch::Sender<Step<T>>>>;

impl Controller {
    /// Starts on a free loopback port, in plaintext.
    pub async fn start(pki: Arc<Pki>) -> Controller {
        Controller::start_on("127.0.0.1:0", pki, None).await
    }

    /// Starts behind TLS, as `name`.
    pub async fn start_tls(pki: Arc<Pki>, name: &Identity) -> Controller {
        let tls = pki.server(name);
        Controller::start_on("127.0.0.1:0", pki, Some(tls)).await
    }

    pub async fn start_on(addr: &str, pki: Arc<Pki>, tls: Option<NamedServer>) -> Controller {
        let listener = TcpListener::bind(addr).await.expect("the controller's port");
        let addr = listener.local_addr().expect("a bound socket");
        let script = Arc::new(Script::default());
        let service = Service { script: script.clone(), pki };
        let router = tonic::transport::Server::builder()
            .add_service(dst::destination_server::DestinationServer::new(service.clone()))
            .add_service(outbound::outbound_policies_server::OutboundPoliciesServer::new(service.clone()))
            .add_service(inbound::inbound_server_policies_server::InboundServerPoliciesServer::new(
                service.clone(),
            ))
            .add_service(idn::identity_server::IdentityServer::new(service.clone()))
            .add_service(mesh::server::MeshServer::new(service));
        let server = tokio::spawn(async move {
            let plain = TcpListenerStream::new(listener);
            // The server ends with the test; how is of no interest.
            drop(match tls {
                None => router.serve_with_incoming(plain).await,
                Some(tls) => router.serve_with_incoming(Box::pin(accept_tls(plain, tls))).await,
            });
        });
        Controller { addr, script, server }
    }

    /// What `GetProfile(path)` says. Untold: an empty profile.
    pub fn profile(&self, path: &str, step: Step<Profile>) {
        tell(&self.script.profiles, path.to_string(), step);
    }
    /// As [`Controller::profile`], for streams that are opened from now on: open ones stay open and hear no more.
    pub fn profile_for_new_streams(&self, path: &str, step: Step<Profile>) {
        lock(&self.script.profiles).insert(path.to_string(), watch::channel(step).0);
    }
    /// As [`Controller::endpoints`], for streams that are opened from now on: open ones stay open and hear no more.
    pub fn endpoints_for_new_streams(&self, path: &str, step: Step<Endpoints>) {
        lock(&self.script.endpoints).insert(path.to_string(), watch::channel(step).0);
    }
    /// What `OutboundPolicies.Watch` says for an address or authority. Untold: `NotFound`.
    pub fn policy(&self, target: &str, step: Step<OutboundPolicy>) {
        tell(&self.script.policies, target.to_string(), step);
    }
    /// What `Destination.Get(path)` says. Untold: no such service.
    pub fn endpoints(&self, path: &str, step: Step<Endpoints>) {
        tell(&self.script.endpoints, path.to_string(), step);
    }
    /// What `WatchPort(port)` says. Untold: `NotFound`.
    pub fn server(&self, port: u16, step: Step<ServerPolicy>) {
        tell(&self.script.servers, port, step);
    }
    /// From now on the controller is weft's: `Confirm` answers for these addresses, and "unknown" for others.
    pub fn confirm(&self, addr: SocketAddr, answer: mesh::ConfirmResponse) {
        lock(&self.script.confirm).get_or_insert_default().insert(addr, answer);
    }
    /// What the controller says about filters that the stock protocol cannot carry; it knows no such question unless told.
    pub fn extensions(&self, filters: Vec<mesh::Extension>) {
        *lock(&self.script.extensions) = Some(filters);
    }
    /// Refuses to certify until told `None`.
    pub fn certify(&self, refusal: Option<Status>) {
        *lock(&self.script.certify) = refusal;
    }
    /// How long certificates live; a day unless told.
    pub fn lifetime(&self, lifetime: Duration) {
        *lock(&self.script.lifetime) = Some(lifetime);
    }
    /// Certificates are signed by another root from now on.
    pub fn issuer(&self, pki: Arc<Pki>) {
        *lock(&self.script.issuer) = Some(pki);
    }
    /// What proxies reported.
    pub fn journal(&self) -> Vec<JournalEntry> {
        lock(&self.script.journal).clone()
    }
    /// How often a question was asked: `GetProfile`, `Get`, `Watch`, `WatchPort`, `Certify`, `Confirm`.
    pub fn asked(&self, rpc: &'static str, about: &str) -> usize {
        lock(&self.script.asked).get(&(rpc, about.to_string())).copied().unwrap_or(0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no test panics while it tells")
}

fn tell<K: Hash + Eq, T>(steps: &Steps<K, T>, key: K, step: Step<T>) {
    let mut steps = lock(steps);
    match steps.get(&key) {
        Some(sender) => {
            sender.send_replace(step);
        }
        None => {
            steps.insert(key, watch::channel(step).0);
        }
    }
}

fn follow<K: Hash + Eq, T>(steps: &Steps<K, T>, key: K, otherwise: Step<T>) -> watch::Receiver<Step<T>> {
    lock(steps).entry(key).or_insert_with(|| watch::channel(otherwise).0).subscribe()
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Turns steps into a stream of messages. `say` sees what was said before on the stream.
fn answers<T, M>(
    mut steps: watch::Receiver<Step<T>>,
    say: impl Fn(Option<&T>, &T) -> Vec<M> + Send + 'static,
) -> Result<Response<Answers<M>>, Status>
where
    T: Clone + Send + Sync + 'static,
    M: Send + 'static,
{
    if let Step::End(code) = &*steps.borrow()
        && *code != Code::Ok
    {
        return Err(Status::new(*code, "as told"));
    }
    let (send, receive) = tokio::sync::mpsc::channel(16);
    tokio::spawn(async move {
        let mut said: Option<T> = None;
        loop {
            let step = steps.borrow_and_update().clone();
            match step {
                Step::Say(value) => {
                    for message in say(said.as_ref(), &value) {
                        if send.send(Ok(message)).await.is_err() {
                            return;
                        }
                    }
                    said = Some(value);
                }
                Step::End(Code::Ok) => return,
                Step::End(code) => {
                    // The client may be gone already.
                    drop(send.send(Err(Status::new(code, "as told"))).await);
                    return;
                }
                Step::Silence => {}
            }
            tokio::select! {
                changed = steps.changed() => if changed.is_err() {
                    // Nothing more is said on this stream.
                    return send.closed().await;
                },
                () = send.closed() => return,
            }
        }
    });
    Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receive))))
}

/// Whole handshakes, one after the other.
fn accept_tls(
    plain: TcpListenerStream,
    tls: NamedServer,
) -> impl Stream<Item = std::io::Result<TlsIo>> + Send {
    plain.then(move |io| {
        let tls = tls.clone();
        async move {
            let accepted = weft_tls::handshake::accept_named(&tls, io?).await;
            accepted.map(|accepted| TlsIo(accepted.stream)).map_err(std::io::Error::other)
        }
    })
}

/// A TLS stream in the form in which the server takes connections.
struct TlsIo(tokio_rustls::server::TlsStream<tokio::net::TcpStream>);

#[derive(Clone)]
struct Service {
    script: Arc<Script>,
    pki: Arc<Pki>,
}

impl Service {
    fn asked(&self, rpc: &'static str, about: impl ToString) {
        *lock(&self.script.asked).entry((rpc, about.to_string())).or_default() += 1;
    }
}

#[tonic::async_trait]
impl dst::destination_server::Destination for Service {
    type GetStream = Answers<dst::Update>;
    type GetProfileStream = Answers<dst::DestinationProfile>;

    async fn get(&self, request: Request<dst::GetDestination>) -> Result<Response<Self::GetStream>, Status> {
        let path = request.into_inner().path;
        self.asked("Get", &path);
        answers(follow(&self.script.endpoints, path, Step::Say(Endpoints::NoSuchService)), to_api)
    }

    async fn get_profile(
        &self,
        request: Request<dst::GetDestination>,
    ) -> Result<Response<Self::GetProfileStream>, Status> {
        let path = request.into_inner().path;
        self.asked("GetProfile", &path);
        let steps = follow(&self.script.profiles, path, Step::Say(Profile::default()));
        answers(steps, |_, said| vec![profile::to_api(said)])
    }
}

#[tonic::async_trait]
impl outbound::outbound_policies_server::OutboundPolicies for Service {
    type WatchStream = Answers<outbound::OutboundPolicy>;

    async fn get(
        &self,
        _: Request<outbound::TrafficSpec>,
    ) -> Result<Response<outbound::OutboundPolicy>, Status> {
        Err(Status::unimplemented("Get"))
    }

    async fn watch(
        &self,
        request: Request<outbound::TrafficSpec>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        use outbound::traffic_spec::Target;
        let target = match request.into_inner().target {
            Some(Target::Addr(addr)) => weft_wire::destination::socket_from_api(addr)
                .map_err(|e| Status::invalid_argument(e.to_string()))?
                .to_string(),
            Some(Target::Authority(authority)) => authority,
            None => return Err(Status::invalid_argument("no target")),
        };
        self.asked("Watch", &target);
        let steps = follow(&self.script.policies, target, Step::End(Code::NotFound));
        answers(steps, |_, policy| vec![weft_wire::outbound::to_api(policy)])
    }
}

#[tonic::async_trait]
impl inbound::inbound_server_policies_server::InboundServerPolicies for Service {
    type WatchPortStream = Answers<inbound::Server>;

    async fn get_port(&self, _: Request<inbound::PortSpec>) -> Result<Response<inbound::Server>, Status> {
        Err(Status::unimplemented("GetPort"))
    }

    async fn watch_port(
        &self,
        request: Request<inbound::PortSpec>,
    ) -> Result<Response<Self::WatchPortStream>, Status> {
        let port = request.into_inner().port;
        self.asked("WatchPort", port);
        let port = u16::try_from(port).map_err(|_| Status::invalid_argument("port"))?;
        let steps = follow(&self.script.servers, port, Step::End(Code::NotFound));
        answers(steps, |_, policy| vec![weft_wire::inbound::to_api(policy)])
    }
}

#[tonic::async_trait]
impl idn::identity_server::Identity for Service {
    async fn certify(
        &self,
        request: Request<idn::CertifyRequest>,
    ) -> Result<Response<idn::CertifyResponse>, Status> {
        let request = request.into_inner();
        self.asked("Certify", &request.identity);
        if let Some(refusal) = lock(&self.script.certify).clone() {
            return Err(refusal);
        }
        let refuse = |e: &dyn std::fmt::Display| Status::invalid_argument(e.to_string());
        let identity = Identity::parse(&request.identity).map_err(|e| refuse(&e))?;
        let csr =
            SigningRequest::parse(&request.certificate_signing_request, &identity).map_err(|e| refuse(&e))?;
        let lifetime = lock(&self.script.lifetime).unwrap_or(Duration::from_secs(86_400));
        let pki = lock(&self.script.issuer).clone().unwrap_or_else(|| self.pki.clone());
        let issued =
            pki.root().sign(&csr, Validity::of(lifetime), SystemTime::now()).map_err(|e| refuse(&e))?;
        Ok(Response::new(idn::CertifyResponse {
            leaf_certificate: issued.leaf.to_vec(),
            intermediate_certificates: issued.intermediates.iter().map(|der| der.to_vec()).collect(),
            valid_until: Some(issued.not_after.into()),
        }))
    }
}

#[tonic::async_trait]
impl mesh::server::Mesh for Service {
    async fn confirm(
        &self,
        request: Request<mesh::ConfirmRequest>,
    ) -> Result<Response<mesh::ConfirmResponse>, Status> {
        let addr = request.into_inner().addr.ok_or_else(|| Status::invalid_argument("no address"))?;
        let addr = weft_wire::destination::socket_from_api(addr)
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        self.asked("Confirm", addr);
        match &*lock(&self.script.confirm) {
            None => Err(Status::unimplemented("not a weft controller")),
            Some(known) => Ok(Response::new(known.get(&addr).cloned().unwrap_or_default())),
        }
    }

    async fn extensions(
        &self,
        _: Request<mesh::ExtensionsRequest>,
    ) -> Result<Response<mesh::ExtensionsResponse>, Status> {
        self.asked("Extensions", "");
        match &*lock(&self.script.extensions) {
            None => Err(Status::unimplemented("not a weft controller")),
            Some(filters) => Ok(Response::new(mesh::ExtensionsResponse { filters: filters.clone() })),
        }
    }

    async fn report(
        &self,
        request: Request<mesh::ReportRequest>,
    ) -> Result<Response<mesh::ReportResponse>, Status> {
        if lock(&self.script.confirm).is_none() {
            return Err(Status::unimplemented("not a weft controller"));
        }
        lock(&self.script.journal).extend(request.into_inner().read().0);
        Ok(Response::new(mesh::ReportResponse {}))
    }
}

mod io {
    //! The server's traits for a TLS stream, by delegation.

    use super::TlsIo;
    use std::{
        io,
        pin::Pin,
        task::{Context, Poll},
    };
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    impl AsyncRead for TlsIo {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }
    impl AsyncWrite for TlsIo {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, buf)
        }
        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }
        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }
    impl tonic::transport::server::Connected for TlsIo {
        type ConnectInfo = ();
        fn connect_info(&self) {}
    }
}
