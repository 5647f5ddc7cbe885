//! Telling a connection's protocol by its first bytes, without taking them.

use crate::deadline::{Late, within};
use std::{io, time::Duration};
use tokio::io::AsyncRead;
use weft_fault::{Code, Fault, Phase};
use weft_net::prefixed::Prefixed;
use weft_tls::hello::{self, Hello, MAX_HELLO};

/// How the bytes are to be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    Opaque,
}

impl Protocol {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Protocol::Http1 => "http/1",
            Protocol::Http2 => "http/2",
            Protocol::Opaque => "opaque",
        }
    }
}

/// One read while detecting.
const READ: usize = 4 * 1024;
/// Without a decision after this many bytes a connection is opaque.
const MAX_REQUEST_LINE: usize = 64 * 1024;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// So many bytes of the preface are decisive: no HTTP/1 request begins like that.
const PREFACE_ENOUGH: usize = 14;

/// Reads until it is plain whether the client begins with a ClientHello.
pub(crate) async fn client_hello<S>(stream: &mut Prefixed<S>, limit: Duration) -> Result<Hello, Fault>
where
    S: AsyncRead + Unpin,
{
    let reading = async {
        loop {
            match hello::peek(stream.prefix()) {
                Hello::Incomplete => {}
                decided => return Ok(decided),
            }
            if stream.prefix().len() > MAX_HELLO {
                return Ok(Hello::NotTls);
            }
            if stream.fill(READ).await? == 0 {
                return Ok(Hello::Incomplete);
            }
        }
    };
    let read = within(limit, reading).await;
    let bytes = stream.prefix().len();
    let fault = |code| Fault::new(code).in_phase(Phase::Detect).fact("bytes", bytes);
    match read {
        Ok(Ok(Hello::Incomplete)) => {
            Err(fault(if bytes == 0 { Code::ClientSilent } else { Code::PartialHello }))
        }
        Ok(Ok(decided)) => Ok(decided),
        Ok(Err(error)) => Err(fault(read_failure(&error, bytes)).because(error)),
        Err(late) => Err(waited(fault(Code::DetectTimeout), late)),
    }
}

/// Reads until the protocol is plain. Silence, or too little, is opaque after `limit`: the server may be the one that
/// speaks first. So is a client that ends its side early: what it sent is passed on.
pub(crate) async fn protocol<S>(
    stream: &mut Prefixed<S>,
    limit: Duration,
) -> Result<(Protocol, Option<Late>), Fault>
where
    S: AsyncRead + Unpin,
{
    let reading = async {
        loop {
            if let Some(decided) = sniff(stream.prefix()) {
                return Ok(decided);
            }
            if stream.fill(READ).await? == 0 {
                return Ok(Protocol::Opaque);
            }
        }
    };
    let read = within(limit, reading).await;
    let bytes = stream.prefix().len();
    match read {
        Ok(Ok(decided)) => Ok((decided, None)),
        Ok(Err(error)) => Err(Fault::new(read_failure(&error, bytes)).in_phase(Phase::Detect).because(error)),
        Err(late) => Ok((Protocol::Opaque, Some(late))),
    }
}

pub(crate) fn waited(fault: Fault, late: Late) -> Fault {
    let fault = fault.fact("waited_ms", late.waited.as_millis());
    match late.stalled {
        Some(gap) => fault.fact("stalled_ms", gap.as_millis()),
        None => fault,
    }
}

/// Did the client leave without a byte, so far as can be told within `limit`? Probes do, often by a reset.
pub(crate) async fn left_silently<S: AsyncRead + Unpin>(stream: &mut Prefixed<S>, limit: Duration) -> bool {
    if !stream.prefix().is_empty() {
        return false;
    }
    match within(limit, stream.fill(READ)).await {
        Ok(Ok(read)) => read == 0,
        Ok(Err(error)) => read_failure(&error, 0) == Code::ClientSilent,
        Err(_) => false,
    }
}

fn read_failure(error: &io::Error, bytes: usize) -> Code {
    match error.kind() {
        io::ErrorKind::ConnectionReset if bytes == 0 => Code::ClientSilent,
        io::ErrorKind::ConnectionReset => Code::ConnectionReset,
        _ => Code::NetworkIo,
    }
}

