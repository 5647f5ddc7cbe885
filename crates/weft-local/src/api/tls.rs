//! The API's own certificate authority, its server certificate, and the kubeconfig that trusts it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use serde_json::json;
use weft_fault::{Code, Fault};

/// How long the authority and its certificates are valid: they are made anew at each start.
const LIFETIME: Duration = Duration::from_secs(3600 * 24 * 365);

/// The authority and the server's certificate.
#[derive(Debug)]
pub struct Authority {
    /// The certificate that clients trust, as PEM.
    pub certificate: String,
    server: Arc<rustls::ServerConfig>,
}

impl Authority {
    /// Makes an authority, and a server certificate for the usual names, loopback, and those given.
    pub fn generate(names: &[String], addresses: &[IpAddr]) -> Result<Self, Fault> {
        let failed = |e: rcgen::Error| {
            Fault::new(Code::Invariant).about("the certificate of the local API").because(e)
        };
        let now = time::OffsetDateTime::now_utc();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "weft-local-api");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.not_before = now - Duration::from_secs(300);
        params.not_after = now + LIFETIME;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        let issuer = Issuer::from_params(&params, &key);

        let mut server = CertificateParams::default();
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.not_before = now - Duration::from_secs(300);
        server.not_after = now + LIFETIME;
        let usual = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        for name in usual.iter().map(|&name| name.to_owned()).chain(names.iter().cloned()) {
            server.subject_alt_names.push(SanType::DnsName(name.try_into().map_err(failed)?));
        }
        let loopback = [IpAddr::from([127, 0, 0, 1])];
        for &address in loopback.iter().chain(addresses) {
            server.subject_alt_names.push(SanType::IpAddress(address));
        }
        let server_key = KeyPair::generate().map_err(failed)?;
        let signed = server.signed_by(&server_key, &issuer).map_err(failed)?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server_key.serialize_der()));
        let chain = vec![signed.der().clone(), certificate.der().clone()];
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
            .map_err(|e| Fault::new(Code::Invariant).about("the certificate of the local API").because(e))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { certificate: certificate.pem(), server: Arc::new(config) })
    }

    pub fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        self.server.clone().into()
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// A client that trusts only the given certificates: as authorities, or, for those who sign their own, as themselves.
pub(super) fn client(trusted: Vec<CertificateDer<'static>>) -> Result<rustls::ClientConfig, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in &trusted {
        roots.add(certificate.clone())?;
    }
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|e| rustls::Error::General(e.to_string()))?;
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { usual, trusted }))
        .with_no_client_auth();
    Ok(config)
}

/// The usual verification, and beside it: a certificate that is itself in the bundle, if it has the server's name.
/// Many a webhook's certificate is its own authority, which the usual verification refuses on principle.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let usual = self.usual.verify_server_cert(certificate, intermediates, name, ocsp, now);
        let own_authority =
            matches!(&usual, Err(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(_))));
        if own_authority && self.trusted.iter().any(|trusted| trusted == certificate) {
            let parsed = rustls::server::ParsedCertificate::try_from(certificate)?;
            rustls::client::verify_server_name(&parsed, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        usual
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// A kubeconfig with one cluster, one user and one context, all called `weft`. It holds the administrator's token:
/// whoever writes it to a file makes that file 0600.
pub fn kubeconfig(server: &str, authority: &str, token: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "weft",
        "clusters": [{
            "name": "weft",
            "cluster": { "server": server, "certificate-authority-data": BASE64.encode(authority) },
        }],
        "users": [{ "name": "weft", "user": { "token": token } }],
        "contexts": [{ "name": "weft", "context": { "cluster": "weft", "user": "weft", "namespace": "default" } }],
    });
    // JSON is YAML, and needs no second serialiser.
    format!("{config:#}\n")
}
