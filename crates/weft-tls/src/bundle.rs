//! Trust anchors, as people keep them: concatenated PEM, edited by hand.

use crate::certificate::Facts;
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject};
use std::{fmt, sync::Arc, time::SystemTime};
use weft_model::identity::Identity;

/// The certificates that a chain must end in; beside them those of other trust domains.
#[derive(Clone)]
pub struct TrustBundle {
    anchors: Vec<CertificateDer<'static>>,
    store: Arc<RootCertStore>,
    warnings: Vec<String>,
    foreign: Arc<Vec<Foreign>>,
}

/// The anchors of another trust domain. They vouch for its identities and for no others, and no other anchors vouch for them.
#[derive(Clone, PartialEq)]
pub(crate) struct Foreign {
    pub(crate) domain: String,
    pub(crate) bundle: TrustBundle,
}

/// A text holds no usable certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBundle(pub String);

/// A bundle is configuration, but it may come from a ConfigMap anybody can grow: more than any mesh needs.
const MAX_PEM_BYTES: usize = 1 << 20;
const MAX_FOREIGN: usize = 64;
const FOREIGN_PREFIX: &str = "foreign.";
const FOREIGN_SUFFIX: &str = ".crt";

/// The key of a ConfigMap, and the name of a file beside the bundle, that holds another trust domain's anchors.
pub fn foreign_key(domain: &str) -> String {
    format!("{FOREIGN_PREFIX}{domain}{FOREIGN_SUFFIX}")
}

/// The trust domain that such a key is about.
pub fn foreign_domain(key: &str) -> Option<&str> {
    key.strip_prefix(FOREIGN_PREFIX)?.strip_suffix(FOREIGN_SUFFIX).filter(|domain| !domain.is_empty())
}

impl TrustBundle {
    /// Parses PEM: CRLF, comments, indentation, blank lines and duplicates are tolerated; a block that is no usable
    /// certificate is an error (leaving it out could lock half of the mesh out), an expired one only a warning.
    pub fn parse(pem: &str) -> Result<Self, BadBundle> {
        if pem.len() > MAX_PEM_BYTES {
            return Err(BadBundle(format!("{} bytes are more than the {MAX_PEM_BYTES} allowed", pem.len())));
        }
        let mut anchors: Vec<CertificateDer<'static>> = Vec::new();
        for (index, certificate) in certificates(pem).enumerate() {
            let certificate =
                certificate.map_err(|e| BadBundle(format!("certificate {}: {e}", index + 1)))?;
            if !anchors.contains(&certificate) {
                anchors.push(certificate);
            }
        }
        Self::new(anchors)
    }

    pub fn new(anchors: Vec<CertificateDer<'static>>) -> Result<Self, BadBundle> {
        if anchors.is_empty() {
            return Err(BadBundle("it holds no certificate".into()));
        }
        let mut store = RootCertStore::empty();
        let mut warnings = Vec::new();
        let now = SystemTime::now();
        for (index, anchor) in anchors.iter().enumerate() {
            let facts =
                Facts::of(anchor).map_err(|e| BadBundle(format!("certificate {}: {e}", index + 1)))?;
            if facts.not_after < now {
                warnings.push(format!("trust anchor {} ({}) has expired", index + 1, facts.subject));
            }
            store.add(anchor.clone()).map_err(|e| BadBundle(format!("certificate {}: {e}", index + 1)))?;
        }
        Ok(TrustBundle { anchors, store: Arc::new(store), warnings, foreign: Arc::default() })
    }

    /// Also trusts another trust domain's anchors, for its own identities only.
    pub fn with_foreign(mut self, domain: &str, mut bundle: TrustBundle) -> Result<Self, BadBundle> {
        let domain = domain.to_ascii_lowercase();
        if Identity::parse(&domain).is_err() {
            return Err(BadBundle(format!("{domain:?} is no trust domain")));
        }
        bundle.foreign = Arc::default();
        let foreign = Arc::make_mut(&mut self.foreign);
        foreign.retain(|other| other.domain != domain);
        if foreign.len() == MAX_FOREIGN {
            return Err(BadBundle(format!("more than {MAX_FOREIGN} foreign trust domains")));
        }
        foreign.push(Foreign { domain, bundle });
        foreign.sort_by(|a, b| a.domain.cmp(&b.domain));
        Ok(self)
    }

