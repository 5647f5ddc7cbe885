//! What the control plane's certificates say. Read once, so that keys do not stay.

use std::time::{Duration, SystemTime};
use weft_tls::{authority::Ca, bundle, bundle::TrustBundle, certificate::Facts as Certificate, named};

/// The trust anchors.
#[derive(Clone, Debug)]
pub struct Roots {
    /// Why they cannot be used, if so.
    pub flaw: Option<String>,
    pub anchors: Vec<Certificate>,
}

/// The issuer of the proxies' certificates.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// Why its Secret cannot be used, if so.
    pub flaw: Option<String>,
    pub certificate: Option<Certificate>,
    /// Whether a certificate that it signs now is accepted by whoever trusts the anchors: by which of them, or why not.
    /// `None` where it cannot be tried.
    pub proved: Option<Result<String, String>>,
}

/// A webhook's certificate.
#[derive(Clone, Debug)]
pub struct Hook {
    /// Whether the API server accepts it, and until when; or why not.
    pub accepted: Result<SystemTime, String>,
}

impl Roots {
    pub fn read(pem: &str) -> Roots {
        match TrustBundle::parse(pem) {
            Ok(bundle) => Roots { flaw: None, anchors: bundle.facts().collect() },
            Err(why) => Roots { flaw: Some(why.to_string()), anchors: Vec::new() },
        }
    }
}

impl Issuer {
    /// `certificates` and `key` are the Secret's, `roots` what proxies trust.
    pub fn read(certificates: &str, key: &str, roots: &str, now: SystemTime) -> Issuer {
        let first = bundle::certificates(certificates).next();
        let certificate = first.and_then(Result::ok).and_then(|der| Certificate::of(&der).ok());
        let flaw = match (&certificate, key.trim().is_empty()) {
            (None, _) => Some("it holds no certificate that can be read".to_owned()),
            (Some(certificate), _) if !certificate.is_ca => Some(format!("{} is no CA", certificate.subject)),
            (Some(_), true) => Some("it holds no key".to_owned()),
            (Some(_), false) => None,
        };
        // Where the certificate has expired itself, nothing can be signed; it is tried for a moment at which it was valid.
        let at = certificate
            .as_ref()
            .map_or(now, |c| now.clamp(c.not_before, c.not_after - Duration::from_secs(1)));
        let proved = match (Ca::from_pem(certificates, key), TrustBundle::parse(roots)) {
            (Ok(ca), Ok(roots)) => Some(proved(&ca, &roots, at)),
            (Err(fault), _) if certificate.as_ref().is_some_and(|c| c.key == "ECDSA P-256") => {
                Some(Err(fault.to_string()))
            }
            _ => None,
        };
        Issuer { flaw, certificate, proved }
    }
}

/// The anchor that proves what this authority signs.
fn proved(ca: &Ca, roots: &TrustBundle, at: SystemTime) -> Result<String, String> {
    ca.check(roots, at).map_err(|fault| {
        std::error::Error::source(&fault).map_or_else(|| fault.to_string(), ToString::to_string)
    })?;
    let alone = |root: &Certificate| roots.only(|other| other.sha256 == root.sha256).ok();
    let by = roots.facts().find(|root| alone(root).is_some_and(|alone| ca.check(&alone, at).is_ok()));
    Ok(by.map(|root| root.sha256).unwrap_or_default())
}

impl Hook {
    /// `name` is the DNS name by which the API server calls it.
    pub fn read(chain: &str, ca: &str, name: &str, now: SystemTime) -> Hook {
        Hook { accepted: named::accepted(chain, ca, name, now).map(|certificate| certificate.not_after) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn an_issuer_is_proved_by_its_own_root_alone() {
        let now = SystemTime::now();
        let (root, foreign) = (Ca::root("root", DAY).unwrap(), Ca::root("foreign", DAY).unwrap());
        let issuer = root.issuer("issuer", DAY).unwrap();
        let both = foreign.certificate_pem() + &root.certificate_pem();
        let read = |roots: &str, at| Issuer::read(&issuer.certificate_pem(), &issuer.key_pem(), roots, at);
        assert_eq!(read(&both, now).proved.unwrap().unwrap(), root.facts().sha256);
        assert!(read(&foreign.certificate_pem(), now).proved.unwrap().is_err());
        // That it has expired is another check's finding.
        let later = read(&both, now + DAY * 3);
        assert_eq!(later.proved.unwrap().unwrap(), root.facts().sha256);
        let leaf = Issuer::read("", "", &both, now);
        assert!(leaf.flaw.unwrap().contains("no certificate") && leaf.proved.is_none());
        assert!(Issuer::read(&issuer.certificate_pem(), "", &both, now).flaw.unwrap().contains("no key"));
        let other_key = Issuer::read(&issuer.certificate_pem(), &foreign.key_pem(), &both, now);
        assert!(other_key.proved.unwrap().is_err());
    }
}
