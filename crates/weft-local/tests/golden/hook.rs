//! The admission webhook of a transcript: it gives the recorded answers in turn and keeps what it was sent.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::compare::Bindings;

/// What the webhook was sent.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub path: String,
    pub headers: Value,
    pub request: Value,
}

#[derive(Debug, Default)]
struct Script {
    answers: VecDeque<Value>,
    calls: Vec<Call>,
}

/// The server; it ends with the runtime of its test.
#[derive(Debug, Clone)]
pub(crate) struct Hook {
    pub address: SocketAddr,
    pub certificate: String,
    script: Arc<Mutex<Script>>,
}

impl Hook {
    pub(crate) async fn start() -> Self {
        let signed = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der()));
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hook = Self {
            address: listener.local_addr().unwrap(),
            certificate: STANDARD.encode(signed.cert.pem()),
            script: Arc::default(),
        };
        let script = hook.script.clone();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (acceptor, script) = (acceptor.clone(), script.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else { return };
                    let service = service_fn(|request| answer(script.clone(), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        hook
    }

    /// Sets the answers to come, in the form of the transcript.
    pub(crate) fn expect(&self, answers: VecDeque<Value>) {
        self.script.lock().unwrap().answers = answers;
    }

    pub(crate) fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.script.lock().unwrap().calls)
    }
}

async fn answer(
    script: Arc<Mutex<Script>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let header = |name: &str| {
        request.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let mut headers = json!({});
    for name in ["content-type", "accept"] {
        if let Some(value) = header(name) {
            headers[name] = json!(value);
        }
    }
    let path = request.uri().to_string();
    let body = request.into_body().collect().await?.to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let uid = review["request"]["uid"].clone();
    let mut script = script.lock().unwrap();
    script.calls.push(Call { path, headers, request: review });
    // A call more than was recorded shows up as a difference; it is answered, so that the rest can be compared.
    let scripted = script.answers.pop_front().unwrap_or_else(
        || json!({ "status": 200, "body": { "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": { "uid": "${uuid-0}", "allowed": true } } }),
    );
    let mut body = scripted["body"].clone();
    if let Some(patch) = body["response"]["patch"].get("base64 of") {
        body["response"]["patch"] = json!(STANDARD.encode(patch.to_string()));
    }
    if body["response"]["uid"].as_str().is_some_and(|given| given.starts_with("${uuid-")) {
        body["response"]["uid"] = uid;
    }
    let text = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
    let status = u16::try_from(scripted["status"].as_u64().unwrap_or(200)).unwrap_or(200);
    Ok(Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(Bindings::default().fill(&text))))
        .unwrap())
}
