//! Reading the server name of a ClientHello without consuming it.

use crate::{
    handshake::Offer,
    provider::{WEFT_ALPN, WEFT_TRANSPORT_ALPN},
};

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Could be a ClientHello, and is not whole yet.
    Incomplete,
    /// Not a ClientHello, whatever follows.
    NotTls,
    /// A whole ClientHello.
    Client {
        sni: Option<String>,
        /// What a weft proxy offers; [`Offer::Nothing`] is any other client.
        weft: Offer,
    },
}

/// A hello larger than this is refused as "not TLS": real ones, with post-quantum key shares and long ticket
/// extensions, stay far below.
pub const MAX_HELLO: usize = 32 * 1024;

const RECORD_HEADER: usize = 5;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;

/// Looks at the first bytes (RFC 8446, 5.1 and 4.1.2). A hello may be spread over several records.
pub fn peek(bytes: &[u8]) -> Hello {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        match rest {
            [] => return Hello::Incomplete,
            [kind, ..] if *kind != HANDSHAKE => return Hello::NotTls,
            // The second half of the record's version means nothing (RFC 8446, 5.1), and the TLS library reads on whatever it is.
            [_, major, ..] if *major != 3 => return Hello::NotTls,
            _ => {}
        }
        if rest.len() < RECORD_HEADER {
            return Hello::Incomplete;
        }
        let length = usize::from(u16::from_be_bytes([rest[3], rest[4]]));
        if length == 0 || length > 1 << 14 || message.len() + length > MAX_HELLO {
            return Hello::NotTls;
        }
        let fragment = &rest[RECORD_HEADER..rest.len().min(RECORD_HEADER + length)];
        let whole = fragment.len() == length;
        message.extend_from_slice(fragment);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Hello::NotTls;
        }
        if let [_, a, b, c, body @ ..] = message.as_slice() {
            let wanted = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if wanted > MAX_HELLO {
                return Hello::NotTls;
            }
            if let Some(body) = body.get(..wanted) {
                return match client(body) {
                    Some(client) => client,
                    None => Hello::NotTls,
                };
            }
        }
        if !whole {
            return Hello::Incomplete;
        }
        rest = &rest[RECORD_HEADER + length..];
    }
}

/// `None`: malformed.
fn client(body: &[u8]) -> Option<Hello> {
    let mut reader = Reader(body);
    reader.take(2)?; // legacy_version
    reader.take(32)?; // random
    reader.vector8()?; // legacy_session_id
    reader.vector16()?; // cipher_suites
    reader.vector8()?; // legacy_compression_methods
    let (mut sni, mut weft) = (None, Offer::Nothing);
    if reader.0.is_empty() {
        return Some(Hello::Client { sni, weft }); // before TLS 1.3, extensions were optional
    }
    let mut extensions = Reader(reader.vector16()?);
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let data = extensions.vector16()?;
        match kind {
            SERVER_NAME => sni = host_name(data)?,
            PROTOCOLS => weft = offered(data)?,
            _ => {}
        }
    }
    Some(Hello::Client { sni, weft })
}

/// Extension types (RFC 6066, 3; RFC 7301, 3.1).
const SERVER_NAME: u16 = 0;
const PROTOCOLS: u16 = 16;

fn host_name(data: &[u8]) -> Option<Option<String>> {
    let mut names = Reader(Reader(data).vector16()?);
    while !names.0.is_empty() {
        let name_type = *names.take(1)?.first()?;
        let name = names.vector16()?;
        if name_type == 0 {
            let text = std::str::from_utf8(name).ok().filter(|t| !t.is_empty() && t.is_ascii())?;
            return Some(Some(text.to_ascii_lowercase()));
        }
    }
    Some(None)
}

fn offered(data: &[u8]) -> Option<Offer> {
    let mut names = Reader(Reader(data).vector16()?);
    let mut offered = Offer::Nothing;
    while !names.0.is_empty() {
        match names.vector8()? {
            WEFT_ALPN => offered = Offer::Weft,
            WEFT_TRANSPORT_ALPN => offered = Offer::Transport,
            _ => {}
        }
    }
    Some(offered)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }
    fn number16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }
    fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = *self.take(1)?.first()?;
        self.take(usize::from(length))
    }
    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.number16()?;
        self.take(usize::from(length))
    }
}
