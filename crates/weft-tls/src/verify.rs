//! Verifying a peer: its chain always, its name by identity and not by DNS.

use crate::{bundle::TrustBundle, failure, provider::provider};
use rustls::{
    DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{verify_tls12_signature, verify_tls13_signature},
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;
use weft_fault::Fault;

/// Checks that a leaf chains to one of the anchors and is valid at `now`.
pub(crate) fn chain(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &TrustBundle,
    now: UnixTime,
) -> Result<(), Fault> {
    verify_chain(leaf, intermediates, roots.store(), now)
        .map_err(|e| failure::fault_of(&e, failure::Side::Client))
}

fn verify_chain(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &RootCertStore,
    now: UnixTime,
) -> Result<(), Error> {
    let parsed = ParsedCertificate::try_from(leaf)?;
    let algorithms = provider().signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)
}

/// The client's verifier. The server name sent is a routing hint; who the peer must be is decided by
/// [`crate::handshake::connect`], which compares the expected identity with the names in the certificate before any
/// byte of the application is written.
#[derive(Debug)]
pub(crate) struct AnyMeshServer {
    pub(crate) roots: Arc<RootCertStore>,
}

impl ServerCertVerifier for AnyMeshServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify_chain(end_entity, intermediates, &self.roots, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
