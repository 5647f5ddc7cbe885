//! Obtains this proxy's certificate and renews it: the key is made in memory, the ServiceAccount's token proves who asks.

pub(crate) mod anchors;
pub(crate) mod spire;
#[cfg(test)]
mod tests;

use self::anchors::Anchors;
use crate::{
    config::IdentitySettings,
    control::{Service, backoff},
    identity::Publisher,
    metrics::{Count, Level, Metrics, labels::Labels},
    record::Recorder,
};
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse, identity_client::IdentityClient};
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use weft_fault::{Code, Fault, FaultRecord, Phase};
use weft_tls::{certificate::Facts, credentials::Credentials, keys::Key};

const DEADLINE: Duration = Duration::from_secs(10);
/// The connection is made elsewhere; without one the reason is told soon.
const CONNECTED: Duration = Duration::from_secs(1);
/// Until the first certificate nothing works, so it is asked for soon again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
const TOKEN_BYTES: u64 = 64 * 1024;
/// A certificate is renewed within this after a change of the roots.
const NEW_ROOTS: Duration = Duration::from_secs(30);
const SAY_THAT_IT_WAITS: Duration = Duration::from_secs(15);

/// What the certifier needs, besides the controller.
pub struct Certifier {
    pub settings: IdentitySettings,
    pub anchors: Anchors,
    pub service: Service,
    pub metrics: Arc<Metrics>,
    pub recorder: Arc<Recorder>,
}

impl Certifier {
    /// Runs for as long as the process lives.
    pub async fn run(mut self, publisher: Publisher) {
        let (key, csr) = match self.key_and_request() {
            Ok(made) => made,
            Err(fault) => {
                // Without a key there is no identity, ever: the admin server says so to whoever asks.
                tracing::error!("{fault:?}");
                self.recorder.note("identity", "no key can be made".into(), Some(&fault));
                publisher.waits(Some(Arc::new(fault.record())));
                return;
            }
        };
        let (min, max) = (self.settings.min_refresh, self.settings.max_refresh);
        let mut failures = 0;
        let mut told = Instant::now();
        loop {
            let begun = Instant::now();
            let certified = self.certify(&key, &csr).await;
            self.metrics.phase(Phase::Certify, begun.elapsed());
            let delay = match certified {
                Ok(credentials) => {
                    failures = 0;
                    let delay = credentials.renew_in(SystemTime::now(), min, max);
                    announce(&self.metrics, &publisher, credentials);
                    delay
                }
                Err(fault) => {
                    refreshed(&self.metrics, "error");
                    failures += 1;
                    let record: Arc<FaultRecord> = Arc::new(fault.record());
                    publisher.waits(Some(record));
                    if u32::is_power_of_two(failures) || told.elapsed() > SAY_THAT_IT_WAITS {
                        told = Instant::now();
                        tracing::warn!(failures, "waiting for a certificate: {fault:?}");
                        self.recorder.note("identity", "a certificate was not obtained".into(), Some(&fault));
                    }
                    match publisher.current() {
                        None => backoff(BACKOFF, failures),
                        Some(held) if held.anchor().is_some() => held.renew_in(SystemTime::now(), min, max),
                        // What it holds is worth nothing to peers.
                        Some(_) => backoff(BACKOFF, failures),
                    }
                }
            };
            self.rest(delay, &publisher).await;
        }
    }

