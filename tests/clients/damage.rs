//! Damage to the bytes of requests, by random numbers.

use offshoot_core::dice::Dice;

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
pub fn damage(dice: &mut Dice, bytes: &mut Vec<u8>) {
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(bytes.len().max(1)).min(bytes.len());
        let to = bytes.len().min(at + 1 + dice.below(24));
        match dice.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 => drop(bytes.drain(at..to)),
            2 => drop(bytes.splice(at..at, dice.pick(PIECES).iter().copied())),
            3 => drop(bytes.splice(at..to, dice.pick(PIECES).iter().copied())),
            4 => {
                let copy = bytes[at..to].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            _ => bytes.truncate(at),
        }
    }
}
