//! HTTP/2, frame by frame: a client that may break every rule.

use crate::raw::within;
use std::{collections::HashMap, io};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// END_STREAM of DATA and HEADERS, ACK of SETTINGS and PING.
pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
pub const PRIORITIZED: u8 = 0x20;

/// Error codes (RFC 9113, 7).
pub const PROTOCOL_ERROR: u32 = 1;
pub const FLOW_CONTROL_ERROR: u32 = 3;
pub const STREAM_CLOSED: u32 = 5;
pub const FRAME_SIZE_ERROR: u32 = 6;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const COMPRESSION_ERROR: u32 = 9;
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// A frame as bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a payload of 24 bits").to_be_bytes();
    let mut out = vec![length[1], length[2], length[3], kind, flags];
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// Fields as HPACK writes them without a table and without Huffman's code (RFC 7541, 6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        string(name.as_bytes(), &mut out);
        string(value.as_bytes(), &mut out);
    }
    out
}

/// A length of seven bits or more (RFC 7541, 5.1) and the bytes.
pub fn string(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.len() < 127 {
        out.push(bytes.len() as u8);
    } else {
        out.push(127);
        let mut rest = bytes.len() - 127;
        while rest >= 128 {
            out.push(128 | (rest % 128) as u8);
            rest /= 128;
        }
        out.push(rest as u8);
    }
    out.extend(bytes);
}

/// The pseudo-header fields of a GET, and others.
pub fn get<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    request("GET", path, more)
}

pub fn request<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path)];
    fields.extend(more);
    fields
}

/// HEADERS with the whole block in one frame.
pub fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(fields))
}

/// One setting: identifier and value.
pub fn setting(id: u16, value: u32) -> Vec<u8> {
    let mut payload = id.to_be_bytes().to_vec();
    payload.extend(value.to_be_bytes());
    frame(SETTINGS, 0, 0, &payload)
}

pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub fn window(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error code of a RST_STREAM or GOAWAY.
    pub fn code(&self) -> Option<u32> {
        let at = match self.kind {
            RST_STREAM => 0,
            GOAWAY => 4,
            _ => return None,
        };
        Some(u32::from_be_bytes(self.payload.get(at..at + 4)?.try_into().ok()?))
    }

    /// The status of a response's HEADERS, if it is encoded as the first field.
    pub fn status(&self) -> Option<u16> {
        if self.kind != HEADERS {
            return None;
        }
        status(&self.payload)
    }
}

/// The first field of a block, if it is a status (RFC 7541, 6.1, 6.2 and appendix A).
fn status(block: &[u8]) -> Option<u16> {
    let first = *block.first()?;
    let indexed = [200, 204, 206, 304, 400, 404, 500];
    if first & 0x80 != 0 {
        return indexed.get(usize::from(first & 0x7f).checked_sub(8)?).copied();
    }
    // A literal whose name is one of the entries 8 to 14, with or without being remembered.
    let name = if first & 0x40 != 0 { first & 0x3f } else { first & 0x0f };
    if !(8..=14).contains(&name) {
        return None;
    }
    let length = *block.get(1)?;
    let value = block.get(2..2 + usize::from(length & 0x7f))?;
    let digits = if length & 0x80 != 0 { huffman_digits(value)? } else { value.to_vec() };
    String::from_utf8(digits).ok()?.parse().ok()
}

/// Digits in Huffman's code (RFC 7541, appendix B): 0 to 2 have five bits, 3 to 9 six.
fn huffman_digits(bytes: &[u8]) -> Option<Vec<u8>> {
    let bits: Vec<u8> = bytes.iter().flat_map(|b| (0..8).rev().map(move |i| b >> i & 1)).collect();
    let number = |bits: &[u8]| bits.iter().fold(0, |n, bit| n << 1 | bit);
    let (mut at, mut digits) = (0, Vec::new());
    while bits.len() - at >= 5 {
        let five = number(&bits[at..at + 5]);
        let (digit, taken) = match bits.get(at..at + 6).map(number) {
            _ if five <= 2 => (five, 5),
            Some(six @ 0x19..=0x1f) => (six - 0x19 + 3, 6),
            _ => break,
        };
        digits.push(b'0' + digit);
        at += taken;
    }
    Some(digits)
}

