//! A server with several names, each with its own certificate: the control plane and its webhooks.

use crate::{
    authority::Issued,
    bundle::{TrustBundle, certificates},
    certificate::Facts,
    credentials::{certified, server_config, with_alpn},
    keys::Key,
    provider::provider,
    verify,
};
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{PrivateKeyDer, UnixTime, pem::PemObject};
use std::{collections::BTreeMap, fmt, sync::Arc, time::SystemTime};
use weft_fault::{Code, Fault};
use weft_model::identity::Identity;

/// TLS for every name given, chosen by SNI. Renewal: make a new one and swap it.
#[derive(Clone)]
pub struct NamedServer {
    pub(crate) config: Arc<ServerConfig>,
}

/// Collects names and certificates for a [`NamedServer`].
#[derive(Debug, Default)]
pub struct Names {
    by_name: BTreeMap<String, Arc<CertifiedKey>>,
    fallback: Option<Arc<CertifiedKey>>,
}

impl Names {
    /// Serves `name` with this certificate.
    pub fn add(&mut self, name: &str, key: &Key, issued: &Issued) -> Result<(), Fault> {
        let certified = self.certify(key, issued)?;
        self.by_name.insert(name.to_ascii_lowercase(), certified);
        Ok(())
    }

    /// Serves `names` with a certificate that somebody else made, of whatever algorithm.
    pub fn add_pem(&mut self, names: &[&str], chain: &str, key: &str) -> Result<(), Fault> {
        let unusable = |why: String| {
            Fault::new(Code::AnswerInvalid)
                .about(names.first().copied().unwrap_or_default())
                .fact("certificate", why)
        };
        let chain =
            certificates(chain).collect::<Result<Vec<_>, _>>().map_err(|e| unusable(e.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|e| unusable(e.to_string()))?;
        let certified = CertifiedKey::from_der(chain, key, &provider()).map(Arc::new);
        let certified = certified.map_err(|e| unusable(e.to_string()))?;
        for name in names {
            self.by_name.insert(name.to_ascii_lowercase(), certified.clone());
        }
        Ok(())
    }

    /// Serves clients that send no SNI, or an unknown one, with this certificate instead of refusing them.
    pub fn otherwise(&mut self, key: &Key, issued: &Issued) -> Result<(), Fault> {
        self.fallback = Some(self.certify(key, issued)?);
        Ok(())
    }

    fn certify(&self, key: &Key, issued: &Issued) -> Result<Arc<CertifiedKey>, Fault> {
        let mut chain = vec![issued.leaf.clone()];
        chain.extend(issued.intermediates.iter().cloned());
        certified(chain, key)
    }

    /// `alpn` is what HTTPS clients expect (`h2`, `http/1.1`); proxies offer none and are served all the same.
    pub fn server(self, roots: &TrustBundle, alpn: &[&[u8]]) -> Result<NamedServer, Fault> {
        let config = server_config(Arc::new(self), roots)?;
        Ok(NamedServer { config: if alpn.is_empty() { config } else { with_alpn(&config, alpn) } })
    }
}

/// What a client would say of a server's certificate that trusts `ca` and calls the server `name` at this time. All in PEM.
pub fn accepted(chain: &str, ca: &str, name: &str, now: SystemTime) -> Result<Facts, String> {
    let chain = certificates(chain).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    let (leaf, above) = chain.split_first().ok_or("there is no certificate")?;
    let facts = Facts::of(leaf).map_err(|e| e.to_string())?;
    let ca = TrustBundle::parse(ca).map_err(|e| e.to_string())?;
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    verify::chain(leaf, above, &ca, UnixTime::since_unix_epoch(since)).map_err(|fault| fault.to_string())?;
    match facts.names.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        true => Ok(facts),
        false => Err(format!("it is for {}, not for {name}", facts.names.join(", "))),
    }
}

impl ResolvesServerCert for Names {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().and_then(|name| self.by_name.get(&name.to_ascii_lowercase()));
        named.or(self.fallback.as_ref()).cloned()
    }
}

impl NamedServer {
    /// One name, one certificate.
    pub fn single(name: &Identity, key: &Key, issued: &Issued, roots: &TrustBundle) -> Result<Self, Fault> {
        let mut names = Names::default();
        names.add(name.as_str(), key, issued)?;
        names.server(roots, &[])
    }
}

impl fmt::Debug for NamedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NamedServer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{authority::Ca, certificate::to_pem};
    use std::time::Duration;

    #[test]
    fn a_client_accepts_what_its_ca_signed_for_the_name_while_it_is_valid() {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let (ca, other) = (Ca::root("ca", DAY).unwrap(), Ca::root("other", DAY).unwrap());
        let (key, now) = (Key::generate().unwrap(), SystemTime::now());
        let issued = ca.issue(&key, &["hook.mesh.svc"], DAY / 2, now).unwrap();
        let pem = to_pem("CERTIFICATE", &issued.leaf);
        let said = |ca: &Ca, name: &str, at| accepted(&pem, &ca.certificate_pem(), name, at);
        assert_eq!(said(&ca, "Hook.mesh.svc", now).unwrap().key, "ECDSA P-256");
        assert!(said(&ca, "other.mesh.svc", now).unwrap_err().contains("it is for hook.mesh.svc"));
        assert!(said(&other, "hook.mesh.svc", now).is_err());
        assert!(said(&ca, "hook.mesh.svc", now + DAY).is_err());
        assert!(accepted("", &ca.certificate_pem(), "a", now).unwrap_err().contains("no certificate"));
    }
}
