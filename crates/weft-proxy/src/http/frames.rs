//! Where HTTP/2's frames begin and end in a stream of bytes, without decoding them.

/// A frame's first nine bytes (RFC 9113, 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;

/// Of SETTINGS and PING.
pub(crate) const ACK: u8 = 0x1;

/// Of DATA and HEADERS.
pub(crate) const END_STREAM: u8 = 0x1;
/// Of HEADERS and CONTINUATION.
pub(crate) const END_HEADERS: u8 = 0x4;

const HEAD: usize = 9;

/// What a client sends before its first frame.
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// What comes next in a stream of frames.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'b> {
    Head(FrameHead),
    /// A part of this frame's payload, not empty.
    Payload(FrameHead, &'b [u8]),
}

/// A place in a stream of frames.
#[derive(Debug)]
pub(crate) struct Frames {
    head: [u8; HEAD],
    /// So many bytes of the head have come.
    got: usize,
    /// So many bytes of the payload are still to come, or of the preface.
    rest: usize,
    /// The last frame's head.
    current: Option<FrameHead>,
}

impl Frames {
    /// What a client sends.
    pub(crate) fn of_client() -> Self {
        Frames { rest: PREFACE, ..Frames::of_server() }
    }

    /// What a server sends.
    pub(crate) fn of_server() -> Self {
        Frames { head: [0; HEAD], got: 0, rest: 0, current: None }
    }

    /// Goes through `bytes` and tells of each frame as soon as its head is whole.
    pub(crate) fn pass(&mut self, bytes: &[u8], mut each: impl FnMut(FrameHead)) {
        self.pieces(bytes, |piece| {
            if let Piece::Head(head) = piece {
                each(head);
            }
        });
    }

    /// The same, with the payload as it comes.
    pub(crate) fn pieces<'b>(&mut self, mut bytes: &'b [u8], mut each: impl FnMut(Piece<'b>)) {
        while !bytes.is_empty() {
            let passed = self.rest.min(bytes.len());
            if let Some(head) = self.current.filter(|_| passed > 0) {
                each(Piece::Payload(head, &bytes[..passed]));
            }
            self.rest -= passed;
            bytes = &bytes[passed..];
            let taken = (HEAD - self.got).min(bytes.len());
            self.head[self.got..self.got + taken].copy_from_slice(&bytes[..taken]);
            self.got += taken;
            bytes = &bytes[taken..];
            if self.got == HEAD {
                let head = parse(self.head);
                (self.got, self.rest, self.current) = (0, head.length, Some(head));
                each(Piece::Head(head));
            }
        }
    }

    /// Between two frames.
    pub(crate) fn at_boundary(&self) -> bool {
        self.got == 0 && self.rest == 0
    }

    /// In the middle of something that cannot be acted upon before its end: anything but the payload of DATA, or a header
    /// block whose last frame has not come.
    pub(crate) fn is_unfinished(&self) -> bool {
        let Some(head) = self.current else { return self.got > 0 || self.rest > 0 };
        let in_block = matches!(head.kind, HEADERS | CONTINUATION) && head.flags & END_HEADERS == 0;
        in_block || self.got > 0 || (self.rest > 0 && head.kind != DATA)
    }
}

fn parse(head: [u8; HEAD]) -> FrameHead {
    let [a, b, c, kind, flags, s0, s1, s2, s3] = head;
    FrameHead {
        length: usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c),
        kind,
        flags,
        stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]),
    }
}

/// PING (RFC 9113, 6.7).
pub(crate) const fn ping(payload: [u8; 8]) -> [u8; HEAD + 8] {
    let mut frame = [0; HEAD + 8];
    frame[2] = 8;
    frame[3] = PING;
    let mut at = 0;
    while at < payload.len() {
        frame[HEAD + at] = payload[at];
        at += 1;
    }
    frame
}

/// An error code (RFC 9113, 7).
pub(crate) const PROTOCOL_ERROR: u32 = 1;

/// GOAWAY with an error code (RFC 9113, 6.8).
pub(crate) const fn goaway(last_stream: u32, code: u32) -> [u8; HEAD + 8] {
    let ([a, b, c, d], [e, f, g, h]) = (last_stream.to_be_bytes(), code.to_be_bytes());
    [0, 0, 8, GOAWAY, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0, (payload.len() >> 8) as u8, payload.len() as u8, kind, flags];
        out.extend(stream.to_be_bytes());
        out.extend(payload);
        out
    }

    proptest! {
        /// However the bytes are cut, the same frames are seen.
        #[test]
        fn cuts_do_not_matter(
            frames in prop::collection::vec((any::<u8>(), any::<u8>(), 0..=0x7fff_ffff_u32, 0..300_usize), 1..8),
            pieces in prop::collection::vec(1..40_usize, 1..80),
        ) {
            let mut bytes = vec![b'P'; PREFACE];
            for (kind, flags, stream, length) in &frames {
                bytes.extend(frame(*kind, *flags, *stream, &vec![0; *length]));
            }
            let (mut seen, mut place) = (Vec::new(), Frames::of_client());
            let (mut rest, mut pieces) = (bytes.as_slice(), pieces.iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((*pieces.next().unwrap()).min(rest.len()));
                place.pass(piece, |head| seen.push((head.kind, head.flags, head.stream, head.length)));
                rest = after;
            }
            prop_assert_eq!(seen, frames);
            prop_assert!(place.at_boundary());
        }
    }

    #[test]
    fn a_block_is_unfinished_until_its_last_frame_and_data_is_not() {
        let mut place = Frames::of_client();
        assert!(place.is_unfinished(), "the preface");
        place.pass(&[b'P'; PREFACE], |_| {});
        assert!(!place.is_unfinished());
        place.pass(&frame(HEADERS, 0, 1, b"x"), |_| {});
        assert!(place.is_unfinished() && place.at_boundary());
        place.pass(&frame(CONTINUATION, END_HEADERS, 1, b"x"), |_| {});
        assert!(!place.is_unfinished());
        place.pass(&frame(DATA, 0, 1, b"xyz")[..11], |_| {});
        assert!(!place.is_unfinished() && !place.at_boundary());
        place.pass(b"z", |_| {});
        place.pass(&frame(6, 0, 0, b"12345678")[..11], |_| {});
        assert!(place.is_unfinished());
    }
}
