//! What a certificate says.

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls_pki_types::CertificateDer;
use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use weft_model::identity::Identity;
use x509_parser::{public_key::PublicKey, x509::SubjectPublicKeyInfo};

/// The parts of a certificate that people ask about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub subject: String,
    pub issuer: String,
    /// Lower-case hexadecimal.
    pub serial: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    pub is_ca: bool,
    /// What its key is: `ECDSA P-256`, `RSA 2048`, `Ed25519`; the algorithm's number for others.
    pub key: String,
    /// DNS names and URIs of the subject alternative name.
    pub names: Vec<String>,
    /// SHA-256 of the DER form, lower-case hexadecimal.
    pub sha256: String,
}

/// The bytes are no X.509 certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotACertificate(pub String);

impl Facts {
    pub fn of(der: &CertificateDer<'_>) -> Result<Self, NotACertificate> {
        let (rest, parsed) =
            x509_parser::parse_x509_certificate(der).map_err(|e| NotACertificate(e.to_string()))?;
        if !rest.is_empty() {
            return Err(NotACertificate(format!("{} bytes follow the certificate", rest.len())));
        }
        let validity = parsed.validity();
        Ok(Facts {
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            serial: hex(parsed.raw_serial()),
            not_before: at(validity.not_before.timestamp()),
            not_after: at(validity.not_after.timestamp()),
            is_ca: parsed.is_ca(),
            key: key_of(parsed.public_key()),
            names: names(der),
            sha256: sha256_hex(der),
        })
    }
}

impl fmt::Display for NotACertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a certificate: {}", self.0)
    }
}
impl std::error::Error for NotACertificate {}

fn key_of(key: &SubjectPublicKeyInfo<'_>) -> String {
    let number = key.algorithm.algorithm.to_id_string();
    let curve = || key.algorithm.parameters.as_ref()?.as_oid().ok().map(|oid| oid.to_id_string());
    match number.as_str() {
        "1.2.840.10045.2.1" => match curve().as_deref() {
            Some("1.2.840.10045.3.1.7") => "ECDSA P-256".to_owned(),
            Some("1.3.132.0.34") => "ECDSA P-384".to_owned(),
            Some("1.3.132.0.35") => "ECDSA P-521".to_owned(),
            curve => format!("ECDSA on curve {}", curve.unwrap_or("unknown")),
        },
        "1.2.840.113549.1.1.1" => match key.parsed() {
            Ok(PublicKey::RSA(rsa)) => format!("RSA {}", rsa.key_size()),
            _ => "RSA".to_owned(),
        },
        "1.3.101.112" => "Ed25519".to_owned(),
        _ => number,
    }
}

/// A time before 1970 has no use here but must not panic.
fn at(unix_seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_seconds).unwrap_or(0))
}

/// SHA-256 in lower-case hexadecimal, as `linkerd` tools print fingerprints.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// One PEM block.
pub fn to_pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|b| char::from(*b)));
        pem.push('\n');
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}

/// DNS names, then URIs, of the subject alternative name; nothing when the certificate cannot be read.
fn names(der: &CertificateDer<'_>) -> Vec<String> {
    match webpki::EndEntityCert::try_from(der) {
        Ok(cert) => cert.valid_dns_names().chain(cert.valid_uri_names()).map(str::to_owned).collect(),
        Err(_) => Vec::new(),
    }
}

/// Every name that is an identity, verified or not.
pub(crate) fn identities(der: &CertificateDer<'_>) -> Vec<Identity> {
    names(der).iter().filter_map(|name| Identity::parse(name).ok()).collect()
}

/// The identity of a certificate that was verified already: its first name that is one.
pub(crate) fn first_identity(der: &CertificateDer<'_>) -> Option<Identity> {
    let cert = webpki::EndEntityCert::try_from(der).ok()?;
    cert.valid_dns_names().chain(cert.valid_uri_names()).find_map(|name| Identity::parse(name).ok())
}

/// Whether a certificate names `id`; if not, what it names instead.
pub(crate) fn names_identity(der: &CertificateDer<'_>, id: &Identity) -> Result<(), Vec<String>> {
    let Ok(cert) = webpki::EndEntityCert::try_from(der) else { return Err(Vec::new()) };
    let same = |name: &str| {
        if id.is_uri() { name == id.as_str() } else { name.eq_ignore_ascii_case(id.as_str()) }
    };
    if cert.valid_dns_names().chain(cert.valid_uri_names()).any(same) { Ok(()) } else { Err(names(der)) }
}
