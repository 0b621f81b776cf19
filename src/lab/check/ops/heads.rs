//! `head_norm` and `rope`: in place on the query and key heads of `qkv`.

use std::fmt;

use super::OpSuite;
use crate::backend::{ActivationDtype, Backend, Dtype, HeadKind, HeadLayout, RopeTable};
use crate::error::Result;
use crate::lab::check::case::{ANY_VOCAB, F32, OpCase, buffer, numbers, rounded, rows_at, vector};
use crate::lab::check::device::CheckEffort;
use crate::lab::check::dice::Dice;

const EPS: f32 = 1e-6;
/// Positions of the rope tables.
const POSITIONS: usize = 200;

const LAYOUTS: [HeadLayout; 8] = [
    HeadLayout { q_heads: 1, kv_heads: 1, head_dim: 16 },
    HeadLayout { q_heads: 4, kv_heads: 2, head_dim: 32 },
    HeadLayout { q_heads: 3, kv_heads: 3, head_dim: 64 },
    HeadLayout { q_heads: 4, kv_heads: 1, head_dim: 80 },
    HeadLayout { q_heads: 2, kv_heads: 2, head_dim: 96 },
    HeadLayout { q_heads: 8, kv_heads: 1, head_dim: 128 },
    HeadLayout { q_heads: 32, kv_heads: 8, head_dim: 128 },
    HeadLayout { q_heads: 2, kv_heads: 1, head_dim: 256 },
];

pub fn check<B: Backend>(suite: &mut OpSuite<'_, B>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let layouts = if suite.effort == CheckEffort::Quick { &LAYOUTS[1..2] } else { &LAYOUTS[..] };
    for &heads in layouts {
        let rows = dice.pick(&[1, 2, 7, 33]);
        let qkv = numbers(dice, dtype, rows * heads.qkv_width());
        for kind in [HeadKind::Query, HeadKind::Key, HeadKind::Value] {
            let (_, count) = kind.place(heads);
            for normed in [1, count] {
                let weight = dice.numbers(normed * heads.head_dim);
                suite.hold("head_norm", &HeadNormCase { dtype, heads, kind, qkv: qkv.clone(), weight })?;
            }
        }
        let whole = heads.head_dim;
        for rotary in [whole, whole / 2, (whole * 2 / 5).next_multiple_of(2)] {
            let (cos, sin) = (dice.numbers(POSITIONS * rotary / 2), dice.numbers(POSITIONS * rotary / 2));
            let positions = (0..rows).map(|_| dice.within(0, POSITIONS as u32 - 1)).collect();
            let table = RopeTable { rotary, keys: dice.pick(&[true, false]), cos, sin };
            suite.hold("rope", &RopeCase { dtype, heads, positions, qkv: qkv.clone(), table })?;
        }
    }
    Ok(())
}

/// The row, head and index in the head of element `at` of `qkv`.
fn place(heads: HeadLayout, at: usize) -> (usize, usize, usize) {
    let (row, i) = (at / heads.qkv_width(), at % heads.qkv_width());
    (row, i / heads.head_dim, i % heads.head_dim)
}

struct HeadNormCase {
    dtype: Dtype,
    heads: HeadLayout,
    kind: HeadKind,
    qkv: Vec<f32>,
    weight: Vec<f32>,
}

impl OpCase for HeadNormCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let width = self.heads.qkv_width();
        let rows = self.qkv.len() / width;
        let mut qkv = buffer(backend, ActivationDtype::Operands(self.dtype), rows, width, &self.qkv)?;
        let weight = vector(backend, &self.weight)?;
        backend.head_norm(&mut qkv, self.heads, self.kind, &weight, EPS);
        backend.read(&qkv, rows)
    }

    /// Like `rms_norm`; heads of the other kinds do not change.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let (_, head, _) = place(self.heads, at);
        let (first, count) = self.kind.place(self.heads);
        let normed = (first..first + count).contains(&head);
        let n = self.weight.len() as f64;
        if normed { rounded(self.dtype, y) + y.abs() * (n + 12.0) * F32 } else { 0.0 }
    }
}

impl fmt::Display for HeadNormCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.qkv.len() / self.heads.qkv_width();
        write!(f, "{rows} rows, {:?} heads of {}", self.kind, self.heads)
    }
}

struct RopeCase {
    dtype: Dtype,
    heads: HeadLayout,
    positions: Vec<u32>,
    qkv: Vec<f32>,
    table: RopeTable,
}

impl OpCase for RopeCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let table = backend.rope_table(&self.table)?;
        let mut step = backend.step(&[self.heads], self.dtype, ANY_VOCAB)?;
        let shape = backend.load(&mut step, rows_at(&self.positions))?;
        let width = self.heads.qkv_width();
        let mut qkv = buffer(backend, ActivationDtype::Operands(self.dtype), shape.rows, width, &self.qkv)?;
        backend.run(&mut step, shape, |backend, step| {
            backend.rope(&mut qkv, self.heads, &table, step);
            Ok(())
        })?;
        backend.collect(&mut step)?;
        backend.read(&qkv, self.positions.len())
    }

    /// Two products and their sum, each rounded once or not at all, on both sides; elements that are not rotated do not
    /// change.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let (row, head, i) = place(self.heads, at);
        if head >= self.heads.q_heads + self.heads.kv_heads || i >= self.table.rotary {
            return 0.0;
        }
        let half = self.table.rotary / 2;
        let angle = self.positions[row] as usize * half + i % half;
        let (cos, sin) = (f64::from(self.table.cos[angle]), f64::from(self.table.sin[angle]));
        let (x, other) = (self.qkv[at], self.qkv[if i < half { at + half } else { at - half }]);
        let products = (f64::from(x) * cos).abs() + (f64::from(other) * sin).abs();
        rounded(self.dtype, y) + 6.0 * F32 * products
    }
}

impl fmt::Display for RopeCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, rotary) = (self.positions.len(), self.table.rotary);
        write!(f, "{rows} rows, {rotary} rotated of {}", self.heads)
    }
}
