//! Certificates from a SPIRE agent: the SPIFFE Workload API, over a unix socket. The agent makes the key, and sends a new
//! certificate before the old one ends.

use super::announce;
use crate::{
    config::IdentitySettings, control::backoff, identity::Publisher, metrics::Metrics, record::Recorder,
};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{net::UnixStream, time::timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Status, Streaming, codegen::http::uri::PathAndQuery, metadata::MetadataValue};
use weft_fault::{Code, Fault, Phase};
use weft_tls::{bundle::TrustBundle, credentials::Credentials, keys::Key};

pub(super) const FETCH: &str = "/SpiffeWorkloadAPI/FetchX509SVID";
/// Without it an agent refuses, so that no browser can be made to ask.
pub(super) const SECURITY_HEADER: &str = "workload.spiffe.io";
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// To connect and to the first message.
const FIRST: Duration = Duration::from_secs(10);
/// Certificates of one chain or bundle.
const CERTIFICATES: usize = 64;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FetchRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FetchResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) svids: Vec<Svid>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Svid {
    #[prost(string, tag = "1")]
    pub(super) spiffe_id: String,
    /// The leaf and those above it, in DER, one after the other.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) chain: Vec<u8>,
    /// In PKCS#8.
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    /// The roots of its trust domain.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) bundle: Vec<u8>,
}

/// Publishes what the agent sends, for as long as the process lives.
pub(crate) async fn run(
    settings: IdentitySettings,
    socket: &Path,
    publisher: Publisher,
    metrics: Arc<Metrics>,
    recorder: Arc<Recorder>,
) {
    let mut failures = 0;
    loop {
        let fault = watch(&settings, socket, &mut |credentials| {
            failures = 0;
            announce(&metrics, &publisher, credentials);
        })
        .await;
        super::refreshed(&metrics, "error");
        failures += 1;
        publisher.waits(Some(Arc::new(fault.record())));
        if u32::is_power_of_two(failures) {
            tracing::warn!(failures, socket = %socket.display(), "waiting for a certificate: {fault:?}");
            recorder.note("identity", "a certificate was not obtained".into(), Some(&fault));
        }
        tokio::time::sleep(backoff(BACKOFF, failures)).await;
    }
}

/// One conversation, until it fails.
async fn watch(settings: &IdentitySettings, socket: &Path, take: &mut impl FnMut(Credentials)) -> Fault {
    let about = |code| Fault::new(code).in_phase(Phase::Certify).peer(socket.display());
    let deadline = Instant::now() + FIRST;
    let refused = |status: Status| {
        let message: String = status.message().chars().take(300).collect();
        about(Code::CertifyRefused).fact("status", format!("{:?}", status.code())).fact("message", message)
    };
    // 1. Connect, and ask. The connection ends with this function.
    let opened = timeout_at(deadline.into(), open(socket)).await;
    let (mut stream, _connection) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(Opening::Io(error))) => return about(Code::ControllerUnreachable).because(error),
        Ok(Err(Opening::Refused(status))) => return refused(status),
        Err(_) => return about(Code::ControllerSilent).fact("waited_ms", FIRST.as_millis()),
    };
    // 2. Take what comes. The first message is waited for, others come when they are due.
    let mut first = true;
    loop {
        let message = match first {
            true => timeout_at(deadline.into(), stream.message()).await,
            false => Ok(stream.message().await),
        };
        first = false;
        let answer = match message {
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) => return about(Code::ControllerRefused).fact("status", "the stream ended"),
            Ok(Err(status)) => return refused(status),
            Err(_) => return about(Code::ControllerSilent).fact("waited_ms", FIRST.as_millis()),
        };
        match credentials(settings, &answer) {
            Ok(credentials) => take(credentials),
            Err(fault) => return fault.peer(socket.display()),
        }
    }
}

enum Opening {
    Io(Box<dyn std::error::Error + Send + Sync>),
    Refused(Status),
}

