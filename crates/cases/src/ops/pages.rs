//! `kv_append`, `save_pages` and `restore_pages`, checked by attention: a row that sees only one position gets its
//! value, whatever the query; pages that are saved and restored elsewhere give the same results.

use std::fmt;

use super::OpSuite;
use crate::CheckEffort;
use crate::attention::solitary;
use crate::case::{ANY_VOCAB, OpCase, buffer, numbers, rounded, rows_at};
use crate::setting::hints;
use offshoot_backend::{ActivationDtype, Backend, Dtype, HeadLayout, KvDtype, KvShape, Scoring, StepBatch};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_kv::KvSlot;

/// Layers of the memory; only the last one is written.
const LAYERS: usize = 3;
const LAYER: LayerIx = LayerIx(2);

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let dims: &[usize] = if suite.effort == CheckEffort::Quick { &[32] } else { &[16, 32, 64, 80, 96, 128, 256, 512] };
    for &head_dim in dims {
        let group = dice.pick(&[1, 2, 4]);
        let kv_heads = dice.pick(&[1, 3]);
        let heads = HeadLayout { q_heads: group * kv_heads, kv_heads, head_dim };
        let rows = dice.pick(&[1, 2, 9, 40]);
        let qkv = numbers(dice, dtype, rows * heads.qkv_width());
        for (moved, kv) in
            [(false, KvDtype::Model), (true, KvDtype::Model), (false, KvDtype::Fp8), (true, KvDtype::Fp8)]
        {
            let op = if moved { "restore_pages" } else { "kv_append" };
            suite.hold(op, &KvAppendCase { dtype, kv, heads, rows, qkv: qkv.clone(), moved })?;
        }
    }
    Ok(())
}

/// A case with every row at position 0, in the first slot of its own page.
struct KvAppendCase {
    dtype: Dtype,
    kv: KvDtype,
    heads: HeadLayout,
    rows: usize,
    qkv: Vec<f32>,
    /// Whether the pages are saved and restored into others before they are read.
    moved: bool,
}

impl KvAppendCase {
    /// The pages written, and those read.
    fn pages(&self) -> [Vec<PageId>; 2] {
        let written: Vec<PageId> = (0..self.rows).rev().map(PageId::new).collect();
        let read = match self.moved {
            true => (self.rows..2 * self.rows).map(PageId::new).collect(),
            false => written.clone(),
        };
        [written, read]
    }

    fn batch<B: Backend>(&self, backend: &B, pages: &[PageId]) -> StepBatch {
        let plan = solitary(pages, &hints(backend, self.heads, self.dtype, None), backend.page_tokens());
        let slots = pages.iter().map(|&page| KvSlot { page, slot: 0 }).collect();
        StepBatch { slots: vec![slots], plans: vec![plan], ..rows_at(&vec![0; self.rows]) }
    }
}

impl OpCase for KvAppendCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        backend.set_kv_dtype(self.kv);
        let [written, read] = self.pages();
        let shape = KvShape::uniform(LAYERS, self.heads, self.dtype, 2 * self.rows);
        let mut kv = backend.kv(&shape)?;
        let holds = ActivationDtype::Operands(self.dtype);

        let mut step = backend.step(&[self.heads], self.dtype, ANY_VOCAB)?;
        let shape = backend.load(&mut step, self.batch(backend, &written))?;
        let qkv = buffer(backend, holds, shape.rows, self.heads.qkv_width(), &self.qkv)?;
        backend.run(&mut step, shape, |backend, step| {
            backend.kv_append(&mut kv, LAYER, &qkv, step);
            Ok(())
        })?;
        backend.collect(&mut step)?;
        if self.moved {
            let saved = backend.save_pages(&kv, &written)?;
            backend.restore_pages(&mut kv, &saved, &read)?;
        }

        let mut step = backend.step(&[self.heads], self.dtype, ANY_VOCAB)?;
        let shape = backend.load(&mut step, self.batch(backend, &read))?;
        let mut out = buffer(backend, holds, shape.rows, self.heads.q_width(), &[])?;
        backend.run(&mut step, shape, |backend, step| {
            backend.tree_attention(&mut out, &qkv, &kv, LAYER, step, 0, Scoring::scaled(1.0));
            Ok(())
        })?;
        backend.collect(&mut step)?;
        backend.set_kv_dtype(KvDtype::Model);
        backend.read(&out, self.rows)
    }

    /// The softmax of one score is 1; a product and a quotient by it may be rounded.
    fn tolerance(&self, _: usize, y: f64) -> f64 {
        rounded(self.dtype, y)
    }
}

impl fmt::Display for KvAppendCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeadLayout { q_heads, kv_heads, head_dim } = self.heads;
        write!(f, "{} rows, {q_heads} / {kv_heads} x {head_dim}, --kv-dtype {}", self.rows, self.kv)
    }
}