/// A client's connection.
#[derive(Debug)]
pub struct Client<IO> {
    pub io: IO,
    buffer: Vec<u8>,
    /// Frames that came while another was awaited, by stream.
    early: HashMap<u32, Vec<Frame>>,
}

/// How a stream, or the whole connection, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A response with this status, and END_STREAM.
    Answered(u16),
    Reset(u32),
    /// GOAWAY with an error.
    Goaway(u32),
    /// The connection was closed without one.
    Closed,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Client<IO> {
    /// Only the connection: not even the preface is sent.
    pub fn new(io: IO) -> Self {
        Client { io, buffer: Vec::new(), early: HashMap::new() }
    }

    /// Sends the preface and empty settings.
    pub async fn open(io: IO) -> io::Result<Self> {
        let mut client = Client::new(io);
        client.send(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await?;
        Ok(client)
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        within(self.io.write_all(bytes)).await
    }

    /// The next frame; `None` when the peer has closed or reset.
    pub async fn frame(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.parse() {
                return Ok(Some(frame));
            }
            match within(self.io.read_buf(&mut self.buffer)).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                Err(_) => return Ok(None),
            }
        }
    }

    fn parse(&mut self) -> Option<Frame> {
        let [a, b, c, kind, flags, s0, s1, s2, s3, ..] = *self.buffer.as_slice() else { return None };
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if self.buffer.len() < 9 + length {
            return None;
        }
        let mut payload: Vec<u8> = self.buffer.drain(..9 + length).collect();
        payload.drain(..9);
        let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
        Some(Frame { kind, flags, stream, payload })
    }

    /// Asks on a new stream and waits for the end of the answer.
    pub async fn ask(&mut self, stream: u32, path: &str) -> io::Result<Ended> {
        match self.send(&headers(stream, END_STREAM, &get(path, &[]))).await {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
            // Closed: what was said before it closed is still to be read.
            _ => self.end(stream).await,
        }
    }

    /// Waits until the stream ends, acknowledging what has to be acknowledged.
    pub async fn end(&mut self, stream: u32) -> io::Result<Ended> {
        let mut status = 0;
        for frame in self.early.remove(&stream).unwrap_or_default() {
            if let Some(ended) = ended(&frame, &mut status) {
                return Ok(ended);
            }
        }
        loop {
            let Some(frame) = self.frame().await? else { return Ok(Ended::Closed) };
            match frame.kind {
                GOAWAY => match frame.code() {
                    Some(0) | None => {}
                    Some(code) => return Ok(Ended::Goaway(code)),
                },
                SETTINGS if frame.flags & ACK == 0 => {
                    let _closing = self.send(&self::frame(SETTINGS, ACK, 0, &[])).await;
                }
                DATA | HEADERS | RST_STREAM if frame.stream == stream => {
                    if let Some(ended) = ended(&frame, &mut status) {
                        return Ok(ended);
                    }
                }
                DATA | HEADERS | RST_STREAM => self.early.entry(frame.stream).or_default().push(frame),
                _ => {}
            }
        }
    }
}

fn ended(frame: &Frame, status: &mut u16) -> Option<Ended> {
    if frame.kind == RST_STREAM {
        return Some(Ended::Reset(frame.code().unwrap_or(u32::MAX)));
    }
    // The first HEADERS; trailers have no status.
    *status = frame.status().unwrap_or(*status);
    (frame.flags & END_STREAM != 0).then_some(Ended::Answered(*status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_in_every_encoding() {
        assert_eq!(status(&[0x88]), Some(200));
        assert_eq!(status(&[0x8c]), Some(400));
        assert_eq!(status(&[0x48, 3, b'4', b'3', b'1']), Some(431));
        // 302 in Huffman's code (RFC 7541, C.6.1), and 307 (C.6.2).
        assert_eq!(status(&[0x48, 0x82, 0x64, 0x02]), Some(302));
        assert_eq!(status(&[0x48, 0x83, 0x64, 0x0e, 0xff]), Some(307));
        assert_eq!(status(&[0x0f, 0x12]), None);
    }

    #[test]
    fn lengths_of_strings() {
        let mut out = Vec::new();
        string(&[b'x'; 1337 + 127 - 31], &mut out);
        assert_eq!(out[0], 127);
        assert_eq!(out.len(), 3 + 1337 + 127 - 31);
    }
}
