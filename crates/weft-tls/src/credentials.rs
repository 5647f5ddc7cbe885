//! What a workload proves itself with, as ready-made configurations.

use crate::{
    bundle::TrustBundle,
    certificate::{Facts, names_identity},
    failure::{self, Side},
    keys::Key,
    provider::{TRANSPORT_ALPN, VERSIONS, WEFT_ALPN, WEFT_TRANSPORT_ALPN, provider},
    verify::{self, AnyMeshServer},
};
use rustls::{
    ClientConfig, ServerConfig,
    client::Resumption,
    server::{NoServerSessionStorage, ResolvesServerCert},
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};
use weft_fault::{Code, Fault, Phase};
use weft_model::identity::Identity;

/// A key, its certificate and the anchors, for one identity. Immutable; a renewal makes a new value.
pub struct Credentials {
    id: Identity,
    server_name: Identity,
    facts: Facts,
    /// The anchor that the chain leads to, of those it was checked against; `None` when it leads to none of them.
    anchor: Option<Facts>,
    roots: TrustBundle,
    certified: Arc<CertifiedKey>,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) direct_server: Arc<ServerConfig>,
    /// For clients that are weft's own.
    pub(crate) weft_server: Arc<ServerConfig>,
    pub(crate) weft_direct_server: Arc<ServerConfig>,
    client: Client,
}

/// The client's half: with a certificate, or (before the first one) without.
#[derive(Clone)]
pub struct Client {
    pub(crate) plain: Arc<ClientConfig>,
    pub(crate) transport: Arc<ClientConfig>,
    pub(crate) weft: Arc<ClientConfig>,
}

impl Credentials {
    /// Checks, before anything is published, that the chain ends in an anchor, is valid now, belongs to the key and
    /// names `id`. `server_name` is the SNI under which peers ask for this workload.
    pub fn new(
        id: Identity,
        server_name: Identity,
        key: &Key,
        leaf: CertificateDer<'static>,
        intermediates: Vec<CertificateDer<'static>>,
        roots: &TrustBundle,
    ) -> Result<Self, Fault> {
        let certify = |fault: Fault| fault.in_phase(Phase::Certify).about(&id);
        verify::chain(&leaf, &intermediates, roots, UnixTime::now()).map_err(certify)?;
        let anchor = roots.anchor_of(&leaf, &intermediates);
        let facts =
            Facts::of(&leaf).map_err(|e| certify(Fault::new(Code::AnswerInvalid).fact("leaf", e.0)))?;
        names_identity(&leaf, &id).map_err(|actual| {
            certify(Fault::new(Code::IdentityMismatch).fact("expected", &id).fact("actual", actual.join(" ")))
        })?;
        let mut chain = vec![leaf];
        chain.extend(intermediates);
        let certified = certified(chain, key).map_err(certify)?;
        Credentials::with(id.clone(), server_name, facts, anchor, certified, roots).map_err(certify)
    }

    /// The same certificate beside other anchors, which is what peers are checked against from now on. Says why, if the
    /// certificate itself leads to none of them: peers that follow the same anchors refuse it.
    pub fn under(&self, roots: &TrustBundle) -> Result<(Self, Option<Fault>), Fault> {
        let certify = |fault: Fault| fault.in_phase(Phase::Certify).about(&self.id);
        let (leaf, intermediates) = self
            .certified
            .cert
            .split_first()
            .ok_or_else(|| certify(Fault::new(Code::Invariant).fact("chain", "empty")))?;
        let untrusted = verify::chain(leaf, intermediates, roots, UnixTime::now()).err().map(certify);
        let anchor = roots.anchor_of(leaf, intermediates);
        let (id, server_name) = (self.id.clone(), self.server_name.clone());
        let now =
            Credentials::with(id, server_name, self.facts.clone(), anchor, self.certified.clone(), roots)
                .map_err(certify)?;
        Ok((now, untrusted))
    }

