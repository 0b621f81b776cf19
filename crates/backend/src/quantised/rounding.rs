//! Rounding of activations before they are multiplied by quantised weights: to int8 or e4m3, by a scale that follows
//! from the row (dynamic) or comes with the weights (static).

use std::fmt;

use serde::{Deserialize, Serialize};

/// What activations are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// Not rounded: weight-only arithmetic.
    Exact,
    /// Rounded by a scale for each row, or for each `group` inputs of a row.
    Dynamic { to: RoundingKind, group: Option<u32> },
    /// Rounded by one scale that comes with the weights.
    Static { to: RoundingKind },
}

impl Rounding {
    /// What they are rounded to.
    pub fn to(self) -> Option<RoundingKind> {
        match self {
            Rounding::Exact => None,
            Rounding::Dynamic { to, .. } | Rounding::Static { to } => Some(to),
        }
    }
}

/// `not rounded`, `rounded to int8 by row`: what happens to activations.
impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rounding::Exact => f.write_str("not rounded"),
            Rounding::Dynamic { to, group: None } => write!(f, "rounded to {to} by row"),
            Rounding::Dynamic { to, group: Some(group) } => write!(f, "rounded to {to} by row and {group} inputs"),
            Rounding::Static { to } => write!(f, "rounded to {to} by stored scales"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoundingKind {
    Fp8,
    Int8,
}

impl fmt::Display for RoundingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RoundingKind::Fp8 => "fp8",
            RoundingKind::Int8 => "int8",
        })
    }
}

impl RoundingKind {
    /// The largest number.
    pub fn largest(self) -> f32 {
        match self {
            RoundingKind::Fp8 => 448.0,
            RoundingKind::Int8 => 127.0,
        }
    }

    /// The nearest number of this kind, ties to even; numbers beyond the largest become it. NaN stays NaN.
    #[inline(always)]
    pub fn round(self, x: f32) -> f32 {
        match self {
            RoundingKind::Fp8 => round_e4m3(x),
            // The sum has no bits below one, and is rounded to even.
            RoundingKind::Int8 => (x.clamp(-127.0, 127.0) + UNITS) - UNITS,
        }
    }

    /// The scale of inputs, which are multiplied by its reciprocal before they are rounded. `largest`: their largest
    /// absolute value. It is 1 where the quotient is not normal, as that of zeros: all their codes are then zero.
    pub fn scale(self, largest: f32) -> f32 {
        let scale = largest / self.largest();
        if scale < f32::MIN_POSITIVE { 1.0 } else { scale }
    }
}

/// What [`RoundingKind::Int8`] rounds to, as an integer. A NaN becomes any code; its scale is NaN. Not a cast of the
/// rounded number: casts saturate, for which loops over them are not vectorised.
#[inline(always)]
pub fn int8_code(x: f32) -> i8 {
    // The lowest bits of the sum count units.
    (x.clamp(-127.0, 127.0) + UNITS).to_bits() as i8
}

/// `scale`, or 1 if it is zero, so that numbers can be divided by it. Zeros have a scale of zero, and
/// so do numbers so small that theirs rounds to zero.
#[inline(always)]
pub fn nonzero(scale: f32) -> f32 {
    if scale == 0.0 { 1.0 } else { scale }
}

/// What comes with weights for the rounding of their activations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActivationScale {
    /// The scale of `Rounding::Static`.
    pub fixed: Option<f32>,
    /// The largest number of a row that `Rounding::Dynamic` takes a scale from; larger ones are rounded to it
    /// (`activation_scale_ub` of fbgemm).
    pub most: Option<f32>,
}

impl ActivationScale {
    /// The scale of inputs whose largest absolute value is `largest`, which may be NaN.
    #[inline(always)]
    pub fn dynamic(self, to: RoundingKind, largest: f32) -> f32 {
        let bounded = match self.most {
            Some(most) if largest > most => most,
            _ => largest,
        };
        to.scale(bounded)
    }
}

/// 1.5 * 2^23: added to a smaller number, it leaves whole numbers.
const UNITS: f32 = 12_582_912.0;

/// e4m3 has three bits after the first one from 2^-6 on, and steps of 2^-9 below. Branch-free, so that loops vectorise.
#[inline(always)]
fn round_e4m3(x: f32) -> f32 {
    let x = x.clamp(-448.0, 448.0);
    let bits = x.to_bits();
    let normal = f32::from_bits(bits.wrapping_add(0x7_ffff + (bits >> 20 & 1)) & 0xfff0_0000);
    let step = UNITS / 512.0;
    let small = (x + step) - step;
    if x.abs() < 1.0 / 64.0 || x.is_nan() { small } else { normal }
}

