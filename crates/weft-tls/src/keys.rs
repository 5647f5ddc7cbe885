//! Private keys: made in memory, never written by weft itself.

use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fmt;
use weft_model::identity::Identity;

/// An ECDSA P-256 key.
pub struct Key(KeyPair);

/// A key cannot be made, read or used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadKey(pub String);

impl Key {
    pub fn generate() -> Result<Self, BadKey> {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map(Key).map_err(bad)
    }

    /// Reads `key.p8`, as Linkerd's launcher writes it.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, BadKey> {
        let der = PrivatePkcs8KeyDer::from(der);
        KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).map(Key).map_err(bad)
    }

    /// Reads a PEM block of either PKCS#8 or SEC1 form (`step` and `openssl` write different ones).
    pub fn from_pem(pem: &str) -> Result<Self, BadKey> {
        use rustls_pki_types::pem::PemObject;
        let tidy: String = pem.lines().flat_map(|line| [line.trim(), "\n"]).collect();
        let der = PrivateKeyDer::from_pem_slice(tidy.as_bytes()).map_err(|e| BadKey(e.to_string()))?;
        KeyPair::from_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).map(Key).map_err(bad)
    }

    pub fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// A certificate request, DER: common name and the only subject alternative name are `identity`.
    pub fn certificate_request(&self, identity: &Identity) -> Result<Vec<u8>, BadKey> {
        let mut params = CertificateParams::default();
        let text = identity.as_str().to_owned();
        let name = text.clone().try_into().map_err(bad)?;
        params.subject_alt_names =
            vec![if identity.is_uri() { SanType::URI(name) } else { SanType::DnsName(name) }];
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, text);
        params.serialize_request(&self.0).map(|csr| csr.der().to_vec()).map_err(bad)
    }

    pub(crate) fn pair(&self) -> &KeyPair {
        &self.0
    }

    pub(crate) fn der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.0.serialize_der()))
    }
}

fn bad(e: rcgen::Error) -> BadKey {
    BadKey(e.to_string())
}

/// A key is never printed.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(P-256)")
    }
}
impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unusable key: {}", self.0)
    }
}
impl std::error::Error for BadKey {}
