//! Verifying a peer: its chain always, its name by identity and not by DNS.

use crate::{bundle::TrustBundle, failure, provider::provider};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{verify_tls12_signature, verify_tls13_signature},
    server::{
        ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;
use weft_fault::{Code, Fault};

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
    pub(crate) roots: TrustBundle,
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
        let roots = self.roots.for_certificate(end_entity).ok_or_else(several)?;
        verify_chain(end_entity, intermediates, roots.store(), now).map(|()| ServerCertVerified::assertion())
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

fn several() -> Error {
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

/// The server's verifier, where peers of other trust domains may come: each certificate is checked against the anchors of
/// the domain that it names.
#[derive(Debug)]
pub(crate) struct AnyMeshClient {
    roots: TrustBundle,
    own: Arc<dyn ClientCertVerifier>,
    foreign: Vec<Arc<dyn ClientCertVerifier>>,
}

/// Asks for a client certificate and goes on without one.
pub(crate) fn clients(roots: &TrustBundle) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
    let of = |roots: &TrustBundle| -> Result<Arc<dyn ClientCertVerifier>, Fault> {
        WebPkiClientVerifier::builder_with_provider(roots.store().clone(), provider())
            .allow_unauthenticated()
            .build()
            .map(|verifier| verifier as Arc<dyn ClientCertVerifier>)
            .map_err(|e| Fault::new(Code::Invariant).because(e))
    };
    let own = of(roots)?;
    let foreign = roots.foreign().map(|(_, bundle)| of(bundle)).collect::<Result<Vec<_>, _>>()?;
    match foreign.is_empty() {
        true => Ok(own),
        false => Ok(Arc::new(AnyMeshClient { roots: roots.clone(), own, foreign })),
    }
}

impl ClientCertVerifier for AnyMeshClient {
    fn client_auth_mandatory(&self) -> bool {
        self.own.client_auth_mandatory()
    }

    /// Hints are for people with several certificates; a proxy has one.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let bundle = self.roots.for_certificate(end_entity).ok_or_else(several)?;
        let foreign = self.roots.foreign().position(|(_, foreign)| std::ptr::eq(foreign, bundle));
        let verifier = foreign.and_then(|at| self.foreign.get(at)).unwrap_or(&self.own);
        verifier.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.own.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.own.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.own.supported_verify_schemes()
    }
}