    /// The foreign trust domains, and the anchors of each.
    pub fn foreign(&self) -> impl Iterator<Item = (&str, &TrustBundle)> {
        self.foreign.iter().map(|foreign| (foreign.domain.as_str(), &foreign.bundle))
    }

    /// The anchors that vouch for what this certificate names. `None`: it names identities of several domains, for which
    /// nobody can vouch.
    pub(crate) fn for_certificate(&self, certificate: &CertificateDer<'_>) -> Option<&TrustBundle> {
        if self.foreign.is_empty() {
            return Some(self);
        }
        let of = |id: &Identity| {
            let domain = id.trust_domain()?;
            self.foreign.iter().position(|foreign| domain.eq_ignore_ascii_case(&foreign.domain))
        };
        let mut domains = crate::certificate::identities(certificate).into_iter().map(|id| of(&id));
        let first = domains.next().flatten();
        if domains.any(|other| other != first) {
            return None;
        }
        Some(first.map_or(self, |at| &self.foreign[at].bundle))
    }

    pub fn anchors(&self) -> &[CertificateDer<'static>] {
        &self.anchors
    }

    /// The anchor that a chain leads to, if it is valid now.
    pub(crate) fn anchor_of(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Option<Facts> {
        self.anchors.iter().find_map(|anchor| {
            let alone = TrustBundle::new(vec![anchor.clone()]).ok()?;
            crate::verify::chain(leaf, intermediates, &alone, UnixTime::now()).ok()?;
            Facts::of(anchor).ok()
        })
    }

    /// Those of this bundle, then those of the other.
    pub fn joined(&self, other: &TrustBundle) -> Result<Self, BadBundle> {
        let mut anchors = self.anchors.clone();
        anchors.extend(other.anchors.iter().filter(|anchor| !self.anchors.contains(anchor)).cloned());
        Ok(TrustBundle { foreign: self.foreign.clone(), ..Self::new(anchors)? })
    }

    /// Those of the anchors that `keep` wants, of which there must be one.
    pub fn only(&self, keep: impl Fn(&Facts) -> bool) -> Result<Self, BadBundle> {
        let kept = |anchor: &&CertificateDer<'static>| Facts::of(anchor).is_ok_and(|facts| keep(&facts));
        Self::new(self.anchors.iter().filter(kept).cloned().collect())
    }

    /// What each anchor says.
    pub fn facts(&self) -> impl Iterator<Item = Facts> + '_ {
        // Each could be read when the bundle was made.
        self.anchors.iter().filter_map(|anchor| Facts::of(anchor).ok())
    }

    /// What deserves a line in the log and in `weft check`.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The bundle in one canonical form.
    pub fn to_pem(&self) -> String {
        self.anchors.iter().map(|a| crate::certificate::to_pem("CERTIFICATE", a)).collect()
    }

    pub(crate) fn store(&self) -> &Arc<RootCertStore> {
        &self.store
    }
}

/// The certificates of a PEM text, whose lines may be indented or end in CRLF.
pub fn certificates(
    pem: &str,
) -> impl Iterator<Item = Result<CertificateDer<'static>, rustls_pki_types::pem::Error>> {
    let tidy: String = pem.lines().flat_map(|line| [line.trim(), "\n"]).collect();
    let parsed: Vec<_> = CertificateDer::pem_slice_iter(tidy.as_bytes()).collect();
    parsed.into_iter()
}

impl PartialEq for TrustBundle {
    fn eq(&self, other: &Self) -> bool {
        self.anchors == other.anchors && self.foreign == other.foreign
    }
}

impl fmt::Debug for TrustBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrustBundle({} anchors)", self.anchors.len())
    }
}

impl fmt::Display for BadBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the trust anchors cannot be used: {}", self.0)
    }
}
impl std::error::Error for BadBundle {}
