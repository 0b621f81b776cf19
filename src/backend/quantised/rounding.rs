//! Rounding of activations before they are multiplied by quantised weights: to int8 or e4m3, by a scale that follows from
//! the row (dynamic) or comes with the weights (static).

use serde::{Deserialize, Serialize};

use super::codes::{e4m3_code, e4m3_value};

/// What activations are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// Not rounded: weight-only arithmetic.
    Exact,
    /// By a scale for each row, or for each `group` inputs of a row.
    Dynamic { to: RoundingKind, group: Option<u32> },
    /// By one scale that comes with the weights.
    Static { to: RoundingKind },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoundingKind {
    Fp8,
    Int8,
}

impl RoundingKind {
    /// The largest number.
    pub fn largest(self) -> f32 {
        match self {
            RoundingKind::Fp8 => 448.0,
            RoundingKind::Int8 => 127.0,
        }
    }

    /// The nearest number of this kind, ties to even; numbers beyond the largest become it.
    pub fn round(self, x: f32) -> f32 {
        match self {
            RoundingKind::Fp8 => e4m3_value(e4m3_code(x.clamp(-448.0, 448.0))),
            RoundingKind::Int8 => x.round_ties_even().clamp(-128.0, 127.0),
        }
    }

    /// The scale of inputs whose largest absolute value is `largest`; 1 for zeros.
    pub fn scale(self, largest: f32) -> f32 {
        if largest > 0.0 { largest / self.largest() } else { 1.0 }
    }
}

/// The largest absolute value; NaN is passed over.
pub fn largest(row: &[f32]) -> f32 {
    row.iter().fold(0.0, |most: f32, x| most.max(x.abs()))
}

/// Rounds a row as `rounding` says: each number becomes `scale * round(x / scale)`. `static_scale`: that of
/// `Rounding::Static`.
pub fn round_row(row: &mut [f32], rounding: Rounding, static_scale: Option<f32>) {
    let apply = |part: &mut [f32], to: RoundingKind, scale: f32| {
        part.iter_mut().for_each(|x| *x = to.round(*x / scale) * scale);
    };
    match rounding {
        Rounding::Exact => {}
        Rounding::Dynamic { to, group } => {
            let group = group.map_or(row.len(), |group| group as usize).max(1);
            row.chunks_mut(group).for_each(|part| apply(part, to, to.scale(largest(part))));
        }
        Rounding::Static { to } => {
            let scale = static_scale.expect("a format with static activations comes with their scale");
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
        round_row(&mut row, Rounding::Dynamic { to: RoundingKind::Int8, group: None }, None);
        assert_eq!(row, [127.0, -63.0, 0.0, 0.0]);
        let mut row = [127.0, -63.4, 0.4, 0.0];
        round_row(&mut row, Rounding::Dynamic { to: RoundingKind::Int8, group: Some(2) }, None);
        assert_eq!(row[2], 0.4);
        let mut row = [500.0, 17.0, -3.3];
        round_row(&mut row, Rounding::Static { to: RoundingKind::Fp8 }, Some(1.0));
        assert_eq!(row, [448.0, 16.0, -3.25]);
        let mut row = [0.0; 3];
        round_row(&mut row, Rounding::Dynamic { to: RoundingKind::Fp8, group: None }, None);
        assert_eq!(row, [0.0; 3]);
    }
}
