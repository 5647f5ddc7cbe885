//! As much of SPDY/3.1 as port-forwarding needs: frames of a client into values, and this side's frames.
//!
//! Header blocks are one zlib stream per direction for the whole session, so every block must pass the decompressor, even
//! of frames that mean nothing here.

use std::sync::LazyLock;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// A control frame larger than this is refused; data frames are passed on in pieces, whatever their length says.
const CONTROL_LIMIT: usize = 16 * 1024;
/// Likewise a header block when unpacked.
const HEADERS_LIMIT: usize = 16 * 1024;

const CONTROL: u16 = 0x8000;
const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const HEADERS: u16 = 8;
/// On data and on the frames that open a stream: nothing follows from this side.
const FIN: u8 = 1;

/// Why a stream is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    Protocol = 1,
    Refused = 3,
}

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Open {
        stream: u32,
        headers: Vec<(String, String)>,
        end: bool,
    },
    /// A piece of a data frame; `end` with the last piece of a stream's last one.
    Data {
        stream: u32,
        data: Bytes,
        end: bool,
    },
    Reset {
        stream: u32,
    },
    Ping {
        id: u32,
    },
}

/// Why a session cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// A data frame of which more is to come.
struct Open {
    stream: u32,
    left: usize,
    end: bool,
}

/// Frames out of a stream of bytes.
pub(super) struct Decoder {
    buffer: BytesMut,
    open: Option<Open>,
    inflate: Decompress,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { buffer: BytesMut::new(), open: None, inflate: Decompress::new(true) }
    }

    /// More bytes. Take all frames out before the next call, so that no more than these and part of a frame are kept.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame that means something, if it is there.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        loop {
            if let Some(open) = &mut self.open {
                if open.left > 0 && self.buffer.is_empty() {
                    return Ok(None);
                }
                let data = self.buffer.split_to(open.left.min(self.buffer.len())).freeze();
                open.left -= data.len();
                let (stream, last) = (open.stream, open.left == 0);
                let end = last && open.end;
                if last {
                    self.open = None;
                }
                return Ok(Some(Frame::Data { stream, data, end }));
            }
            let Some((head, rest)) = self.buffer.split_at_checked(8) else { return Ok(None) };
            let mut head = head;
            let first = head.get_u32();
            let flags_and_length = head.get_u32();
            let flags = (flags_and_length >> 24) as u8;
            let length = (flags_and_length & 0x00ff_ffff) as usize;
            if first >> 31 == 0 {
                self.buffer.advance(8);
                self.open = Some(Open { stream: first, left: length, end: flags & FIN != 0 });
                continue;
            }
            if (first >> 16) as u16 != CONTROL | VERSION {
                return Err(Malformed("a control frame of another version than SPDY/3"));
            }
            if length > CONTROL_LIMIT {
                return Err(Malformed("a control frame that is too large"));
            }
            if rest.len() < length {
                return Ok(None);
            }
            self.buffer.advance(8);
            let body = self.buffer.split_to(length).freeze();
            if let Some(frame) = self.control((first & 0xffff) as u16, flags, body)? {
                return Ok(Some(frame));
            }
        }
    }

    fn control(&mut self, kind: u16, flags: u8, mut body: Bytes) -> Result<Option<Frame>, Malformed> {
        let short = Malformed("a control frame that is too short");
        let mut number = || body.try_get_u32().map(|n| n & 0x7fff_ffff).map_err(|_| short);
        match kind {
            SYN_STREAM => {
                let (stream, _associated) = (number()?, number()?);
                let _priority_and_slot = body.try_get_u16().map_err(|_| short)?;
                let headers = headers(&self.inflate(&body)?)?;
                Ok(Some(Frame::Open { stream, headers, end: flags & FIN != 0 }))
            }
            // Nothing is asked of the client here, but the blocks are part of the compression.
            SYN_REPLY | HEADERS => {
                number()?;
                self.inflate(&body)?;
                Ok(None)
            }
            RST_STREAM => Ok(Some(Frame::Reset { stream: number()? })),
            PING => Ok(Some(Frame::Ping { id: body.try_get_u32().map_err(|_| short)? })),
            // SETTINGS, GOAWAY, WINDOW_UPDATE: the one connection's own flow control suffices.
            _ => Ok(None),
        }
    }

    fn inflate(&mut self, block: &[u8]) -> Result<Vec<u8>, Malformed> {
        let bad = Malformed("a header block that cannot be unpacked");
        let mut unpacked = Vec::with_capacity(HEADERS_LIMIT);
        let before = self.inflate.total_in();
        let mut asked = false;
        loop {
            let read = usize::try_from(self.inflate.total_in() - before).map_err(|_| bad)?;
            let rest = block.get(read..).ok_or(bad)?;
            match self.inflate.decompress_vec(rest, &mut unpacked, FlushDecompress::Sync) {
                // Asked for once, at the beginning of the session.
                Err(error) if error.needs_dictionary().is_some() && !asked => {
                    asked = true;
                    self.inflate.set_dictionary(&DICTIONARY).map_err(|_| bad)?;
                }
                Ok(Status::Ok | Status::BufError) => {
                    let read = usize::try_from(self.inflate.total_in() - before).map_err(|_| bad)?;
                    if unpacked.len() == HEADERS_LIMIT {
                        return Err(Malformed("a header block that is too large"));
                    }
                    return if read == block.len() { Ok(unpacked) } else { Err(bad) };
                }
                Ok(Status::StreamEnd) | Err(_) => return Err(bad),
            }
        }
    }
}

