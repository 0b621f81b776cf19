//! Activations as a quantised matrix multiplies them: in the order of its inputs, rounded as its format says.

use super::panels::QuantPanels;
use crate::backend::quantised::{CodeFormat, Rounding, RoundingKind, largest, round_row};

/// A row of activations.
pub enum Operand {
    /// Numbers, rounded or not.
    Numbers(Vec<f32>),
    /// Codes times one scale, for products of integers.
    Int8 { codes: Vec<i8>, scale: f32 },
}

impl Operand {
    /// `row`: activations in the model's order.
    pub fn of(w: &QuantPanels, row: &[f32]) -> Self {
        let mut numbers: Vec<f32> = match &w.order {
            Some(order) => order.iter().map(|&k| row[k as usize]).collect(),
            None => row.to_vec(),
        };
        match integer_scale(w, &numbers) {
            Some(scale) => {
                let code = |x: &f32| RoundingKind::Int8.round(x / scale) as i8;
                Operand::Int8 { codes: numbers.iter().map(code).collect(), scale }
            }
            None => {
                round_row(&mut numbers, w.format.rounding, w.static_scale);
                Operand::Numbers(numbers)
            }
        }
    }
}

/// The scale of a row whose products with `w` are those of integers; `None` where they are not.
pub fn integer_scale(w: &QuantPanels, row: &[f32]) -> Option<f32> {
    match (w.format.codes, w.format.rounding) {
        (CodeFormat::Int8, Rounding::Dynamic { to: RoundingKind::Int8, group: None }) => {
            Some(RoundingKind::Int8.scale(largest(row)))
        }
        (CodeFormat::Int8, Rounding::Static { to: RoundingKind::Int8 }) => {
            Some(w.static_scale.expect("a format with static activations comes with their scale"))
        }
        _ => None,
    }
}