async fn open(socket: &Path) -> Result<(Streaming<FetchResponse>, AbortOnDropHandle<()>), Opening> {
    let io = |error: &dyn std::error::Error| Opening::Io(error.to_string().into());
    let stream = UnixStream::connect(socket).await.map_err(|e| io(&e))?;
    let (requests, connection) =
        http2::handshake::<_, _, tonic::body::Body>(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|e| io(&e))?;
    let driving = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
    let service = tower::service_fn(move |mut request: http::Request<tonic::body::Body>| {
        let mut requests = requests.clone();
        // There is no name behind a socket; HTTP/2 wants one.
        let path = request.uri().path().to_owned();
        async move {
            if let Ok(uri) = format!("http://localhost{path}").parse() {
                *request.uri_mut() = uri;
            }
            requests.send_request(request).await
        }
    });
    let mut client = tonic::client::Grpc::new(service);
    client.ready().await.map_err(|e| io(&e))?;
    let mut request = Request::new(FetchRequest {});
    request.metadata_mut().insert(SECURITY_HEADER, MetadataValue::from_static("true"));
    let codec = tonic_prost::ProstCodec::<FetchRequest, FetchResponse>::default();
    let answer = client.server_streaming(request, PathAndQuery::from_static(FETCH), codec).await;
    Ok((answer.map_err(Opening::Refused)?.into_inner(), driving))
}

/// The certificate for this workload's own id, checked before anybody sees it.
fn credentials(settings: &IdentitySettings, answer: &FetchResponse) -> Result<Credentials, Fault> {
    let own = &settings.local_name;
    let invalid = || Fault::new(Code::AnswerInvalid).in_phase(Phase::Certify).about(own);
    let Some(svid) = answer.svids.iter().find(|svid| svid.spiffe_id == own.as_str()) else {
        let sent: Vec<&str> = answer.svids.iter().take(8).map(|svid| svid.spiffe_id.as_str()).collect();
        return Err(invalid().fact("expected", own).fact("sent", sent.join(" ")));
    };
    let key = Key::from_pkcs8(&svid.key).map_err(|e| invalid().because(e))?;
    let mut chain =
        certificates(&svid.chain).ok_or_else(|| invalid().fact("field", "x509_svid"))?.into_iter();
    let leaf = chain.next().ok_or_else(|| invalid().fact("field", "x509_svid"))?;
    let roots = certificates(&svid.bundle).ok_or_else(|| invalid().fact("field", "bundle"))?;
    let roots = TrustBundle::new(roots.into_iter().map(Into::into).collect());
    let roots = roots.map_err(|e| invalid().because(e))?;
    let above = chain.map(Into::into).collect();
    Credentials::new(own.clone(), settings.server_name.clone(), &key, leaf.into(), above, &roots)
}

/// DER values that follow each other, each of which says its length. `None` for anything else.
fn certificates(mut der: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    while !der.is_empty() {
        // A sequence, and a length of one byte, or of up to four that follow (X.690, 8.1.3).
        let (&[tag, first], rest) = der.split_first_chunk::<2>()?;
        let (length, header) = match first {
            0..=0x7f => (usize::from(first), 2),
            0x81..=0x84 => {
                let count = usize::from(first & 0x7f);
                let bytes = rest.get(..count)?;
                (bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), 2 + count)
            }
            _ => return None,
        };
        let end = header.checked_add(length)?;
        if tag != 0x30 || end > der.len() || found.len() >= CERTIFICATES {
            return None;
        }
        found.push(der[..end].to_vec());
        der = &der[end..];
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_follow_each_other_are_told_apart() {
        let short = [0x30, 2, 1, 2];
        let long = [&[0x30, 0x81, 200][..], &[7; 200]].concat();
        let both = [&short[..], &long, &short].concat();
        assert_eq!(certificates(&both), Some(vec![short.to_vec(), long.clone(), short.to_vec()]));
        assert_eq!(certificates(&[]), Some(vec![]));
        for broken in [
            &both[..both.len() - 1],
            &[0x30],
            &[0x31, 0],
            &[0x30, 0x80],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert_eq!(certificates(broken), None, "{broken:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_that_is_sent_upsets_it(bytes in proptest::collection::vec(0u8.., 0..64)) {
            let found = certificates(&bytes);
            proptest::prop_assert!(found.is_none_or(|found| found.concat() == bytes));
        }
    }
}
