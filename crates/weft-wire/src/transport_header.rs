//! The header that opens a direct connection between proxies (`transport.l5d.io/v1`): which port, or which name, the
//! bytes that follow are for.

use prost::Message;
use std::fmt;

/// The ALPN protocol that both sides must have agreed on before a header is written or expected.
pub const PROTOCOL: &[u8] = b"transport.l5d.io/v1";

const PREFACE: &[u8] = b"transport.l5d.io/v1\r\n\r\n";
/// A longer header is refused unread.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Where the bytes after the header go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportHeader {
    pub port: u16,
    /// A name makes it a gateway connection.
    pub name: Option<String>,
    /// `None`: opaque bytes.
    pub session: Option<Session>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    Http1,
    Http2,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// The bytes are something else.
    NotAHeader,
    TooLong(usize),
    Undecodable(String),
    BadPort(i32),
    /// The name is no host name: it would become part of messages, records and metrics.
    BadName,
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadHeader::NotAHeader => f.write_str("the bytes are no transport header"),
            BadHeader::TooLong(n) => write!(f, "{n} bytes are more than the {MAX_MESSAGE} allowed"),
            BadHeader::Undecodable(why) => write!(f, "undecodable: {why}"),
            BadHeader::BadPort(port) => write!(f, "{port} is no port"),
            BadHeader::BadName => f.write_str("the name is no host name"),
        }
    }
}
impl std::error::Error for BadHeader {}

#[derive(Clone, PartialEq, prost::Message)]
struct Wire {
    #[prost(int32, tag = "1")]
    port: i32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, optional, tag = "3")]
    session_protocol: Option<WireSession>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct WireSession {
    #[prost(oneof = "WireKind", tags = "1, 2")]
    kind: Option<WireKind>,
}

#[derive(Clone, Copy, PartialEq, prost::Oneof)]
enum WireKind {
    #[prost(message, tag = "1")]
    Http1(Empty),
    #[prost(message, tag = "2")]
    Http2(Empty),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Empty {}

impl TransportHeader {
    /// The bytes to write before anything else.
    pub fn encode(&self) -> Vec<u8> {
        let kind = self.session.map(|session| match session {
            Session::Http1 => WireKind::Http1(Empty {}),
            Session::Http2 => WireKind::Http2(Empty {}),
        });
        let message = Wire {
            port: self.port.into(),
            name: self.name.clone().unwrap_or_default(),
            session_protocol: kind.map(|kind| WireSession { kind: Some(kind) }),
        }
        .encode_to_vec();
        let length = u32::try_from(message.len()).expect("a name is a DNS name and a port");
        [PREFACE, &length.to_be_bytes(), &message].concat()
    }

    /// Reads a header from the first bytes of a connection: the header and its length, or `None` when more bytes are
    /// needed.
    pub fn decode(bytes: &[u8]) -> Result<Option<(TransportHeader, usize)>, BadHeader> {
        let seen = bytes.len().min(PREFACE.len());
        if bytes[..seen] != PREFACE[..seen] {
            return Err(BadHeader::NotAHeader);
        }
        let Some((length, rest)) = bytes.get(PREFACE.len()..).and_then(|rest| rest.split_first_chunk())
        else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_MESSAGE {
            return Err(BadHeader::TooLong(length));
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let wire = Wire::decode(message).map_err(|e| BadHeader::Undecodable(e.to_string()))?;
        let port = u16::try_from(wire.port).ok().filter(|port| *port != 0);
        if !is_host(&wire.name) {
            return Err(BadHeader::BadName);
        }
        let header = TransportHeader {
            port: port.ok_or(BadHeader::BadPort(wire.port))?,
            name: (!wire.name.is_empty()).then_some(wire.name),
            session: wire.session_protocol.and_then(|session| session.kind).map(|kind| match kind {
                WireKind::Http1(_) => Session::Http1,
                WireKind::Http2(_) => Session::Http2,
            }),
        };
        Ok(Some((header, PREFACE.len() + 4 + length)))
    }
}

/// Could it be the name of a host (RFC 1035, 2.3.4), or is there none?
fn is_host(name: &str) -> bool {
    name.len() <= 254 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_those_of_the_protocol() {
        let header = TransportHeader { port: 4143, name: None, session: None };
        assert_eq!(header.encode(), b"transport.l5d.io/v1\r\n\r\n\0\0\0\x03\x08\xaf\x20");
        let named =
            TransportHeader { port: 80, name: Some("a.b".into()), session: Some(Session::Http2) }.encode();
        assert_eq!(named[27..], *b"\x08\x50\x12\x03a.b\x1a\x02\x12\x00");
    }

    #[test]
    fn what_is_no_header_is_refused_at_the_first_wrong_byte() {
        assert_eq!(TransportHeader::decode(b"GET"), Err(BadHeader::NotAHeader));
        assert_eq!(TransportHeader::decode(b""), Ok(None));
        assert_eq!(TransportHeader::decode(b"transport.l5d.io/v2"), Err(BadHeader::NotAHeader));
        let long = [PREFACE, &[0, 1, 0, 1]].concat();
        assert_eq!(TransportHeader::decode(&long), Err(BadHeader::TooLong(65_537)));
        for name in ["a b", "a/b", "a\r\nb", "\u{e9}", &"a".repeat(255)] {
            let header = TransportHeader { port: 80, name: Some(name.into()), session: None };
            assert_eq!(TransportHeader::decode(&header.encode()), Err(BadHeader::BadName), "{name:?}");
        }
        let no_port = [PREFACE, &[0, 0, 0, 0]].concat();
        assert_eq!(TransportHeader::decode(&no_port), Err(BadHeader::BadPort(0)));
    }

    proptest! {
        #[test]
        fn headers_survive_the_way(port in 1u16.., name in proptest::option::of("[a-z.]{1,40}"), session in 0usize..3, cut in 0usize..200) {
            let session = [None, Some(Session::Http1), Some(Session::Http2)][session];
            let header = TransportHeader { port, name, session };
            let mut bytes = header.encode();
            let length = bytes.len();
            let part = &bytes[..cut.min(length - 1)];
            prop_assert_eq!(TransportHeader::decode(part), Ok(None));
            bytes.extend_from_slice(b"what follows");
            prop_assert_eq!(TransportHeader::decode(&bytes), Ok(Some((header, length))));
        }

        #[test]
        fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _any = TransportHeader::decode(&bytes);
            let mut framed = PREFACE.to_vec();
            framed.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
            framed.append(&mut bytes);
            let _any = TransportHeader::decode(&framed);
        }
    }
}