    /// Until it is time for the next certificate: at the end of `delay`; soon, when the roots change, since the issuer is
    /// exchanged next; and at once, if then the certificate in force is worth nothing to peers.
    async fn rest(&mut self, delay: Duration, publisher: &Publisher) {
        let mut until = tokio::time::Instant::now() + delay;
        loop {
            let roots = tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                roots = self.anchors.changed() => roots,
            };
            let Some(held) = publisher.current() else { return };
            match held.under(&roots) {
                Ok((credentials, None)) => {
                    // Proxies see the change together, and must not ask together.
                    until = until.min(tokio::time::Instant::now() + NEW_ROOTS.mul_f64(rand::random()));
                    tell_anchors(&self.metrics, &credentials);
                    publisher.publish(Arc::new(credentials));
                }
                Ok((credentials, Some(untrusted))) => {
                    tracing::warn!(
                        "this proxy's certificate leads to a root that is no longer trusted: {untrusted:?}"
                    );
                    let text =
                        "its certificate leads to a root that is no longer trusted; it asks for another";
                    self.recorder.note("identity", text.into(), Some(&untrusted));
                    publisher.waits(Some(Arc::new(untrusted.record())));
                    tell_anchors(&self.metrics, &credentials);
                    publisher.publish(Arc::new(credentials));
                    return;
                }
                Err(fault) => tracing::error!("new trust anchors could not be taken: {fault:?}"),
            }
        }
    }

    /// Linkerd's launcher leaves both files behind; otherwise the key never touches a disk.
    fn key_and_request(&self) -> Result<(Key, Vec<u8>), Fault> {
        let fault = || Fault::new(Code::Invariant).in_phase(Phase::Certify).about(&self.settings.local_name);
        if let Some(dir) = &self.settings.dir
            && let (Ok(key), Ok(csr)) =
                (std::fs::read(dir.join("key.p8")), std::fs::read(dir.join("csr.der")))
        {
            match Key::from_pkcs8(&key) {
                Ok(key) => return Ok((key, csr)),
                Err(e) => {
                    tracing::warn!(dir = %dir.display(), "key.p8 cannot be used, a new key is made: {e}")
                }
            }
        }
        let key = Key::generate().map_err(|e| fault().because(e))?;
        let csr = key.certificate_request(&self.settings.local_name).map_err(|e| fault().because(e))?;
        Ok((key, csr))
    }

    async fn certify(&self, key: &Key, csr: &[u8]) -> Result<Credentials, Fault> {
        let name = &self.settings.local_name;
        let about = |code| Fault::new(code).in_phase(Phase::Certify).about(name).peer(self.service.addr());

        // 1. The token: kubelet rotates it, so it is read anew each time.
        let token = self.token()?;

        // 2. The question.
        let connection = self.service.connection(Instant::now() + CONNECTED).await?;
        let deadline = Instant::now() + DEADLINE;
        let mut client = IdentityClient::new(connection);
        let asked = client.certify(CertifyRequest {
            identity: name.to_string(),
            token,
            certificate_signing_request: csr.to_vec(),
        });
        let answer: CertifyResponse = match tokio::time::timeout_at(deadline.into(), asked).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => {
                let code = match status.code() {
                    tonic::Code::Unauthenticated => Code::TokenRejected,
                    tonic::Code::InvalidArgument
                    | tonic::Code::FailedPrecondition
                    | tonic::Code::PermissionDenied => Code::CertifyRefused,
                    _ => Code::ControllerRefused,
                };
                let message: String = status.message().chars().take(300).collect();
                return Err(about(code)
                    .fact("status", format!("{:?}", status.code()))
                    .fact("message", message));
            }
            Err(_) => return Err(about(Code::ControllerSilent).fact("waited_ms", DEADLINE.as_millis())),
        };

        // 3. Is it what was asked for? The chain, the key and the name are checked before anybody sees it.
        let until = answer.valid_until.and_then(|until| SystemTime::try_from(until).ok());
        if until.is_none_or(|until| until <= SystemTime::now()) {
            return Err(about(Code::AnswerInvalid).fact("valid_until", format!("{:?}", answer.valid_until)));
        }
        let intermediates = answer.intermediate_certificates.into_iter().map(Into::into).collect();
        Credentials::new(
            name.clone(),
            self.settings.server_name.clone(),
            key,
            answer.leaf_certificate.into(),
            intermediates,
            &self.anchors.current(),
        )
    }

    fn token(&self) -> Result<Vec<u8>, Fault> {
        let path = &self.settings.token_file;
        let unreadable = || {
            Fault::new(Code::TokenRejected)
                .in_phase(Phase::Certify)
                .about(path.display())
                .fact("step", "read")
        };
        let size = std::fs::metadata(path).map_err(|e| unreadable().because(e))?.len();
        if size == 0 || size > TOKEN_BYTES {
            return Err(unreadable().fact("bytes", size));
        }
        // People who write it by hand end it with a line.
        Ok(std::fs::read(path).map_err(|e| unreadable().because(e))?.trim_ascii().to_vec())
    }
}

fn refreshed(metrics: &Metrics, result: &str) {
    metrics.counter(Count::CertRefreshes, &Labels::new().with("result", result)).add(1);
}

/// A certificate is there: whoever waited for one goes on.
fn announce(metrics: &Metrics, publisher: &Publisher, credentials: Credentials) {
    refreshed(metrics, "ok");
    let facts = credentials.facts();
    metrics.gauge(Level::CertExpiration, &Labels::new()).set(unix_secs(facts.not_after));
    metrics.gauge(Level::CertRefresh, &Labels::new()).set(unix_secs(SystemTime::now()));
    tell_anchors(metrics, &credentials);
    tracing::info!(
        identity = %credentials.id(),
        valid_for_s = facts.not_after.duration_since(SystemTime::now()).unwrap_or_default().as_secs(),
        "certified"
    );
    publisher.publish(Arc::new(credentials));
    publisher.waits(None);
}

/// Which roots are trusted, and which of them the certificate in force leads to: whoever wants to remove one asks every
/// proxy first.
fn tell_anchors(metrics: &Metrics, credentials: &Credentials) {
    let (subject, sha256) = match credentials.anchor() {
        Some(anchor) => (anchor.subject.as_str(), anchor.sha256.as_str()),
        None => ("", "none"),
    };
    let labels = Labels::new().with("sha256", sha256).with("subject", subject);
    metrics.only(Level::CertAnchor, [(labels, 1)]);
    let trusted = credentials.roots().facts();
    let labelled = |anchor: Facts| {
        let labels = Labels::new().with("sha256", &anchor.sha256).with("subject", &anchor.subject);
        (labels, unix_secs(anchor.not_after))
    };
    metrics.only(Level::AnchorExpiration, trusted.map(labelled));
}

fn unix_secs(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
