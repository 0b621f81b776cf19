//! The KV dtype: what keys and values are rounded to before they are stored. The number of bytes is the backend's
//! choice: one per fp8 value, its code, where its kernels read that, else those of the compute dtype, which represents
//! fp8 values exactly.
#![warn(missing_docs)]

use float8::F8E4M3;
use serde::{Deserialize, Serialize};

use super::weights::Dtype;
use offshoot_core::named;

/// The dtype of all keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// The compute dtype: that of the weights' elements
    #[default]
    Model,
    /// 8 bits (e4m3, no scale): half the memory on Hopper and of latents, and results that differ by its rounding
    // e4m3fn of "OCP 8-bit Floating Point Specification", revision 1.0: round to nearest even, saturate at 448, keep
    // NaN.
    Fp8,
}

named!(KvDtype { Model = "model", Fp8 = "fp8" });

impl KvDtype {
    /// `x` rounded as a key or value of a model with compute dtype `dtype`.
    pub fn round(self, dtype: Dtype, x: f32) -> f32 {
        match self {
            KvDtype::Model => dtype.round(x),
            KvDtype::Fp8 => e4m3(x),
        }
    }
}

/// `x` rounded to e4m3; exact in every [`Dtype`].
pub fn e4m3(x: f32) -> f32 {
    F8E4M3::from_f32(x).to_f32()
}

/// The code of `x` rounded to e4m3: a sign, four bits of exponent, three of fraction.
pub fn e4m3_code(x: f32) -> u8 {
    F8E4M3::from_f32(x).to_bits()
}

/// The number of a code of e4m3. Without a branch, so that loops over it vectorise.
#[inline(always)]
pub fn of_e4m3(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7f);
    // The exponent is off by the difference of both biases, 120; so are subnormal numbers.
    let number = f32::from_bits(magnitude << 20) * f32::from_bits((120 + 127) << 23);
    let bits = if magnitude == 0x7f { f32::NAN.to_bits() } else { number.to_bits() };
    f32::from_bits(bits | u32::from(code & 0x80) << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The positive numbers of the specification, rising: subnormals in steps of 2^-9, then eight per power of two. The
    /// last code is NaN.
    fn numbers() -> Vec<f32> {
        let number = |code: i32| match (code / 8, code % 8) {
            (0, fraction) => fraction as f32 * 2f32.powi(-9),
            (exponent, fraction) => (8 + fraction) as f32 * 2f32.powi(exponent - 7 - 3),
        };
        (0..0x7f).map(number).collect()
    }

    #[test]
    fn numbers_are_those_of_the_specification_and_exact_in_every_dtype() {
        let numbers = numbers();
        assert_eq!(numbers.last(), Some(&448.0));
        assert!(of_e4m3(0x7f).is_nan() && of_e4m3(0xff).is_nan());
        for (code, &number) in numbers.iter().enumerate() {
            assert_eq!(F8E4M3::from_bits(code as u8).to_f32(), number);
            for (x, sign) in [(number, 0), (-number, 0x80)] {
                assert_eq!(e4m3(x).to_bits(), x.to_bits());
                assert_eq!((e4m3_code(x), of_e4m3(code as u8 | sign).to_bits()), (code as u8 | sign, x.to_bits()));
                assert!(Dtype::ALL.iter().all(|dtype| dtype.round(x).to_bits() == x.to_bits()));
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        for (code, pair) in numbers().windows(2).enumerate() {
            let &[low, high] = pair else { unreachable!("windows of two") };
            let middle = (low + high) / 2.0;
            let even = if code % 2 == 0 { low } else { high };
            for sign in [1.0, -1.0] {
                assert_eq!(e4m3(sign * middle), sign * even);
                assert_eq!(e4m3(sign * middle.next_down()), sign * low);
                assert_eq!(e4m3(sign * middle.next_up()), sign * high);
            }
        }
    }

    #[test]
    fn large_numbers_saturate_and_nan_stays_nan() {
        for large in [448.1, 464.0, 480.0, 1e30, f32::INFINITY] {
            assert_eq!((e4m3(large), e4m3(-large)), (448.0, -448.0));
        }
        assert!(e4m3(f32::NAN).is_nan() && e4m3(-f32::NAN).is_nan());
    }
}
