//! Checks tree attention against the dense definition in f64: random forests with every planner, on the numbers that
//! the device stores (`setting`).

use rayon::prelude::*;

use crate::case::{ANY_VOCAB, CheckEffort, buffer, rows_at, run, vector};
use crate::dense::relative_error;
use crate::report::{CaseResult, CheckReport, WorstError};
use crate::setting::{Setting, hints};
use offshoot_backend::{ActivationDtype, Backend, Dtype, KvDtype, KvShape, StepBatch};
use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_fixtures::forests::{ForestShape, GrownForest, context, grow};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::{AttentionPlan, Csr, KvSpan, PlanHints, Planner, WorkItem};

/// Layers of the KV memory, of which the second is used.
pub const LAYERS: usize = 2;
pub const LAYER: LayerIx = LayerIx(1);

/// Compares a device's rows with the definition, within the setting's tolerance. `repeats`: whether repeated runs gave
/// the same bits.
pub fn compared(setting: &Setting, pairs: &[(&[f32], &[f64])], repeats: bool) -> CaseResult {
    let error = relative_error(pairs.iter().copied());
    CaseResult::twice(WorstError { error, tolerance: setting.tolerance() }, repeats)
}

/// A plan of rows that each see only one token: position 0, in the first slot of their own page.
pub fn solitary(pages: &[PageId], hints: &PlanHints, page_tokens: u32) -> AttentionPlan {
    let each = || (0..pages.len() as u32).map(|i| i..i + 1);
    AttentionPlan {
        group: hints.group,
        page_tokens,
        tile: hints.tile,
        window: hints.window,
        member: None,
        joins_beginnings: false,
        items: each().map(|one| WorkItem { rows: one.clone(), spans: one }).collect(),
        spans: each().map(|one| KvSpan { pages: one, first_position: 0, tokens: 1 }).collect(),
        pages: pages.to_vec(),
        row_positions: vec![0; pages.len()],
        merge: Csr { offsets: (0..=pages.len() as u32).collect(), values: (0..pages.len() as u32).collect() },
        growing: Vec::new(),
        flat_kv_tokens: pages.len() as u64,
    }
}

/// Most rows per append, to keep its buffers small.
const APPENDED: usize = 4096;

/// KV memory with keys and values in all `slots`, and NaN in every other slot of their pages; at least `pages` pages.
pub fn filled<B: Backend>(
    backend: &mut B,
    setting: &Setting,
    slots: impl Iterator<Item = KvSlot>,
    pages: usize,
) -> Result<B::Kv> {
    let mut slots: Vec<(u32, u32)> = slots.map(|at| (at.page.0, at.slot)).collect();
    slots.par_sort_unstable();
    slots.dedup();
    let pages = slots.last().map_or(0, |&(page, _)| page as usize + 1).max(pages);
    let shape = KvShape::uniform(LAYERS, setting.heads, setting.dtype, pages);
    let mut kv = backend.kv(&shape)?;
    let mut held: Vec<u32> = slots.iter().map(|&(page, _)| page).collect();
    held.dedup();
    let page_tokens = backend.page_tokens();
    let all = held.iter().flat_map(|&page| (0..page_tokens).map(move |slot| KvSlot { page: PageId(page), slot }));
    let unused: Vec<KvSlot> = all.filter(|at| slots.binary_search(&(at.page.0, at.slot)).is_err()).collect();
    let slots: Vec<KvSlot> = slots.iter().map(|&(page, slot)| KvSlot { page: PageId(page), slot }).collect();
    let mut step = backend.step(&[setting.heads], setting.dtype, ANY_VOCAB)?;
    let mut qkv = backend.buffer(setting.heads.qkv_width(), ActivationDtype::Operands(setting.dtype))?;
    // NaN is written first: storing a number next to it may clear it, as on the CPU.
    for (slots, holes) in
        unused.chunks(APPENDED).map(|slots| (slots, true)).chain(slots.chunks(APPENDED).map(|slots| (slots, false)))
    {
        let batch = StepBatch { slots: vec![slots.to_vec()], ..rows_at(&vec![0; slots.len()]) };
        let shape = backend.load(&mut step, batch)?;
        backend.resize(&mut qkv, shape.rows)?;
        let row = |at: &KvSlot| -> Vec<f32> {
            let queries = std::iter::repeat_n(0.0, setting.heads.q_width());
            let stored = setting.given_kv(*at).map(|x| if holes { f32::NAN } else { x });
            queries.chain(stored).collect()
        };
        let values: Vec<f32> = slots.par_iter().flat_map_iter(row).collect();
        backend.write(&mut qkv, slots.len(), &values)?;
        run(backend, &mut step, shape, |backend, step| backend.kv_append(&mut kv, LAYER, &qkv, step))?;
    }
    Ok(kv)
}

