//! HTTP/1 messages as a strict peer reads them: whole, or told where they broke off.

use crate::raw::within;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// One end of a connection, with what was read too far.
#[derive(Debug)]
pub struct Wire<IO> {
    pub io: IO,
    buffer: Vec<u8>,
}

/// A message, as far as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The request line or status line.
    pub line: String,
    pub fields: Vec<(String, String)>,
    /// Decoded, if it was chunked.
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    /// It came to the end that it announced. A message that only the end of the connection ends is whole by that.
    pub whole: bool,
    /// Final responses only: the interim ones before it.
    pub interim: Vec<u16>,
}

impl Message {
    /// The values of a field, whose name is compared without regard to case.
    pub fn all<'m>(&'m self, name: &'m str) -> impl Iterator<Item = &'m str> {
        self.fields.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The status of a response; 0 of anything else.
    pub fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    fn is_chunked(&self) -> bool {
        self.field("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Wire<IO> {
    pub fn new(io: IO) -> Self {
        Wire { io, buffer: Vec::new() }
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        within(self.io.write_all(bytes)).await
    }

    /// The next request; `None` at the end of the connection.
    pub async fn request(&mut self) -> io::Result<Option<Message>> {
        let Some(mut message) = self.head().await? else { return Ok(None) };
        message.whole = self.body(&mut message, false).await?;
        Ok(Some(message))
    }

    /// Only the head of the next request: its body is still to be read.
    pub async fn request_head(&mut self) -> io::Result<Option<Message>> {
        self.head().await
    }

    /// The body of a request whose head was read.
    pub async fn request_body(&mut self, message: &mut Message) -> io::Result<()> {
        message.whole = self.body(message, false).await?;
        Ok(())
    }

    /// The next final response to a request of `method`; `None` at the end of the connection.
    pub async fn response(&mut self, method: &str) -> io::Result<Option<Message>> {
        let mut interim = Vec::new();
        loop {
            let Some(mut message) = self.head().await? else { return Ok(None) };
            let status = message.status();
            if (100..200).contains(&status) && status != 101 {
                interim.push(status);
                continue;
            }
            let bodiless = method == "HEAD" || matches!(status, 101 | 204 | 304);
            message.whole = bodiless || self.body(&mut message, true).await?;
            message.interim = interim;
            return Ok(Some(message));
        }
    }

    /// All that still comes until the peer closes. A reset ends it, too.
    pub async fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.fill().await? == Filled::Some {}
        Ok(std::mem::take(&mut self.buffer))
    }

    async fn head(&mut self) -> io::Result<Option<Message>> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if self.fill().await? != Filled::Some {
                return match self.buffer.len() {
                    0 => Ok(None),
                    _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "half a head")),
                };
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let text = latin1(&head[..end]);
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        Ok(Some(Message { line, fields: lines.map(field).collect(), ..Message::default() }))
    }

    /// Reads the body. Did it come whole?
    async fn body(&mut self, message: &mut Message, response: bool) -> io::Result<bool> {
        if message.is_chunked() {
            return self.chunks(message).await;
        }
        let length = message.field("content-length").map(|value| value.parse::<usize>());
        match length {
            Some(Ok(length)) => {
                let whole = self.at_least(length).await?;
                let length = length.min(self.buffer.len());
                message.body = self.buffer.drain(..length).collect();
                Ok(whole)
            }
            Some(Err(_)) => Ok(false),
            None if response => {
                // A reset would have taken the end away: it is not the end that the server meant.
                let ended = loop {
                    match self.fill().await? {
                        Filled::Some => {}
                        Filled::End => break true,
                        Filled::Reset => break false,
                    }
                };
                message.body = std::mem::take(&mut self.buffer);
                Ok(ended)
            }
            None => Ok(true),
        }
    }

    async fn chunks(&mut self, message: &mut Message) -> io::Result<bool> {
        loop {
            let Some(line) = self.line().await? else { return Ok(false) };
            let digits = line.split(';').next().unwrap_or_default();
            let Ok(size) = usize::from_str_radix(digits, 16) else { return Ok(false) };
            if size == 0 {
                break;
            }
            let whole = self.at_least(size + 2).await?;
            let size = size.min(self.buffer.len());
            message.body.extend(self.buffer.drain(..size));
            if !whole || self.buffer.drain(..2).as_slice() != b"\r\n" {
                return Ok(false);
            }
        }
        loop {
            match self.line().await? {
                None => return Ok(false),
                Some(line) if line.is_empty() => return Ok(true),
                Some(line) => message.trailers.push(field(&line)),
            }
        }
    }

    async fn line(&mut self) -> io::Result<Option<String>> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                break end;
            }
            if self.fill().await? != Filled::Some {
                return Ok(None);
            }
        };
        let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
        Ok(Some(latin1(&line[..end])))
    }

    async fn at_least(&mut self, count: usize) -> io::Result<bool> {
        while self.buffer.len() < count {
            if self.fill().await? != Filled::Some {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn fill(&mut self) -> io::Result<Filled> {
        self.buffer.reserve(16 * 1024);
        match within(self.io.read_buf(&mut self.buffer)).await {
            Ok(0) => Ok(Filled::End),
            Ok(_) => Ok(Filled::Some),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Filled::Reset),
            Err(error) => Err(error),
        }
    }
}

/// What a read brought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filled {
    Some,
    End,
    Reset,
}

fn find(bytes: &[u8], end: &[u8]) -> Option<usize> {
    bytes.windows(end.len()).position(|window| window == end)
}

fn field(line: &str) -> (String, String) {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    (name.to_owned(), value.trim_matches([' ', '\t']).to_owned())
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The bytes of a text in which `|` stands for CRLF and every other character for one byte (U+0000 to U+00FF).
pub fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' => out.extend(b"\r\n"),
            c => out.push(u8::try_from(u32::from(c)).expect("one byte for each character")),
        }
    }
    out
}
