//! A server that switches push on for itself. A client must end the connection of one (RFC 9113, 6.5.2); the HTTP/2 library
//! passes over it.

use super::frames::{ACK, Frames, Piece, SETTINGS};

const ENABLE_PUSH: u16 = 2;

/// Looks at the settings that a server sends.
#[derive(Debug)]
pub(super) struct PushWatch {
    frames: Frames,
    /// A setting of which only a part has come.
    setting: [u8; 6],
    got: usize,
}

impl PushWatch {
    pub(super) fn new() -> Self {
        PushWatch { frames: Frames::of_server(), setting: [0; 6], got: 0 }
    }

    /// Is push switched on in what was read?
    pub(super) fn sees(&mut self, bytes: &[u8]) -> bool {
        let PushWatch { frames, setting, got } = self;
        let mut seen = false;
        frames.pieces(bytes, |piece| match piece {
            Piece::Head(_) => *got = 0,
            Piece::Payload(head, bytes) if head.kind == SETTINGS && head.flags & ACK == 0 => {
                for byte in bytes {
                    setting[*got] = *byte;
                    *got += 1;
                    if *got == setting.len() {
                        let [a, b, value @ ..] = *setting;
                        seen |= u16::from_be_bytes([a, b]) == ENABLE_PUSH && u32::from_be_bytes(value) == 1;
                        *got = 0;
                    }
                }
            }
            Piece::Payload(..) => {}
        });
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(flags: u8, settings: &[(u16, u32)]) -> Vec<u8> {
        let mut frame = vec![0, 0, (settings.len() * 6) as u8, SETTINGS, flags, 0, 0, 0, 0];
        for (id, value) in settings {
            frame.extend(id.to_be_bytes());
            frame.extend(value.to_be_bytes());
        }
        frame
    }

    #[test]
    fn push_is_seen_however_the_bytes_are_cut() {
        let on = [settings(0, &[(4, 1), (2, 0), (3, 2)]), settings(0, &[(5, 16_384), (2, 1)])].concat();
        for cut in 1..on.len() {
            let mut watch = PushWatch::new();
            let seen: Vec<bool> = on.chunks(cut).map(|piece| watch.sees(piece)).collect();
            assert_eq!(seen.iter().position(|seen| *seen), Some(seen.len() - 1), "{cut}");
        }
    }

    #[test]
    fn others_are_not_taken_for_it() {
        let off = [settings(0, &[(2, 0), (1, 1), (0x201, 1)]), settings(0, &[]), settings(0, &[(4, 2)])];
        assert!(!PushWatch::new().sees(&off.concat()));
    }
}
