//! Requests as a transcript has them: nothing is added, and what comes back is kept as it came.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// The headers that transcripts hold.
const KEPT: [&str; 6] = ["content-type", "warning", "retry-after", "allow", "location", "www-authenticate"];

pub(crate) struct Client {
    address: SocketAddr,
    connector: tokio_rustls::TlsConnector,
    /// A connection whose last answer was read.
    idle: Mutex<Option<Sender>>,
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

/// An answer whose body is still to be read.
pub(crate) struct Answer {
    pub status: u16,
    pub headers: Value,
    body: Incoming,
    buffered: BytesMut,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, authority: &str) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
        Self { address, connector: Arc::new(config).into(), idle: Mutex::default() }
    }

    async fn connect(&self) -> Sender {
        let socket = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::from(self.address.ip());
        let stream = self.connector.connect(name, socket).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        // Ends with the sender and with what reads the last answer.
        tokio::spawn(connection);
        sender
    }

    /// Sends one request, on the connection of the one before if that is free.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: Vec<(String, String)>,
        body: Option<String>,
    ) -> Result<Answer, String> {
        let idle = self.idle.lock().unwrap().take();
        let mut sender = match idle {
            Some(sender) if sender.is_ready() => sender,
            _ => self.connect().await,
        };
        let mut request =
            Request::builder().method(method).uri(path).header("host", self.address.to_string());
        for (key, value) in headers {
            request = request.header(key, value);
        }
        let request = request.body(Full::new(Bytes::from(body.unwrap_or_default()))).unwrap();
        let (parts, body) = sender.send_request(request).await.map_err(|e| format!("{e:?}"))?.into_parts();
        // An answer that is still being read keeps it from being ready: then the next request takes another one.
        *self.idle.lock().unwrap() = Some(sender);
        let mut kept = json!({});
        for (name, value) in &parts.headers {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            match name.as_str() {
                "warning" if kept["warning"].is_array() => {
                    kept["warning"].as_array_mut().unwrap().push(json!(value));
                }
                "warning" => kept["warning"] = json!([value]),
                name if KEPT.contains(&name) => kept[name] = json!(value),
                _ => {}
            }
        }
        Ok(Answer { status: parts.status.as_u16(), headers: kept, body, buffered: BytesMut::new() })
    }
}

impl Answer {
    /// The body: JSON where it is, else text.
    pub(crate) async fn whole(self) -> Value {
        let body = self.body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        let media = self.headers["content-type"].as_str().unwrap_or("");
        if (media.contains("json") || text.starts_with('{'))
            && let Ok(value) = serde_json::from_str(&text)
        {
            return value;
        }
        Value::String(text.into_owned())
    }

    /// The next line of a stream.
    pub(crate) async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffered.iter().position(|byte| *byte == b'\n') {
                let line = self.buffered.split_to(end + 1);
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.ok()?;
            if let Some(data) = frame.data_ref() {
                self.buffered.extend_from_slice(data);
            }
        }
    }
}
