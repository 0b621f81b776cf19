//! The definition of a linear layer: every output is one chain of f32 multiply-adds over the inputs in rising order.
//! With bf16 weights the input is rounded to bf16 (to nearest even) first, as the bf16 dot product of the fast path
//! needs it.

use rayon::prelude::*;

use super::pack::{PANEL, element};
use super::{Into, Matrix};
use crate::backend::cpu::{Buffer, Isa};

pub fn linear(out: &mut Buffer, x: &Buffer, w: &Matrix, bias: Option<&[f32]>, into: Into) {
    if w.rows == 0 {
        return;
    }
    let operand = Isa::Portable.linear_operand(w.dtype());
    out.data.par_chunks_exact_mut(w.rows).enumerate().for_each(|(r, out)| {
        let x: Vec<f32> = x.row(r).iter().map(|&v| operand.round(v)).collect();
        for (p, out) in out.chunks_mut(PANEL).enumerate() {
            let sums = panel_dot(w, p, &x);
            for (lane, out) in out.iter_mut().enumerate() {
                let y = sums[lane] + bias.map_or(0.0, |bias| bias[p * PANEL + lane]);
                match into {
                    Into::Replace => *out = y,
                    Into::Add => *out += y,
                }
            }
        }
    });
}

fn panel_dot(w: &Matrix, p: usize, x: &[f32]) -> [f32; PANEL] {
    let panel = w.panel(p);
    let mut sums = [0.0; PANEL];
    for (k, x) in x.iter().enumerate() {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += x * element(panel, w.dtype(), k, lane);
        }
    }
    sums
}
