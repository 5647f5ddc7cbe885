//! The certificate authority: root, issuer and leaves.

use crate::{
    bundle::{self, TrustBundle},
    certificate::{Facts, to_pem},
    keys::Key,
    request::SigningRequest,
    verify,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::time::{Duration, SystemTime};
use weft_fault::{Code, Fault, Phase};
use weft_model::identity::Identity;

/// Clocks of two machines differ: certificates are valid from a minute ago.
pub const BACKDATE: Duration = Duration::from_secs(60);

/// When a certificate is valid, around the moment in which it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub before: Duration,
    pub after: Duration,
}

impl Validity {
    pub const fn of(lifetime: Duration) -> Self {
        Validity { before: BACKDATE, after: lifetime }
    }

    /// For peers whose clocks may differ by `skew`, either way.
    pub const fn with_skew(lifetime: Duration, skew: Duration) -> Self {
        Validity { before: skew, after: lifetime.saturating_add(skew) }
    }
}

/// A certificate that may sign others, and its key.
#[derive(Debug)]
pub struct Ca {
    /// This authority's own certificate first, then those between it and the root (without the root).
    chain: Vec<CertificateDer<'static>>,
    facts: Facts,
    /// When the first of the chain ends.
    until: SystemTime,
    self_signed: bool,
    key: Key,
}

/// A signed leaf and what to send with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    pub leaf: CertificateDer<'static>,
    /// From the leaf towards the root, the root excluded.
    pub intermediates: Vec<CertificateDer<'static>>,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

impl Ca {
    /// A self-signed root.
    pub fn root(name: &str, lifetime: Duration) -> Result<Self, Fault> {
        let key = Key::generate().map_err(unusable)?;
        let now = SystemTime::now();
        let params = authority(name, now - BACKDATE, now + lifetime)?;
        let certificate = params.self_signed(key.pair()).map_err(unusable)?;
        Self::new(vec![certificate.der().clone()], key)
    }

    /// An issuer below this authority, which may sign leaves only.
    pub fn issuer(&self, name: &str, lifetime: Duration) -> Result<Self, Fault> {
        let key = Key::generate().map_err(unusable)?;
        let (not_before, not_after) = self.clamp(SystemTime::now(), Validity::of(lifetime));
        let mut params = authority(name, not_before, not_after)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let certificate = params.signed_by(key.pair(), &self.signer()?).map_err(unusable)?;
        let mut chain = vec![certificate.der().clone()];
        chain.extend(self.intermediates());
        Self::new(chain, key)
    }

    /// Loads what the Secret `linkerd-identity-issuer` holds: the issuer's certificate, optionally followed by those
    /// above it, and its key.
    pub fn from_pem(certificates: &str, key: &str) -> Result<Self, Fault> {
        let key = Key::from_pem(key).map_err(unusable)?;
        let chain = bundle::certificates(certificates).collect::<Result<Vec<_>, _>>().map_err(unusable)?;
        Self::new(chain, key)
    }

    fn new(chain: Vec<CertificateDer<'static>>, key: Key) -> Result<Self, Fault> {
        let own = chain.first().ok_or_else(|| issuer_fault().fact("certificate", "none"))?;
        let facts = Facts::of(own).map_err(|e| issuer_fault().fact("certificate", e.0))?;
        if !facts.is_ca {
            return Err(issuer_fault()
                .about(&facts.subject)
                .fact("certificate", "is no certificate authority"));
        }
        let spki = webpki::EndEntityCert::try_from(own).map_err(unusable)?.subject_public_key_info();
        if spki.as_ref() != key.pair().subject_public_key_info() {
            return Err(issuer_fault().about(&facts.subject).fact("key", "belongs to another certificate"));
        }
        let self_signed = facts.subject == facts.issuer;
        let mut until = facts.not_after;
        for above in &chain[1..] {
            let above = Facts::of(above).map_err(|e| issuer_fault().fact("certificate", e.0))?;
            until = until.min(above.not_after);
        }
        Ok(Ca { chain, facts, until, self_signed, key })
    }