/// Name and value pairs: a count, then each text after its length.
fn headers(mut block: &[u8]) -> Result<Vec<(String, String)>, Malformed> {
    let bad = Malformed("a header block that is no list of names and values");
    let count = block.try_get_u32().map_err(|_| bad)?;
    let mut text = || -> Result<String, Malformed> {
        let length = block.try_get_u32().map_err(|_| bad)? as usize;
        let (text, rest) = block.split_at_checked(length).ok_or(bad)?;
        block = rest;
        std::str::from_utf8(text).map(str::to_owned).map_err(|_| bad)
    };
    // A count that is too large ends at the first text that is not there.
    (0..count).map(|_| Ok((text()?, text()?))).collect()
}

/// This side's frames.
pub(super) struct Encoder {
    deflate: Compress,
}

impl Encoder {
    pub(super) fn new() -> Self {
        let mut deflate = Compress::new(Compression::fast(), true);
        deflate.set_dictionary(&DICTIONARY).expect("a stream that has not begun takes a dictionary");
        Self { deflate }
    }

    /// Accepts a stream, with no headers.
    pub(super) fn reply(&mut self, stream: u32) -> Bytes {
        let mut block = Vec::with_capacity(64);
        let none = 0_u32.to_be_bytes();
        self.deflate
            .compress_vec(&none, &mut block, FlushCompress::Sync)
            .expect("four bytes and a flush fit into 64");
        let mut frame = control(SYN_REPLY, 4 + block.len());
        frame.put_u32(stream);
        frame.put_slice(&block);
        frame.freeze()
    }

    pub(super) fn data(stream: u32, data: &[u8], end: bool) -> Bytes {
        let mut frame = BytesMut::with_capacity(8 + data.len());
        frame.put_u32(stream);
        frame.put_u8(if end { FIN } else { 0 });
        frame.put_uint(data.len() as u64, 3);
        frame.put_slice(data);
        frame.freeze()
    }

    pub(super) fn reset(stream: u32, reason: Reason) -> Bytes {
        let mut frame = control(RST_STREAM, 8);
        frame.put_u32(stream);
        frame.put_u32(reason as u32);
        frame.freeze()
    }

    pub(super) fn ping(id: u32) -> Bytes {
        let mut frame = control(PING, 4);
        frame.put_u32(id);
        frame.freeze()
    }
}

fn control(kind: u16, length: usize) -> BytesMut {
    let mut frame = BytesMut::with_capacity(8 + length);
    frame.put_u16(CONTROL | VERSION);
    frame.put_u16(kind);
    frame.put_u32(u32::try_from(length).expect("control frames of this side are short"));
    frame
}

/// What SPDY/3 has both sides assume to have seen: words with their lengths, then common texts.
static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = Vec::with_capacity(1423);
    for word in WORDS.split('|') {
        bytes.put_u32(u32::try_from(word.len()).expect("a word"));
        bytes.put_slice(word.as_bytes());
    }
    bytes.put_slice(TEXTS.as_bytes());
    bytes
});

const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|\
    accept-ranges|age|allow|authorization|cache-control|connection|content-base|content-encoding|content-language|\
    content-length|content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match|\
    if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|\
    proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|\
    user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|\
    keep-alive|origin";

