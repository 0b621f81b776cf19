//! `kv_append`, `save_pages` and `restore_pages`, of layers with equal and with different heads in one KV memory and
//! one step, and layers that project only queries and read the keys and values of others. Checked by attention: a row
//! that sees only one position gets its value, whatever the query; pages that are saved and restored elsewhere give the
//! same results.

use super::suite::OpSuite;
use crate::attention::solitary;
use crate::case::{ANY_VOCAB, CheckEffort, OpCase, buffer, numbers, rounded, rows_at};
use crate::setting::hints;
use offshoot_backend::{ActivationDtype, Backend, Dtype, HeadLayout, KvDtype, KvShape, Scoring, StepBatch};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_kv::KvSlot;

/// Heads of the layers, one plan for each distinct one: as Gemma 4 has them, and with one key head and a width for
/// which no device has a fast kernel.
const MODELS: [[HeadLayout; 3]; 2] = [
    [HeadLayout::new(4, 2, 256), HeadLayout::new(4, 1, 512), HeadLayout::new(4, 2, 256)],
    [HeadLayout::new(16, 1, 64), HeadLayout::new(2, 2, 48), HeadLayout::new(6, 3, 128)],
];

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let is_quick = suite.effort == CheckEffort::Quick;
    let dims: &[usize] = if is_quick { &[32] } else { &[16, 32, 64, 80, 96, 128, 256, 512] };
    let equal = dims.iter().map(|&head_dim| {
        let (group, kv_heads) = (dice.pick(&[1, 2, 4]), dice.pick(&[1, 3]));
        [HeadLayout::new(group * kv_heads, kv_heads, head_dim); 3]
    });
    let mut models: Vec<_> = equal.map(|layers| ("kv pages", layers)).collect();
    models.extend(MODELS[..if is_quick { 1 } else { 2 }].iter().map(|&layers| ("mixed heads", layers)));
    for (op, layers) in models {
        let (dtype, rows) = (suite.dtype, dice.pick(&[1, 2, 9, 40]));
        let qkv: Vec<Vec<f32>> = layers.iter().map(|heads| numbers(dice, dtype, rows * heads.qkv_width())).collect();
        for kv in [KvDtype::Model, KvDtype::Fp8] {
            suite.hold(op, &PagesCase { dtype, kv, layers, rows, qkv: qkv.clone() })?;
        }
    }
    Ok(())
}

/// Every row is at position 0, in the first slot of its own page.
struct PagesCase {
    dtype: Dtype,
    kv: KvDtype,
    layers: [HeadLayout; 3],
    rows: usize,
    /// Queries, keys and values of each layer.
    qkv: Vec<Vec<f32>>,
}

impl PagesCase {
    /// Plans in the order of the layers, each with its own heads.
    fn batch<B: Backend>(&self, backend: &B, pages: &[PageId]) -> StepBatch {
        let plan =
            |&heads: &HeadLayout| solitary(pages, &hints(backend, heads, self.dtype, None), backend.page_tokens());
        let slots = pages.iter().map(|&page| KvSlot { page, slot: 0 }).collect();
        StepBatch { slots: vec![slots], plans: self.layers.iter().map(plan).collect(), ..rows_at(&vec![0; self.rows]) }
    }

    /// The queries of layer `layer`, without keys and values.
    fn queries(&self, layer: usize) -> Vec<f32> {
        let heads = self.layers[layer];
        let rows = self.qkv[layer].chunks_exact(heads.qkv_width());
        rows.flat_map(|row| &row[..heads.q_width()]).copied().collect()
    }

    /// The results of all layers, one after the other; those of layers that project only queries behind them.
    fn attend<B: Backend>(&self, backend: &mut B, kv: &B::Kv, pages: &[PageId]) -> Result<Vec<f32>> {
        let holds = ActivationDtype::Operands(self.dtype);
        let mut step = backend.step(&self.layers, self.dtype, ANY_VOCAB)?;
        let batch = self.batch(backend, pages);
        let shape = backend.load(&mut step, batch)?;
        let mut results = Vec::new();
        for has_keys in [true, false] {
            for (layer, heads) in self.layers.into_iter().enumerate() {
                let queries = self.queries(layer);
                let (width, values) = match has_keys {
                    true => (heads.qkv_width(), &self.qkv[layer]),
                    false => (heads.q_width(), &queries),
                };
                let qkv = buffer(backend, holds, shape.rows, width, values)?;
                let mut out = buffer(backend, holds, shape.rows, heads.q_width(), &[])?;
                backend.run_once(&mut step, shape, |backend, step| {
                    backend.tree_attention(&mut out, &qkv, kv, LayerIx::new(layer), step, layer, Scoring::scaled(1.0));
                    Ok(())
                })?;
                backend.collect(&mut step)?;
                results.extend(backend.read(&out, self.rows)?);
            }
        }
        Ok(results)
    }
}

impl OpCase for PagesCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        backend.set_kv_dtype(self.kv);
        let written: Vec<PageId> = (0..self.rows).rev().map(PageId::new).collect();
        let others: Vec<PageId> = (self.rows..2 * self.rows).map(PageId::new).collect();
        let shape = KvShape::one_group(self.layers.to_vec(), self.dtype, 2 * self.rows);
        let mut kv = backend.kv(&shape)?;
        let holds = ActivationDtype::Operands(self.dtype);
        let mut step = backend.step(&self.layers, self.dtype, ANY_VOCAB)?;
        let batch = self.batch(backend, &written);
        let shape = backend.load(&mut step, batch)?;
        for (layer, heads) in self.layers.into_iter().enumerate() {
            let qkv = buffer(backend, holds, shape.rows, heads.qkv_width(), &self.qkv[layer])?;
            backend.run_once(&mut step, shape, |backend, step| {
                backend.kv_append(&mut kv, LayerIx::new(layer), &qkv, step);
                Ok(())
            })?;
            backend.collect(&mut step)?;
        }
        let mut results = self.attend(backend, &kv, &written)?;
        let saved = backend.save_pages(&kv, &written)?;
        backend.restore_pages(&mut kv, &saved, &others)?;
        results.extend(self.attend(backend, &kv, &others)?);
        backend.set_kv_dtype(KvDtype::Model);
        Ok(results)
    }

    /// The softmax of one score is 1; a product and a quotient by it may be rounded.
    fn tolerance(&self, _: usize, y: f64) -> f64 {
        rounded(self.dtype, y)
    }

    fn name(&self) -> String {
        let [a, b, c] = self.layers;
        format!("{} rows, layers of {a}, {b} and {c}, kv dtype {}", self.rows, self.kv)
    }
}