/// Query heads of all rows; their keys and values are zeros that are never stored.
pub fn queries(setting: &Setting, positions: &[u32]) -> Vec<f32> {
    let stored = setting.heads.qkv_width() - setting.heads.q_width();
    let row = |(row, &position): (usize, &u32)| {
        setting.query(row, position as usize).chain(std::iter::repeat_n(0.0, stored)).collect::<Vec<_>>()
    };
    positions.par_iter().enumerate().flat_map_iter(row).collect()
}

/// The result of one plan, `[R, out_width]`, and whether the same step gave the same bits in three runs: a backend may
/// use other code paths for the second and third.
pub fn attend<B: Backend>(
    backend: &mut B,
    setting: &Setting,
    kv: &B::Kv,
    plan: &AttentionPlan,
    queries: &[f32],
) -> Result<(Vec<f32>, bool)> {
    let rows = plan.row_positions.len();
    let batch = || StepBatch { plans: vec![plan.clone()], ..rows_at(&plan.row_positions) };
    let holds = ActivationDtype::Operands(setting.dtype);
    let mut step = backend.step(&[setting.heads], setting.dtype, ANY_VOCAB)?;
    let padded = backend.load(&mut step, batch())?.rows;
    let qkv = buffer(backend, holds, padded, setting.heads.qkv_width(), queries)?;
    let mut out = buffer(backend, holds, padded, setting.heads.out_width(), &[])?;
    let sinks = setting.sinks().map(|sinks| vector(backend, &sinks)).transpose()?;
    let mut results = Vec::new();
    for _ in 0..3 {
        // Detects an op that writes nothing.
        backend.write(&mut out, rows, &vec![f32::NAN; rows * setting.heads.out_width()])?;
        let shape = backend.load(&mut step, batch())?;
        run(backend, &mut step, shape, |backend, step| {
            backend.tree_attention(&mut out, &qkv, kv, LAYER, step, 0, setting.scoring(sinks.as_ref()))
        })?;
        results.push(backend.read(&out, rows)?);
    }
    let first = results.swap_remove(0);
    let same = |other: &Vec<f32>| first.iter().zip(other).all(|(a, b)| a.to_bits() == b.to_bits());
    let repeats = results.iter().all(same);
    Ok((first, repeats))
}

/// A random forest, with its keys and values on the device.
pub struct StoredForest<'a, B: Backend> {
    setting: &'a Setting,
    pub grown: GrownForest,
    /// For each row, the slots of its context.
    pub contexts: Vec<Vec<KvSlot>>,
    pub kv: B::Kv,
    /// Queries of all rows, `[rows, qkv width]`.
    pub queries: Vec<f32>,
}

impl<'a, B: Backend> StoredForest<'a, B> {
    /// The backend must be set to the setting's KV format.
    pub fn new(backend: &mut B, setting: &'a Setting, shape: ForestShape, seed: u64) -> Result<Self> {
        let grown = grow(shape, backend.page_tokens(), seed);
        let contexts: Vec<_> = (0..grown.rows.len()).map(|row| context(&grown.forest, row)).collect();
        let kv = filled(backend, setting, contexts.iter().flatten().copied(), 0)?;
        let queries = queries(setting, &grown.forest.row_positions);
        Ok(Self { setting, grown, contexts, kv, queries })
    }

