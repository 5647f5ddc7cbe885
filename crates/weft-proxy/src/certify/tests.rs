//! Certificates from a scripted controller.

use super::{Certifier, anchors::Anchors};
use crate::{
    config::{ControlAddr, IdentitySettings},
    control::{Dialer, Service, Whom},
    identity::Handle,
    metrics::Metrics,
    record::Recorder,
};
use std::{path::Path, sync::Arc, time::Duration};
use weft_fault::{Code, FaultRecord};
use weft_model::identity::Identity;
use weft_testkit::{
    controller::Controller,
    pki::{Pki, identity},
    raw::PATIENCE,
};
use weft_tls::{credentials::Credentials, keys::Key};

fn start(controller: &Controller, pki: &Pki, name: Option<Identity>, dir: &Path) -> Handle {
    crate::log::to_test_output();
    let own = identity("web", "shop");
    let token_file = dir.join("token");
    let settings = IdentitySettings {
        local_name: own.clone(),
        server_name: own.clone(),
        trust_anchors_pem: pki.anchors_pem(),
        trust_anchors_file: None,
        dir: Some(dir.to_path_buf()),
        token_file,
        min_refresh: Duration::from_millis(50),
        max_refresh: Duration::from_secs(86_400),
        spire: None,
    };
    let addr = ControlAddr { host: "127.0.0.1".into(), port: controller.addr.port(), name };
    let metrics = Metrics::new(Duration::from_secs(600));
    let (recorder, _journal) = Recorder::new(metrics.clone(), "shop/web-0".into(), &own);
    let anchors = match std::fs::exists(dir.join("anchors.pem")) {
        Ok(true) => {
            let every = Duration::from_millis(5);
            Anchors::follow(dir.join("anchors.pem"), pki.anchors(), every, recorder.clone())
        }
        _ => Anchors::fixed(pki.anchors()),
    };
    let dialer =
        Dialer { whom: Whom::Anyone(anchors.clone()), ..Dialer::new("identity", addr, pki.anchors()) };
    let service = Service::start(dialer);
    let (handle, publisher) = Handle::new(own);
    tokio::spawn(Certifier { settings, anchors, service, metrics, recorder }.run(publisher));
    handle
}

fn with_token() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "a token").unwrap();
    dir
}