/// The largest absolute value; NaN if any is. Without the sign, bits rise with the number, and those of a NaN are the
/// largest.
#[inline(always)]
pub fn largest(row: &[f32]) -> f32 {
    f32::from_bits(row.iter().map(|x| x.to_bits() & 0x7fff_ffff).fold(0, u32::max))
}

/// Rounds a row as `rounding` says: each number becomes `scale * round(x * (1 / scale))`.
#[inline(always)]
pub fn round_row(row: &mut [f32], rounding: Rounding, scale: ActivationScale) {
    let apply = |part: &mut [f32], to: RoundingKind, scale: f32| {
        let reciprocal = 1.0 / scale;
        part.iter_mut().for_each(|x| *x = to.round(*x * reciprocal) * scale);
    };
    match rounding {
        Rounding::Exact => {}
        Rounding::Dynamic { to, group } => {
            let group = group.map_or(row.len(), |group| group as usize).max(1);
            row.chunks_mut(group).for_each(|part| apply(part, to, scale.dynamic(to, largest(part))));
        }
        Rounding::Static { to } => {
            let scale = scale.fixed.expect("a format with static activations comes with their scale");
            apply(row, to, scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_rounded_by_their_own_scale() {
        let mut row = [127.0, -63.4, 0.4, 0.0];
        round_row(&mut row, Rounding::Dynamic { to: RoundingKind::Int8, group: None }, ActivationScale::default());
        assert_eq!(row, [127.0, -63.0, 0.0, 0.0]);
        let mut row = [127.0, -63.4, 0.4, 0.0];
        round_row(&mut row, Rounding::Dynamic { to: RoundingKind::Int8, group: Some(2) }, ActivationScale::default());
        assert_eq!(row[2], 0.4);
        let mut row = [500.0, 17.0, -3.3];
        let one = ActivationScale { fixed: Some(1.0), most: None };
        round_row(&mut row, Rounding::Static { to: RoundingKind::Fp8 }, one);
        assert_eq!(row, [448.0, 16.0, -3.25]);
        let mut row = [0.0; 3];
        round_row(&mut row, Rounding::Dynamic { to: RoundingKind::Fp8, group: None }, ActivationScale::default());
        assert_eq!(row, [0.0; 3]);
        let mut row = [2000.0, -112.0, 3.0];
        let bounded = ActivationScale { fixed: None, most: Some(112.0) };
        round_row(&mut row, Rounding::Dynamic { to: RoundingKind::Fp8, group: None }, bounded);
        assert_eq!(row, [112.0, -112.0, 3.0], "what lies beyond the bound becomes it, and its scale serves the others");
        let mut row = [1e-38, 0.0, -1e-44];
        round_row(&mut row, Rounding::Dynamic { to: RoundingKind::Int8, group: None }, ActivationScale::default());
        assert_eq!(row, [0.0; 3], "numbers too small for a scale");
        let mut row = [f32::NAN, 1.0];
        round_row(&mut row, Rounding::Dynamic { to: RoundingKind::Fp8, group: None }, bounded);
        assert!(row[0].is_nan(), "a bound does not hide what is no number");
    }

    #[test]
    fn rounding_without_branches_is_that_of_the_codes() {
        let spread = (0..200_000_u32).map(|i| i.wrapping_mul(2_654_435_761));
        for bits in spread.chain((0..u32::MAX - 7_001).step_by(7_001)) {
            let x = f32::from_bits(bits);
            let (fp8, int8) = (RoundingKind::Fp8.round(x), RoundingKind::Int8.round(x));
            if x.is_nan() {
                assert!(fp8.is_nan() && int8.is_nan());
            } else {
                assert_eq!(f32::from(int8_code(x)), int8, "{x}");
                assert_eq!(fp8, crate::e4m3(x), "{x}");
                assert_eq!(int8, x.round_ties_even().clamp(-127.0, 127.0), "{x}");
            }
        }
        assert!(largest(&[1.0, f32::NAN, 3.0]).is_nan());
        assert_eq!(largest(&[1.0, -3.5, 3.0]), 3.5);
    }
}
