//! Handshakes. What comes out is a stream and a verified identity, or a fault that says why not.
//!
//! No deadline is set here: a caller runs each handshake in its own task and keeps the deadline outside of it.

use crate::{
    certificate::{first_identity, names_identity},
    credentials::{Client, Credentials},
    failure::{Side, fault_of_io},
    named::NamedServer,
    provider::{TRANSPORT_ALPN, WEFT_ALPN, WEFT_TRANSPORT_ALPN},
};
use rustls::{NamedGroup, ServerConfig, crypto::SupportedKxGroup};
use rustls_pki_types::ServerName;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use weft_fault::{Code, Fault, Phase};
use weft_model::identity::Identity;

/// An accepted stream and who is at the other end.
#[derive(Debug)]
pub struct Accepted<IO> {
    pub stream: server::TlsStream<IO>,
    /// `None` when the client presented no certificate, or one without any identity.
    pub client: Option<Identity>,
    /// The client will send a transport header.
    pub transport: bool,
    /// The client is a weft proxy.
    pub weft: bool,
    /// The key exchange that both agreed on.
    pub group: &'static str,
}

/// A connection whose server proved to be who it must be.
#[derive(Debug)]
pub struct Connected<IO> {
    pub stream: client::TlsStream<IO>,
    /// The server agreed to a transport header.
    pub transport: bool,
    /// The server is a weft proxy.
    pub weft: bool,
    /// The key exchange that both agreed on.
    pub group: &'static str,
}

/// Serves a client that asked for this workload's name. `direct`: on the proxy's own port, where a transport header
/// may follow. `weft`: what the client's hello offers as a weft
/// proxy.
pub async fn accept<IO>(own: &Credentials, direct: bool, weft: Offer, io: IO) -> Result<Accepted<IO>, Fault>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    // A server that has protocols to choose from must refuse a client that offers others (RFC 7301, 3.2), and older
    // proxies ask for nothing but a transport header: what is offered decides what there is to choose from.
    let config = match (weft, direct) {
        (Offer::Transport, true) => &own.weft_direct_server,
        (Offer::Weft, false) => &own.weft_server,
        (_, true) => &own.direct_server,
        (_, false) => &own.server,
    };
    accept_with(config, io).await
}

/// Serves one of several names.
pub async fn accept_named<IO>(server: &NamedServer, io: IO) -> Result<Accepted<IO>, Fault>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    accept_with(&server.config, io).await
}

async fn accept_with<IO>(config: &Arc<ServerConfig>, io: IO) -> Result<Accepted<IO>, Fault>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let stream =
        TlsAcceptor::from(config.clone()).accept(io).await.map_err(|e| fault_of_io(e, Side::Server))?;
    Ok(accepted(stream))
}

fn accepted<IO>(stream: server::TlsStream<IO>) -> Accepted<IO> {
    let session = stream.get_ref().1;
    let client = session.peer_certificates().and_then(|chain| first_identity(chain.first()?));
    let (weft, transport) = agreed(session.alpn_protocol());
    let group = group(session.negotiated_key_exchange_group());
    Accepted { stream, client, transport, weft, group }
}

/// What a client would like to agree on besides the identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    Nothing,
    /// What weft proxies do among themselves.
    Weft,
    /// A transport header, with whoever knows it.
    Transport,
}

/// Connects to a server that must prove `expected`. The first poll writes the ClientHello.
pub async fn connect<IO>(
    client: &Client,
    io: IO,
    expected: &Identity,
    server_name: &Identity,
    offer: Offer,
) -> Result<Connected<IO>, Fault>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let config = match offer {
        Offer::Nothing => &client.plain,
        Offer::Weft => &client.weft,
        Offer::Transport => &client.transport,
    };
    let name = ServerName::try_from(server_name.as_str().to_owned()).map_err(|_| {
        Fault::new(Code::AnswerInvalid).in_phase(Phase::TlsConnect).fact("server-name", server_name)
    })?;
    let stream = TlsConnector::from(config.clone())
        .connect(name, io)
        .await
        .map_err(|e| fault_of_io(e, Side::Client).fact("server-name", server_name))?;
    let session = stream.get_ref().1;
    let proved = match session.peer_certificates().and_then(|chain| chain.first()) {
        Some(leaf) => names_identity(leaf, expected),
        None => Err(Vec::new()),
    };
    proved.map_err(|actual| {
        Fault::new(Code::IdentityMismatch)
            .in_phase(Phase::TlsConnect)
            .fact("expected", expected)
            .fact("actual", actual.join(" "))
    })?;
    let (weft, transport) = agreed(session.alpn_protocol());
    let group = group(session.negotiated_key_exchange_group());
    Ok(Connected { stream, transport, weft, group })
}

/// Is the other end a weft proxy, and does a transport header come?
fn agreed(protocol: Option<&[u8]>) -> (bool, bool) {
    match protocol {
        Some(WEFT_ALPN) => (true, false),
        Some(WEFT_TRANSPORT_ALPN) => (true, true),
        other => (false, other == Some(TRANSPORT_ALPN)),
    }
}

fn group(agreed: Option<&'static dyn SupportedKxGroup>) -> &'static str {
    match agreed.map(|group| group.name()) {
        Some(NamedGroup::X25519MLKEM768) => "X25519MLKEM768",
        Some(NamedGroup::X25519) => "X25519",
        Some(NamedGroup::secp256r1) => "P-256",
        Some(NamedGroup::secp384r1) => "P-384",
        Some(_) | None => "another group",
    }
}
