//! What a weft proxy answers to a transport header that announces opaque bytes, in front of all else that it sends
//! (`weft.dev/transport/v1`; stock proxies agree on another protocol, and answer nothing). Nobody waits for it: the client's
//! bytes follow the header at once.

use std::fmt;

/// The longest text that is written or read.
pub const MAX_TEXT: usize = 1024;

const ACCEPTED: u8 = 0;
const REFUSED: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportAnswer {
    /// The bytes that follow are the application's.
    Accepted,
    /// Nothing follows. The text begins with a fault code.
    Refused(String),
}

/// The first byte is that of no answer, or the text is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAnswer;

impl fmt::Display for BadAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes are no answer to a transport header")
    }
}
impl std::error::Error for BadAnswer {}

impl TransportAnswer {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            TransportAnswer::Accepted => vec![ACCEPTED],
            TransportAnswer::Refused(text) => {
                let text = &text.as_bytes()[..text.len().min(MAX_TEXT)];
                let length = u16::try_from(text.len()).expect("MAX_TEXT is less than 64 KiB");
                [&[REFUSED][..], &length.to_be_bytes(), text].concat()
            }
        }
    }

    /// Reads an answer from the first bytes of a connection: the answer and its length, or `None` when more bytes are
    /// needed.
    pub fn decode(bytes: &[u8]) -> Result<Option<(TransportAnswer, usize)>, BadAnswer> {
        match bytes {
            [] => Ok(None),
            [ACCEPTED, ..] => Ok(Some((TransportAnswer::Accepted, 1))),
            [REFUSED, high, low, rest @ ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                if length > MAX_TEXT {
                    return Err(BadAnswer);
                }
                let Some(text) = rest.get(..length) else { return Ok(None) };
                let text = String::from_utf8_lossy(text).into_owned();
                Ok(Some((TransportAnswer::Refused(text), 3 + length)))
            }
            [REFUSED, ..] => Ok(None),
            _ => Err(BadAnswer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_however_they_arrive_and_nothing_behind_them() {
        for answer in [TransportAnswer::Accepted, TransportAnswer::Refused("POL-001 no".into())] {
            let written = answer.encode();
            for end in 0..written.len() {
                assert_eq!(TransportAnswer::decode(&written[..end]), Ok(None), "{end}");
            }
            let followed = [&written[..], b"\x01\x00"].concat();
            assert_eq!(TransportAnswer::decode(&followed), Ok(Some((answer, written.len()))));
        }
    }

    #[test]
    fn what_is_no_answer_is_refused_as_soon_as_that_shows() {
        for bytes in [&b"\x02"[..], b"220 mail", b"\x01\x04\x01", b"\x01\xff\xff"] {
            assert_eq!(TransportAnswer::decode(bytes), Err(BadAnswer), "{bytes:?}");
        }
        let long = TransportAnswer::Refused("x".repeat(MAX_TEXT + 1)).encode();
        assert_eq!(long.len(), 3 + MAX_TEXT);
    }
}
