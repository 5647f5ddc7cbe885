//! A server with several names, each with its own certificate: the control plane and its webhooks.

use crate::{
    authority::Issued,
    bundle::TrustBundle,
    credentials::{certified, server_config, with_alpn},
    keys::Key,
};
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{collections::BTreeMap, fmt, sync::Arc};
use weft_fault::Fault;
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