    /// The results of some rows by the definition, which is slow.
    pub fn dense(&self, rows: &[usize]) -> Vec<Vec<f64>> {
        let (setting, contexts) = (self.setting, &self.contexts);
        rows.par_iter().map(|&row| setting.dense(row, &contexts[row])).collect()
    }

    /// Compares these rows of `out` `[all rows, out width]` with their `exact` results.
    pub fn compare(&self, rows: &[usize], out: &[f32], exact: &[Vec<f64>], repeats: bool) -> CaseResult {
        let width = self.setting.heads.out_width();
        let pairs = rows.iter().zip(exact).map(|(&row, exact)| (&out[row * width..][..width], exact.as_slice()));
        compared(self.setting, &pairs.collect::<Vec<_>>(), repeats)
    }
}

/// Rows of a forest that are checked against the definition, which is slow.
const CHECKED: usize = 24;

/// Every planner on random forests of every shape.
pub fn attention<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let (shapes, seeds): (&[ForestShape], _) = match effort {
        CheckEffort::Quick => (&[ForestShape::MidPageForks], 1),
        CheckEffort::Full => (
            &[
                ForestShape::DeepChain,
                ForestShape::Star,
                ForestShape::OneTokenSegments,
                ForestShape::EmptyLeaves,
                ForestShape::MidPageForks,
                ForestShape::Many(300),
                ForestShape::Ragged,
            ],
            5,
        ),
    };
    let mut number = 0;
    for dtype in Dtype::ALL {
        for seed in 0..seeds {
            for &shape in shapes {
                let setting = Setting::number(number, dtype);
                number += 1;
                forest(backend, &setting, shape, seed, report)?;
            }
        }
        for (i, &shape) in shapes.iter().enumerate() {
            forest(backend, &Setting::fp8(i, dtype), shape, seeds, report)?;
        }
    }
    backend.set_kv_dtype(KvDtype::Model);
    Ok(())
}

fn forest<B: Backend>(
    backend: &mut B,
    setting: &Setting,
    shape: ForestShape,
    seed: u64,
    report: &mut CheckReport,
) -> Result<()> {
    backend.set_kv_dtype(setting.kv);
    let stored = StoredForest::new(backend, setting, shape, seed)?;
    let forest = &stored.grown.forest;
    let stride = stored.contexts.len().div_ceil(CHECKED);
    let first = Dice::new(seed).next() as usize % stride;
    let checked: Vec<usize> = (first..stored.contexts.len()).step_by(stride).collect();
    let exact = stored.dense(&checked);
    for planner in Planner::ALL {
        let plan = planner.plan(forest, &hints(backend, setting.heads, setting.dtype, setting.window));
        plan.check(forest).map_err(|fault| Error::Internal(format!("{planner} plan of {shape:?}: {fault}")))?;
        let (out, repeats) = attend(backend, setting, &stored.kv, &plan, &stored.queries)?;
        let found = stored.compare(&checked, &out, &exact, repeats);
        log::debug!("{shape:?}, seed {seed}, {setting}, {planner}: {:.2e}", found.worst.error);
        report.see(op(planner), Some(setting.dtype), format_args!("{shape:?}, seed {seed}, {setting}"), found);
    }
    Ok(())
}

/// The rows of the report, one for each planner.
pub const OPS: [&str; 4] = ["attention flat", "attention single", "attention tree", "attention bal."];

/// The name of the planner's row in the report.
fn op(planner: Planner) -> &'static str {
    match planner {
        Planner::Flat => OPS[0],
        Planner::SingleLevel => OPS[1],
        Planner::Tree => OPS[2],
        Planner::Balanced => OPS[3],
    }
}