const TEXTS: &str = "1001012012022052063003023033043053063074024054064074084094104114124134144154164175025045052\
    03 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug \
    Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8\
    charset=iso-8859-1,utf-,*,enq=0.";

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's side of the compression, and its frames.
    struct Client(Compress);

    impl Client {
        fn new() -> Self {
            Self(Encoder::new().deflate)
        }

        fn block(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
            let mut plain = BytesMut::new();
            plain.put_u32(headers.len() as u32);
            for text in headers.iter().flat_map(|(name, value)| [name, value]) {
                plain.put_u32(text.len() as u32);
                plain.put_slice(text.as_bytes());
            }
            let mut block = Vec::with_capacity(plain.len() + 100);
            self.0.compress_vec(&plain, &mut block, FlushCompress::Sync).unwrap();
            block
        }

        fn open(&mut self, stream: u32, headers: &[(&str, &str)]) -> Vec<u8> {
            let block = self.block(headers);
            let mut frame = control(SYN_STREAM, 10 + block.len());
            frame.put_u32(stream);
            frame.put_slice(&[0; 6]);
            frame.put_slice(&block);
            frame.to_vec()
        }
    }

    fn all(bytes: &[u8], piece: usize) -> Result<Vec<Frame>, Malformed> {
        let mut decoder = Decoder::new();
        let mut frames = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.push(piece);
            while let Some(frame) = decoder.next()? {
                frames.push(frame);
            }
        }
        Ok(frames)
    }

    #[test]
    fn the_dictionary_is_that_of_the_protocol() {
        // The checksum that every SPDY/3 client sends at the beginning of its first header block.
        let reply = Encoder::new().reply(1);
        assert_eq!(reply[14..18], [0xe3, 0xc6, 0xa7, 0xc2]);
        assert_eq!(DICTIONARY.len(), 1423);
    }

    #[test]
    fn frames_are_read_wherever_messages_begin_and_end() {
        let mut client = Client::new();
        let headers = [("streamtype", "data"), ("port", "80"), ("requestid", "0")];
        let owned: Vec<_> = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let mut bytes = client.open(1, &headers);
        // Settings, which say nothing here; headers, which only pass the decompressor.
        bytes.extend([0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0]);
        let more = client.block(&[("x", "y")]);
        let mut frame = control(HEADERS, 4 + more.len());
        frame.put_u32(1);
        frame.put_slice(&more);
        bytes.extend(&frame);
        bytes.extend(client.open(3, &headers));
        bytes.extend(Encoder::data(3, b"hello", false));
        bytes.extend(Encoder::ping(7));
        bytes.extend(Encoder::data(3, b"", true));
        bytes.extend(Encoder::reset(1, Reason::Protocol));
        for piece in 1..=bytes.len() {
            let mut data = Vec::new();
            let mut rest = Vec::new();
            for frame in all(&bytes, piece).unwrap() {
                match frame {
                    Frame::Data { stream: 3, data: more, end: false } => data.extend(more),
                    other => rest.push(other),
                }
            }
            assert_eq!(data, b"hello");
            let open = |stream| Frame::Open { stream, headers: owned.clone(), end: false };
            let end = Frame::Data { stream: 3, data: Bytes::new(), end: true };
            assert_eq!(rest, [open(1), open(3), Frame::Ping { id: 7 }, end, Frame::Reset { stream: 1 }]);
        }
    }

    #[test]
    fn what_is_too_large_or_too_short_is_refused() {
        let large = "x".repeat(HEADERS_LIMIT);
        let why = |bytes: &[u8]| all(bytes, 1024).unwrap_err().0;
        assert!(why(&Client::new().open(1, &[("a", &large)])).contains("too large"));
        let mut long = control(PING, CONTROL_LIMIT + 1);
        long.put_u32(1);
        assert!(why(&long).contains("too large"));
        assert!(why(&control(PING, 0)).contains("too short"));
        assert!(why(&[0x80, 2, 0, 6, 0, 0, 0, 0]).contains("version"));
        let mut broken = control(SYN_STREAM, 14);
        broken.put_slice(&[0; 14]);
        assert!(why(&broken).contains("unpacked"));
        for claim in [1_u32, 1000, u32::MAX] {
            assert!(headers(&claim.to_be_bytes()).unwrap_err().0.contains("list"));
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        use rand::{Rng, SeedableRng};
        let mut random = rand::rngs::StdRng::seed_from_u64(31);
        let mut good = Client::new().open(1, &[("streamtype", "error"), ("port", "8080")]);
        good.extend(Encoder::data(1, b"data", true));
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            let _ = all(&bytes, random.random_range(1..40));
        }
    }
}
