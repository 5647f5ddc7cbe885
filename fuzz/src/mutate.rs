//! Mutations without guidance: the same seed gives the same bytes, everywhere and always.

use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

/// Longer inputs only take longer.
pub const MAX_BYTES: usize = 8 * 1024;

/// Values at which parsers err.
const EDGES: &[&[u8]] = &[
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b"/",
    b"?",
    b"%",
    b"%0",
    b"=",
    b",",
    b"0",
    b"-1",
    b"18446744073709551616",
    b"9223372036854775808ms",
    b"\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\xc3\xa9",
    b"\xed\xa0\x80",
    b"(?:",
    b".*",
];

/// A source of inputs that are like those of a corpus.
#[derive(Debug)]
pub struct Mutator<'c> {
    corpus: &'c [Vec<u8>],
    random: SmallRng,
}

impl<'c> Mutator<'c> {
    pub fn new(corpus: &'c [Vec<u8>], seed: u64) -> Self {
        Mutator { corpus, random: SmallRng::seed_from_u64(seed) }
    }

    /// The next input: one of the corpus, changed in a few places.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut bytes = self.corpus.choose(&mut self.random).cloned().unwrap_or_default();
        for _ in 0..1 << self.random.random_range(0..4) {
            self.change(&mut bytes);
        }
        bytes.truncate(MAX_BYTES);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let random = &mut self.random;
        let at = random.random_range(0..=bytes.len());
        let piece = at..(at + random.random_range(0..=16)).min(bytes.len());
        match random.random_range(0..8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            1 if at < bytes.len() => bytes[at] = random.random(),
            2 => drop(bytes.drain(piece)),
            3 => {
                let again = bytes[piece].to_vec();
                bytes.splice(at..at, again);
            }
            4 => bytes.truncate(at),
            5 => {
                // The beginning of this one and the end of another.
                if let Some(other) = self.corpus.choose(random) {
                    let from = random.random_range(0..=other.len());
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[from..]);
                }
            }
            6 if at < bytes.len() => {
                bytes[at] = bytes[at].wrapping_add(random.random_range(0..5)).wrapping_sub(2)
            }
            _ => {
                if let Some(edge) = EDGES.choose(random) {
                    bytes.splice(at..at, edge.iter().copied());
                }
            }
        }
    }
}
