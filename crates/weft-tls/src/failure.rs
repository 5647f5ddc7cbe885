//! Every way a handshake fails, as a fault.

use crate::authority::when;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
use rustls_pki_types::UnixTime;
use std::{
    io,
    time::{Duration, SystemTime},
};
use weft_fault::{Code, Fault, Phase};

/// Which end of the handshake this proxy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

impl Side {
    const fn phase(self) -> Phase {
        match self {
            Side::Client => Phase::TlsConnect,
            Side::Server => Phase::TlsAccept,
        }
    }
}

/// What an I/O error of a handshake, or of a stream after it, means.
pub fn fault_of_io(error: io::Error, side: Side) -> Fault {
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        return fault_of(tls, side);
    }
    let code = match error.kind() {
        io::ErrorKind::UnexpectedEof => Code::HandshakeEof,
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
            Code::ConnectionReset
        }
        io::ErrorKind::TimedOut => Code::HandshakeTimeout,
        _ => Code::NetworkIo,
    };
    Fault::new(code).in_phase(side.phase()).because(error)
}

/// What a TLS error means.
pub fn fault_of(error: &Error, side: Side) -> Fault {
    let fault = match error {
        Error::InvalidCertificate(certificate) => certificate_fault(certificate),
        Error::AlertReceived(alert) => alert_fault(*alert, side),
        Error::NoCertificatesPresented => Fault::new(Code::NoClientCertificate),
        // A server that answers a ClientHello with something that is no TLS record.
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::MessageTooLarge
            | InvalidMessage::InvalidEmptyPayload,
        ) if side == Side::Client => Fault::new(Code::PeerNotTls),
        Error::FailedToGetCurrentTime
        | Error::FailedToGetRandomBytes
        | Error::HandshakeNotComplete
        | Error::EncryptError
        | Error::BadMaxFragmentSize
        | Error::InconsistentKeys(_)
        | Error::InvalidCertRevocationList(_)
        | Error::UnsupportedNameType => Fault::new(Code::Invariant),
        Error::InvalidMessage(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::InvalidEncryptedClientHello(_)
        | Error::DecryptError
        | Error::PeerIncompatible(_)
        | Error::PeerMisbehaved(_)
        | Error::PeerSentOversizedRecord
        | Error::NoApplicationProtocol
        | Error::General(_)
        | Error::Other(_) => Fault::new(Code::HandshakeFailed),
        // The enum is open: what a newer rustls adds is a failed handshake, and the evidence says which.
        _ => Fault::new(Code::HandshakeFailed),
    };
    fault.in_phase(side.phase()).fact("tls-error", error)
}

fn certificate_fault(error: &CertificateError) -> Fault {
    match error {
        CertificateError::ExpiredContext { time, not_after } => Fault::new(Code::CertificateExpired)
            .fact("valid-until", at(*not_after))
            .fact("clock", at(*time))
            .fact("skew", apart(*not_after, *time, "past its end")),
        CertificateError::NotValidYetContext { time, not_before } => Fault::new(Code::CertificateExpired)
            .fact("valid-from", at(*not_before))
            .fact("clock", at(*time))
            .fact("skew", apart(*time, *not_before, "before its begin")),
        CertificateError::Expired | CertificateError::NotValidYet => Fault::new(Code::CertificateExpired),
        // Everything else means that the certificate does not prove what it claims.
        _ => Fault::new(Code::CertificateUntrusted),
    }
}

/// What the peer's complaint says about us.
fn alert_fault(alert: AlertDescription, side: Side) -> Fault {
    let code = match alert {
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRevoked
        | AlertDescription::DecryptError => Code::CertificateUntrusted,
        AlertDescription::CertificateExpired => Code::CertificateExpired,
        AlertDescription::UnrecognisedName => Code::ForeignServerName,
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => Code::NoClientCertificate,
        _ => Code::HandshakeAlert,
    };
    let whose = match side {
        Side::Client => "the server's complaint about this client",
        Side::Server => "the client's complaint about this server",
    };
    Fault::new(code).fact("alert", format!("{alert:?}")).fact("is", whose)
}

/// How far this clock is outside of a certificate's validity: a renewal that is missing, or two clocks that differ.
fn apart(earlier: UnixTime, later: UnixTime, which: &str) -> String {
    format!("this clock is {} s {which}", later.as_secs().saturating_sub(earlier.as_secs()))
}

fn at(time: UnixTime) -> String {
    when(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}