/// Waits for the reason of the delay to be one that `wanted` knows.
async fn waits(handle: &Handle, wanted: impl Fn(&FaultRecord) -> bool) -> Arc<FaultRecord> {
    let told = async {
        loop {
            match handle.waiting() {
                Some(fault) if wanted(&fault) => return fault,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("a reason in time")
}

#[tokio::test]
async fn a_certificate_is_obtained_over_tls_and_renewed_before_it_ends() {
    let (pki, dir) = (Arc::new(Pki::new()), with_token());
    let issuer = identity("linkerd-identity", "linkerd");
    let controller = Controller::start_tls(pki.clone(), &issuer).await;
    controller.lifetime(Duration::from_secs(2));
    let mut handle = start(&controller, &pki, Some(issuer), dir.path());
    let first = tokio::time::timeout(PATIENCE, handle.clone().first()).await.unwrap();
    assert_eq!(first.id(), &identity("web", "shop"));
    assert!(!dir.path().join("key.p8").exists(), "the key is in memory only");
    let serial = |credentials: &weft_tls::credentials::Credentials| credentials.facts().serial.clone();
    let renewed = async {
        loop {
            match handle.changed().await {
                Some(now) if serial(&now) != serial(&first) => return now,
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, renewed).await.expect("renewed in time");
}

/// B34: a second root is added, then the first is removed, before the certificate was renewed.
#[tokio::test]
async fn trust_anchors_change_without_a_restart_and_a_certificate_of_a_removed_one_is_replaced_at_once() {
    let (old, new, dir) = (Arc::new(Pki::new()), Arc::new(Pki::new()), with_token());
    let file = dir.path().join("anchors.pem");
    // As kubelet replaces a file: by renaming.
    let put = |pem: &str| {
        std::fs::write(dir.path().join("next"), pem).unwrap();
        std::fs::rename(dir.path().join("next"), &file).unwrap();
    };
    let anchor = |credentials: &Credentials| credentials.anchor().map(|anchor| anchor.sha256.clone());
    let sha = |pki: &Pki| weft_tls::certificate::sha256_hex(&pki.anchors().anchors()[0]);
    put(&old.anchors_pem());
    let issuer = identity("linkerd-identity", "linkerd");
    let controller = Controller::start_tls(old.clone(), &issuer).await;
    let handle = start(&controller, &old, Some(issuer.clone()), dir.path());
    let first = tokio::time::timeout(PATIENCE, handle.clone().first()).await.unwrap();
    assert_eq!(anchor(&first), Some(sha(&old)));

    // Nonsense changes nothing. Both roots: peers of either are trusted, the certificate stays the same.
    put("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n");
    let mut changes = handle.clone();
    put(&format!("{}{}", old.anchors_pem(), new.anchors_pem()));
    let both = tokio::time::timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
    assert_eq!(both.facts().serial, first.facts().serial);
    assert_eq!(anchor(&both), Some(sha(&old)));

    // The old root goes while the certificate is still its own.
    controller.issuer(new.clone());
    put(&new.anchors_pem());
    let renewed = async {
        loop {
            match changes.changed().await {
                Some(now) if anchor(&now) == Some(sha(&new)) => return now,
                Some(now) => assert_eq!(anchor(&now), None, "it leads to none that is trusted"),
                None => {}
            }
        }
    };
    let renewed = tokio::time::timeout(PATIENCE, renewed).await.expect("renewed in time");
    assert_ne!(renewed.facts().serial, first.facts().serial);
    assert!(handle.waiting().is_none());
}

#[tokio::test]
async fn a_controller_that_proves_another_name_is_not_asked() {
    let (pki, dir) = (Arc::new(Pki::new()), with_token());
    let controller = Controller::start_tls(pki.clone(), &identity("impostor", "linkerd")).await;
    let handle = start(&controller, &pki, Some(identity("linkerd-identity", "linkerd")), dir.path());
    let reason = waits(&handle, |fault| fault.code == Code::ControllerUnreachable.id()).await;
    assert!(
        reason.causes.iter().any(|cause| cause.contains("TLS-") || cause.contains("IDN-001")),
        "{reason:?}"
    );
    assert_eq!(controller.asked("Certify", identity("web", "shop").as_str()), 0);
}

#[tokio::test]
async fn a_refusal_is_explained_and_overcome() {
    let (pki, dir) = (Arc::new(Pki::new()), with_token());
    let controller = Controller::start(pki.clone()).await;
    controller.certify(Some(tonic::Status::failed_precondition("not this account")));
    let handle = start(&controller, &pki, None, dir.path());
    let reason = waits(&handle, |_| true).await;
    assert_eq!(reason.code, Code::CertifyRefused.id());
    assert_eq!(reason.fact("message"), Some("not this account"));
    controller.certify(None);
    tokio::time::timeout(PATIENCE, handle.clone().first()).await.unwrap();
    assert!(handle.waiting().is_none());
}

#[tokio::test]
async fn a_missing_token_is_named_and_read_anew() {
    let (pki, dir) = (Arc::new(Pki::new()), tempfile::tempdir().unwrap());
    let controller = Controller::start(pki.clone()).await;
    let handle = start(&controller, &pki, None, dir.path());
    let reason = waits(&handle, |_| true).await;
    assert_eq!(reason.code, Code::TokenRejected.id());
    assert!(reason.subject.as_ref().is_some_and(|subject| subject.ends_with("token")));
    std::fs::write(dir.path().join("token"), "a token").unwrap();
    tokio::time::timeout(PATIENCE, handle.first()).await.unwrap();
}

#[tokio::test]
async fn files_of_linkerds_launcher_are_used() {
    let (pki, dir) = (Arc::new(Pki::new()), with_token());
    let key = Key::generate().unwrap();
    let csr = key.certificate_request(&identity("web", "shop")).unwrap();
    let pem = key.to_pem();
    let der = rustls_pki_types::pem::PemObject::from_pem_slice(pem.as_bytes());
    let der: rustls_pki_types::PrivatePkcs8KeyDer<'_> = der.unwrap();
    std::fs::write(dir.path().join("key.p8"), der.secret_pkcs8_der()).unwrap();
    std::fs::write(dir.path().join("csr.der"), &csr).unwrap();
    let controller = Controller::start(pki.clone()).await;
    let handle = start(&controller, &pki, None, dir.path());
    // The certificate would not belong to another key: credentials check that.
    tokio::time::timeout(PATIENCE, handle.first()).await.unwrap();
}

/// A SPIRE agent behind a socket, which sends what it is told and refuses whoever leaves out the header.
mod agent {
    use crate::certify::spire::{FETCH, FetchRequest, FetchResponse, SECURITY_HEADER};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use std::{path::Path, pin::Pin};
    use tokio::sync::watch;
    use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};
    use tonic::{Request, Response, Status, codegen::BoxFuture, server::ServerStreamingService};

    pub(super) type Said = Result<FetchResponse, Status>;
    type Answers = Pin<Box<dyn Stream<Item = Said> + Send>>;

    struct Fetch(watch::Receiver<Said>);
    impl ServerStreamingService<FetchRequest> for Fetch {
        type Response = FetchResponse;
        type ResponseStream = Answers;
        type Future = BoxFuture<Response<Answers>, Status>;
        fn call(&mut self, request: Request<FetchRequest>) -> Self::Future {
            let said = self.0.clone();
            Box::pin(async move {
                if request.metadata().get(SECURITY_HEADER).is_none() {
                    return Err(Status::invalid_argument("security header missing"));
                }
                let first = said.borrow().clone();
                first.map(|_| Response::new(Box::pin(WatchStream::new(said).map(|said| said)) as Answers))
            })
        }
    }

    pub(super) fn start(socket: &Path, said: watch::Receiver<Said>) {
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                let said = said.clone();
                let service =
                    hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                        let said = said.clone();
                        async move {
                            assert_eq!(request.uri().path(), FETCH);
                            let mut grpc = tonic::server::Grpc::new(tonic_prost::ProstCodec::default());
                            Ok::<_, std::convert::Infallible>(
                                grpc.server_streaming(Fetch(said), request).await,
                            )
                        }
                    });
                let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let serving = serving.serve_connection(TokioIo::new(io), service);
                tokio::spawn(async move { drop(serving.await) });
            }
        });
    }
}