    /// What this authority's own certificate says.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.chain[0]
    }

    pub fn certificate_pem(&self) -> String {
        self.chain.iter().map(|c| to_pem("CERTIFICATE", c)).collect()
    }

    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    /// Proves that leaves signed now would be accepted by whoever trusts `roots`: signs one and verifies it.
    pub fn check(&self, roots: &TrustBundle, now: SystemTime) -> Result<(), Fault> {
        let about = |fault: Fault| {
            issuer_fault()
                .about(&self.facts.subject)
                .fact("valid-until", when(self.facts.not_after))
                .because(fault)
        };
        let key = Key::generate().map_err(unusable)?;
        let probe = self.sign_key(key.pair(), &["probe.invalid"], Validity::of(BACKDATE), now)?;
        let now =
            UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO));
        verify::chain(&probe.leaf, &probe.intermediates, roots, now).map_err(about)
    }

    /// Signs a checked request. The validity is cut to that of this authority, and of those above it.
    pub fn sign(
        &self,
        request: &SigningRequest,
        validity: Validity,
        now: SystemTime,
    ) -> Result<Issued, Fault> {
        self.sign_key(&request.public_key, &[request.identity().as_str()], validity, now)
    }

    /// A certificate for a key of our own: identities, or the DNS names of a webhook.
    pub fn issue(
        &self,
        key: &Key,
        names: &[&str],
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Issued, Fault> {
        self.sign_key(key.pair(), names, Validity::of(lifetime), now)
    }

    fn sign_key(
        &self,
        key: &impl PublicKeyData,
        names: &[&str],
        validity: Validity,
        now: SystemTime,
    ) -> Result<Issued, Fault> {
        let (not_before, not_after) = self.clamp(now, validity);
        if not_after <= now {
            return Err(issuer_fault()
                .about(&self.facts.subject)
                .fact("valid-until", when(self.until))
                .fact("clock", when(now)));
        }
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.iter().map(|name| san(name)).collect::<Result<_, _>>()?;
        params.distinguished_name = DistinguishedName::new();
        if let Some(first) = names.first() {
            params.distinguished_name.push(DnType::CommonName, *first);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = not_before.into();
        params.not_after = not_after.into();
        params.serial_number = Some(random_serial()?);
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(key, &self.signer()?).map_err(unusable)?.der().clone();
        Ok(Issued { leaf, intermediates: self.intermediates().collect(), not_before, not_after })
    }

    /// What goes along with a certificate signed here. A root is what peers have already.
    fn intermediates(&self) -> impl Iterator<Item = CertificateDer<'static>> + '_ {
        self.chain.iter().filter(|_| !self.self_signed).cloned()
    }

    fn clamp(&self, now: SystemTime, validity: Validity) -> (SystemTime, SystemTime) {
        ((now - validity.before).max(self.facts.not_before), (now + validity.after).min(self.until))
    }

    fn signer(&self) -> Result<Issuer<'_, &rcgen::KeyPair>, Fault> {
        Issuer::from_ca_cert_der(&self.chain[0], self.key.pair()).map_err(unusable)
    }
}

fn authority(name: &str, not_before: SystemTime, not_after: SystemTime) -> Result<CertificateParams, Fault> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.subject_alt_names = vec![san(name)?];
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = not_before.into();
    params.not_after = not_after.into();
    params.serial_number = Some(random_serial()?);
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn san(name: &str) -> Result<SanType, Fault> {
    let uri = Identity::parse(name).is_ok_and(|id| id.is_uri());
    let text = name.to_owned().try_into().map_err(unusable)?;
    Ok(if uri { SanType::URI(text) } else { SanType::DnsName(text) })
}

/// 16 random bytes; the first bit is cleared because serials are positive (RFC 5280, 4.1.2.2).
fn random_serial() -> Result<SerialNumber, Fault> {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(unusable)?;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn issuer_fault() -> Fault {
    Fault::new(Code::IssuerUnusable).in_phase(Phase::Certify)
}

fn unusable(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    issuer_fault().because(cause)
}

/// RFC 3339, to the second.
pub fn when(at: SystemTime) -> String {
    let at = time::OffsetDateTime::from(at);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    )
}
