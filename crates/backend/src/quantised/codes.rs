//! The codes of quantised weights, one to a byte, and the numbers they stand for.

use float8::F8E4M3;
use serde::{Deserialize, Serialize};

use offshoot_core::named;

/// What a code is. Sources: e4m3fn and e2m1 of "OCP 8-bit Floating Point Specification" (revision 1.0) and "OCP
/// Microscaling Formats" (version 1.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodeFormat {
    /// e4m3: up to 448, no infinity.
    Fp8,
    /// -128 to 127.
    Int8,
    /// 0 to 15, from which the zero point is subtracted; -8 to 7 (the code minus 8) without zero points.
    Int4,
    /// e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
    Fp4,
}

named!(CodeFormat { Fp8 = "fp8", Int8 = "int8", Int4 = "int4", Fp4 = "mxfp4" });

/// The positive numbers of e2m1.
pub(super) const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The number of a 4-bit code of e2m1.
pub fn e2m1(code: u8) -> f32 {
    let size = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// The number of an e4m3 code.
pub fn e4m3_value(code: u8) -> f32 {
    F8E4M3::from_bits(code).to_f32()
}

/// The e4m3 code of `x`, rounded to nearest even, at most 448.
pub fn e4m3_code(x: f32) -> u8 {
    F8E4M3::from_f32(x).to_bits()
}

impl CodeFormat {
    pub const fn bits(self) -> usize {
        match self {
            CodeFormat::Fp8 | CodeFormat::Int8 => 8,
            CodeFormat::Int4 | CodeFormat::Fp4 => 4,
        }
    }

    /// The number of `code`, from which `zero` is subtracted where the format has zero points.
    pub fn number(self, code: u8, zero: Option<u8>) -> f32 {
        match self {
            CodeFormat::Fp8 => e4m3_value(code),
            CodeFormat::Int8 => f32::from(code.cast_signed()),
            CodeFormat::Int4 => f32::from(code) - f32::from(zero.unwrap_or(8)),
            CodeFormat::Fp4 => e2m1(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_for_the_numbers_of_their_specifications() {
        assert_eq!([0x00, 0x38, 0xb8, 0x7e, 0x01].map(e4m3_value), [0.0, 1.0, -1.0, 448.0, 1.0 / 512.0]);
        assert!(e4m3_value(0x7f).is_nan() && e4m3_value(0xff).is_nan());
        assert_eq!([0.0, 1.0, -1.0, 1000.0].map(e4m3_code), [0x00, 0x38, 0xb8, 0x7e]);
        assert_eq!([0, 1, 7, 9, 15].map(e2m1), [0.0, 0.5, 6.0, -0.5, -6.0]);
        assert_eq!(CodeFormat::Int8.number(0x80, None), -128.0);
        assert_eq!([CodeFormat::Int4.number(0, None), CodeFormat::Int4.number(15, Some(3))], [-8.0, 12.0]);
    }
}