    fn with(
        id: Identity,
        server_name: Identity,
        facts: Facts,
        anchor: Option<Facts>,
        certified: Arc<CertifiedKey>,
        roots: &TrustBundle,
    ) -> Result<Self, Fault> {
        let server = server_config(Arc::new(SingleCertAndKey::from(certified.clone())), roots)?;
        let direct_server = with_alpn(&server, &[TRANSPORT_ALPN]);
        let weft_server = with_alpn(&server, &[WEFT_ALPN]);
        let weft_direct_server = with_alpn(&server, &[WEFT_TRANSPORT_ALPN]);
        let client = Client::new(roots, Some(certified.clone()));
        Ok(Credentials {
            id,
            server_name,
            facts,
            anchor,
            roots: roots.clone(),
            certified,
            server,
            direct_server,
            weft_server,
            weft_direct_server,
            client,
        })
    }

    pub fn id(&self) -> &Identity {
        &self.id
    }
    pub fn server_name(&self) -> &Identity {
        &self.server_name
    }
    /// What the leaf certificate says.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }
    /// What peers are checked against.
    pub fn roots(&self) -> &TrustBundle {
        &self.roots
    }
    /// The trust anchor that signed it, at the end of its chain.
    pub fn anchor(&self) -> Option<&Facts> {
        self.anchor.as_ref()
    }
    pub fn client(&self) -> &Client {
        &self.client
    }
    /// Whether a ClientHello with this SNI is meant for this workload.
    pub fn serves(&self, sni: &str) -> bool {
        self.server_name.as_str().eq_ignore_ascii_case(sni)
    }
    /// When to renew: 70 % of the life that remains, within the limits given.
    pub fn renew_in(&self, now: SystemTime, min: Duration, max: Duration) -> Duration {
        let left = self.facts.not_after.duration_since(now).unwrap_or(Duration::ZERO);
        left.mul_f64(0.7).clamp(min, max)
    }
}

impl Client {
    /// Verifies servers and presents nothing: for the first conversation with the identity service.
    pub fn anonymous(roots: &TrustBundle) -> Self {
        Self::new(roots, None)
    }

    fn new(roots: &TrustBundle, certified: Option<Arc<CertifiedKey>>) -> Self {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .expect("the provider has TLS 1.3 suites")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyMeshServer { roots: roots.clone() }));
        let mut plain = match certified {
            Some(key) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key))),
            None => builder.with_no_client_auth(),
        };
        // A resumed session would not prove the peer's identity anew.
        plain.resumption = Resumption::disabled();
        let mut transport = plain.clone();
        transport.alpn_protocols = vec![WEFT_TRANSPORT_ALPN.to_vec(), TRANSPORT_ALPN.to_vec()];
        let mut weft = plain.clone();
        weft.alpn_protocols = vec![WEFT_ALPN.to_vec()];
        Client { plain: Arc::new(plain), transport: Arc::new(transport), weft: Arc::new(weft) }
    }
}

/// A key and its chain in rustls's form, checked to belong together.
pub(crate) fn certified(chain: Vec<CertificateDer<'static>>, key: &Key) -> Result<Arc<CertifiedKey>, Fault> {
    CertifiedKey::from_der(chain, key.der(), &provider()).map(Arc::new).map_err(|e| {
        Fault::new(Code::AnswerInvalid).fact("certificate", "does not belong to the key").because(e)
    })
}

/// A server that asks for a client certificate and goes on without one.
pub(crate) fn server_config(
    certificates: Arc<dyn ResolvesServerCert>,
    roots: &TrustBundle,
) -> Result<Arc<ServerConfig>, Fault> {
    let verifier = verify::clients(roots)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .map_err(|e| failure::fault_of(&e, Side::Server))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificates);
    // Clients do not resume, so tickets would only cost.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

pub(crate) fn with_alpn(config: &Arc<ServerConfig>, protocols: &[&[u8]]) -> Arc<ServerConfig> {
    let mut config = ServerConfig::clone(config);
    config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
    Arc::new(config)
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, serial {})", self.id, self.facts.serial)
    }
}
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}