/// Decides as early as the bytes allow; `None`: more are needed.
pub(crate) fn sniff(bytes: &[u8]) -> Option<Protocol> {
    let shared = bytes.len().min(PREFACE_ENOUGH);
    if bytes[..shared] == PREFACE[..shared] {
        return (shared == PREFACE_ENOUGH).then_some(Protocol::Http2);
    }
    // A request line: method SP target SP "HTTP/1." (RFC 9112, 3).
    let method = bytes.iter().take_while(|b| is_token(**b)).count();
    if method > 24 || (method == 0 && !bytes.is_empty()) {
        return Some(Protocol::Opaque);
    }
    let rest = match bytes.get(method) {
        None => return None,
        Some(b' ') => &bytes[method + 1..],
        Some(_) => return Some(Protocol::Opaque),
    };
    let target = rest.iter().take_while(|b| b.is_ascii_graphic() || **b >= 0x80).count();
    match rest.get(target) {
        None if bytes.len() > MAX_REQUEST_LINE => Some(Protocol::Opaque),
        None => None,
        Some(b' ') if target > 0 => {
            let (version, wanted) = (&rest[target + 1..], b"HTTP/1.");
            let shared = version.len().min(wanted.len());
            if version[..shared] != wanted[..shared] {
                Some(Protocol::Opaque)
            } else {
                (shared == wanted.len()).then_some(Protocol::Http1)
            }
        }
        Some(_) => Some(Protocol::Opaque),
    }
}

/// RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[test]
    fn decides_as_early_as_possible_and_no_earlier() {
        for (bytes, decided) in [
            (&b""[..], None),
            (b"P", None),
            (b"PRI * HTTP/2.", None),
            (b"PRI * HTTP/2.0", Some(Protocol::Http2)),
            (b"PRINT /x HTTP/1.", Some(Protocol::Http1)),
            (b"GE", None),
            (b"GET /a?b HTTP/1.1\r\n", Some(Protocol::Http1)),
            (b"GET /a?b HTTP/1", None),
            (b"GET http://h/ HTTP/1.0\r\n", Some(Protocol::Http1)),
            (b"GET /a?b HTTP/2", Some(Protocol::Opaque)),
            (b"GET /a\r\n", Some(Protocol::Opaque)),
            (b"EHLO mail.example\r\n", Some(Protocol::Opaque)),
            (b"*1\r\n$4\r\nPING\r\n", Some(Protocol::Opaque)),
            (b"\x01\x02\x03\x04", Some(Protocol::Opaque)),
            (b"\x16\x03\x01", Some(Protocol::Opaque)),
            (b" /", Some(Protocol::Opaque)),
            (b"GET  / HTTP/1.1", Some(Protocol::Opaque)),
            (b"AAAAAAAAAAAAAAAAAAAAAAAAA", Some(Protocol::Opaque)),
        ] {
            assert_eq!(sniff(bytes), decided, "{:?}", String::from_utf8_lossy(bytes));
        }
        let long = [b"GET /", "x".repeat(20_000).as_bytes(), b" HTTP/1.1\r\n"].concat();
        assert_eq!(sniff(&long), Some(Protocol::Http1));
        assert_eq!(sniff(&long[..20_000]), None);
    }

    proptest! {
        #[test]
        fn a_decision_is_never_taken_back(bytes in proptest::collection::vec(any::<u8>(), 0..40), cut in 0_usize..40) {
            let cut = cut.min(bytes.len());
            if let Some(early) = sniff(&bytes[..cut]) {
                prop_assert_eq!(sniff(&bytes), Some(early));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_opaque_at_the_limit_and_nothing_is_lost() {
        let (mut near, far) = duplex(64);
        let mut far = Prefixed::new(far);
        near.write_all(b"P").await.unwrap();
        let (decided, late) = protocol(&mut far, Duration::from_secs(10)).await.unwrap();
        assert_eq!(decided, Protocol::Opaque);
        assert!(late.unwrap().waited >= Duration::from_secs(10));
        drop(near);
        let mut text = String::new();
        far.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "P");
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_hello_says_how_it_is_missing() {
        for (sent, close, code) in [
            (&b""[..], true, Code::ClientSilent),
            (b"\x16\x03", true, Code::PartialHello),
            (b"\x16\x03", false, Code::DetectTimeout),
        ] {
            let (mut near, far) = duplex(64);
            let mut far = Prefixed::new(far);
            near.write_all(sent).await.unwrap();
            if close {
                near.shutdown().await.unwrap();
            }
            let fault = client_hello(&mut far, Duration::from_secs(10)).await.unwrap_err();
            assert_eq!(fault.code(), code);
            assert_eq!(fault.record().fact("bytes"), Some(sent.len().to_string().as_str()));
        }
    }
}
