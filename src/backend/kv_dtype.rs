//! What keys and values are rounded to before they are stored. In how many bytes a backend keeps the rounded numbers is
//! its own affair: in one where its kernels read that, else in those of the compute dtype, which holds them too.

use std::fmt;

use float8::F8E4M3;
use serde::{Deserialize, Serialize};

use super::{Backend, Dtype, HeadLayout};

/// Of all keys and values of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// The compute dtype: that of the weights' elements
    #[default]
    Model,
    /// 8 bits (e4m3, no scale): half the memory on Hopper, and results that differ by its rounding
    // e4m3fn of "OCP 8-bit Floating Point Specification", revision 1.0: to nearest even, what is larger than 448
    // becomes 448, what is not a number stays so.
    Fp8,
}

impl KvDtype {
    /// `x` as it is kept in a model of compute dtype `dtype`.
    pub fn round(self, dtype: Dtype, x: f32) -> f32 {
        match self {
            KvDtype::Model => dtype.round(x),
            KvDtype::Fp8 => e4m3(x),
        }
    }

    /// Has `backend` keep the keys and values of a model so, whose layers have these heads and this compute dtype, and
    /// says where that saves nothing.
    pub fn set_on<B: Backend>(self, backend: &mut B, heads: impl Iterator<Item = HeadLayout>, dtype: Dtype) {
        backend.set_kv_dtype(self);
        let bytes = heads.map(|heads| backend.kv_element_bytes(heads, dtype)).max().unwrap_or(dtype.bytes());
        match self {
            KvDtype::Model => {}
            KvDtype::Fp8 if bytes == 1 => log::info!("keys and values are fp8 (e4m3)"),
            KvDtype::Fp8 => log::warn!(
                "keys and values are rounded to fp8 (e4m3), but take {bytes} bytes each on {}: only Hopper reads fp8 from memory, in \
                 f16 and bf16 models with heads of 64 or 128",
                backend.describe()
            ),
        }
    }
}

/// As on the command line.
impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            KvDtype::Model => "model",
            KvDtype::Fp8 => "fp8",
        })
    }
}

/// `x` rounded to e4m3; exact in every [`Dtype`].
pub fn e4m3(x: f32) -> f32 {
    F8E4M3::from_f32(x).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the specification, rising: subnormals in steps of 2^-9, then eight to each power of two; the last
    /// code is no number.
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
        for (code, &number) in numbers.iter().enumerate() {
            assert_eq!(F8E4M3::from_bits(code as u8).to_f32(), number);
            for x in [number, -number] {
                assert_eq!(e4m3(x).to_bits(), x.to_bits());
                assert!(Dtype::ALL.iter().all(|dtype| dtype.round(x).to_bits() == x.to_bits()));
            }
        }
    }

    #[test]
    fn what_lies_between_two_goes_to_the_nearer_and_from_the_middle_to_the_even() {
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
    fn what_is_too_large_becomes_the_largest_and_what_is_no_number_stays_none() {
        for large in [448.1, 464.0, 480.0, 1e30, f32::INFINITY] {
            assert_eq!((e4m3(large), e4m3(-large)), (448.0, -448.0));
        }
        assert!(e4m3(f32::NAN).is_nan() && e4m3(-f32::NAN).is_nan());
    }
}
