//! Random numbers by a seed, and damage to bytes by them.

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

pub struct Chance(TestRng);

impl Chance {
    pub fn of(seed: u64) -> Chance {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Chance(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    /// A number below `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        (self.0.next_u64() % count as u64) as usize
    }

    pub fn of_list<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}

/// What parsers of JSON and HTTP stumble over.
const PIECES: &[&[u8]] = &[
    b"\0",
    b"\xff\xfe",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\\u0000",
    b"{",
    b"[",
    b"\"",
    b"]]}}",
    b"null",
    b"1e999",
    b"-0",
    b"18446744073709551616",
    b"NaN",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b": ",
    b",",
    b"\\",
    b"data: [DONE]\n\n",
];

/// Damages `bytes` in one to three places.
pub fn damage(chance: &mut Chance, bytes: &mut Vec<u8>) {
    for _ in 0..1 + chance.below(3) {
        let at = chance.below(bytes.len().max(1)).min(bytes.len());
        let to = bytes.len().min(at + 1 + chance.below(24));
        match chance.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
            1 => drop(bytes.drain(at..to)),
            2 => drop(bytes.splice(at..at, chance.of_list(PIECES).iter().copied())),
            3 => drop(bytes.splice(at..to, chance.of_list(PIECES).iter().copied())),
            4 => {
                let copy = bytes[at..to].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            _ => bytes.truncate(at),
        }
    }
}