/// The one block of a PEM text.
fn der(pem: &str) -> Vec<u8> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let text: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    STANDARD.decode(text).unwrap()
}

#[tokio::test]
async fn a_spire_agent_certifies_and_renews_by_itself() {
    use super::spire::{self, FetchResponse, Svid};
    crate::log::to_test_output();
    let (pki, dir) = (Pki::new(), tempfile::tempdir().unwrap());
    let (own, server_name) =
        (Identity::parse("spiffe://cluster.local/ns/shop/sa/web").unwrap(), identity("web", "shop"));
    let svid = |id: &Identity| {
        let key = Key::generate().unwrap();
        let day = Duration::from_secs(86_400);
        let issued = pki.root().issue(&key, &[id.as_str()], day, std::time::SystemTime::now()).unwrap();
        let bundle = pki.anchors().anchors().iter().flat_map(|anchor| anchor.to_vec()).collect();
        let chain =
            [&issued.leaf].into_iter().chain(&issued.intermediates).flat_map(|c| c.to_vec()).collect();
        Svid { spiffe_id: id.to_string(), chain, key: der(&key.to_pem()), bundle }
    };
    let other = Identity::parse("spiffe://cluster.local/ns/shop/sa/other").unwrap();
    let (say, said) = tokio::sync::watch::channel(Err(tonic::Status::permission_denied("not registered")));
    let socket = dir.path().join("agent.sock");

    // 1. Nothing is there, then an agent that does not know this workload, then one that knows another.
    let settings = IdentitySettings {
        local_name: own.clone(),
        server_name,
        trust_anchors_pem: String::new(),
        trust_anchors_file: None,
        dir: None,
        token_file: Default::default(),
        min_refresh: Duration::from_secs(10),
        max_refresh: Duration::from_secs(86_400),
        spire: Some(socket.clone()),
    };
    let metrics = Metrics::new(Duration::from_secs(600));
    let (recorder, _journal) = Recorder::new(metrics.clone(), "shop/web-0".into(), &own);
    let (mut handle, publisher) = Handle::new(own.clone());
    let at = socket.clone();
    tokio::spawn(async move { spire::run(settings, &at, publisher, metrics, recorder).await });
    waits(&handle, |fault| fault.code == Code::ControllerUnreachable.id()).await;
    agent::start(&socket, said);
    let refused = waits(&handle, |fault| fault.code == Code::CertifyRefused.id()).await;
    assert_eq!(refused.fact("message"), Some("not registered"));
    let _before = say.send_replace(Ok(FetchResponse { svids: vec![svid(&other)] }));
    let invalid = waits(&handle, |fault| fault.code == Code::AnswerInvalid.id()).await;
    assert_eq!(invalid.fact("sent"), Some(other.as_str()));

    // 2. The right one, and its successor on the same stream.
    let _before = say.send_replace(Ok(FetchResponse { svids: vec![svid(&other), svid(&own)] }));
    let first = tokio::time::timeout(PATIENCE, handle.clone().first()).await.unwrap();
    assert_eq!(first.id(), &own);
    handle.changed().await;
    let _before = say.send_replace(Ok(FetchResponse { svids: vec![svid(&own)] }));
    let next = tokio::time::timeout(PATIENCE, handle.changed()).await.unwrap().unwrap();
    assert_ne!(next.facts().serial, first.facts().serial);
    assert!(handle.waiting().is_none());
}
