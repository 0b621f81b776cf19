//! Names that cannot be guessed, from the system's random numbers.

use std::fmt::Write;

/// `N` random bytes as hexadecimal digits.
pub fn random_hex<const N: usize>() -> String {
    bytes::<N>().iter().fold(String::with_capacity(2 * N), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes what is written to it");
        text
    })
}

/// 64 random bits.
pub fn random_seed() -> u64 {
    u64::from_le_bytes(bytes())
}

fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    bytes
}
