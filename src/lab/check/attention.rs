//! Checks tree attention against the dense definition in f64: random forests with every planner, on the numbers that
//! the device stores. A forest's keys, values and queries are functions of their positions, so that they need not be
//! stored here.

use std::fmt;

use rayon::prelude::*;

use super::case::{ANY_VOCAB, F32, buffer, rows_at, vector};
use super::dense::{dense, relative_error};
use super::device::CheckEffort;
use super::forests::{ForestShape, GrownForest, grow};
use super::report::{CaseResult, CheckReport, WorstError};
use crate::backend::{ActivationDtype, Backend, Dtype, HeadLayout, KvDtype, KvShape, Scoring, StepBatch};
use crate::dice::{Dice, noise};
use crate::error::{Error, Result};
use crate::ids::{GroupIx, LayerIx, PageId};
use crate::kv::{Forest, KvSlot};
use crate::plan::{AttentionPlan, Csr, KvSpan, PlanHints, Planner, WorkItem};

/// Layers of the KV memory, of which the second is used.
pub const LAYERS: usize = 2;
pub const LAYER: LayerIx = LayerIx(1);

const HEAD_DIMS: [usize; 8] = [128, 64, 16, 96, 256, 80, 512, 32];
const GROUPS: [(usize, usize); 7] = [(4, 1), (6, 2), (7, 1), (8, 4), (1, 1), (16, 1), (32, 2)];
/// Softcaps: none, or one that the scores of flat queries hardly meet, or all do.
const SOFTCAPS: [Option<f32>; 5] = [None, None, Some(30.0), None, Some(0.5)];
const WINDOWS: [Option<u32>; 6] = [None, Some(17), None, None, Some(100), Some(1)];
/// Largest query elements: small for a flat softmax, large for a peaked one with a running maximum that rises a lot.
/// Kernels rescale at different rises of the maximum; if f16 could not hold the rise, elements are even larger. In f32,
/// rounding of larger scores would matter.
pub const fn sharpness(dtype: Dtype) -> [f32; 3] {
    match dtype {
        Dtype::F32 => [1.0, 1.0, 16.0],
        Dtype::F16 => [1.0, 1.0, 64.0],
        Dtype::Bf16 => [1.0, 64.0, 2048.0],
    }
}

/// The parameters of an attention case, apart from the tree.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub heads: HeadLayout,
    pub dtype: Dtype,
    pub kv: KvDtype,
    pub window: Option<u32>,
    pub sharpness: f32,
    pub terms: ScoreTerms,
}

/// What scores are beyond scaled products; by default nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScoreTerms {
    pub softcap: Option<f32>,
    pub has_sinks: bool,
}

impl Setting {
    /// Setting number `i`: the periods have no common factor, so that few settings cover all pairs of neighbours.
    pub fn number(i: usize, dtype: Dtype) -> Self {
        let (q_heads, kv_heads) = GROUPS[i % GROUPS.len()];
        Setting {
            heads: HeadLayout { q_heads, kv_heads, head_dim: HEAD_DIMS[i % HEAD_DIMS.len()] },
            dtype,
            kv: KvDtype::Model,
            window: WINDOWS[i / 2 % WINDOWS.len()],
            sharpness: sharpness(dtype)[i % 3],
            terms: ScoreTerms { softcap: SOFTCAPS[i % SOFTCAPS.len()], has_sinks: i % 4 == 1 },
        }
    }

    /// The same with fp8 keys and values, and more often with head sizes for which some kernel stores one byte per
    /// element.
    pub fn fp8(i: usize, dtype: Dtype) -> Self {
        let setting = Self::number(i, dtype);
        let head_dim = [128, 64, setting.heads.head_dim][i / 3 % 3];
        Self { kv: KvDtype::Fp8, heads: HeadLayout { head_dim, ..setting.heads }, ..setting }
    }

    pub fn scale(&self) -> f32 {
        (self.heads.head_dim as f32).powf(-0.5)
    }

    /// The sink of each query head, among its scores in size.
    pub fn sinks(&self) -> Option<Vec<f32>> {
        let size = 1.0 + self.sharpness.min(8.0);
        self.terms.has_sinks.then(|| (0..self.heads.q_heads as u64).map(|head| size * noise([3, 0, 0, head])).collect())
    }

    /// `sinks`: those of [`Setting::sinks`], as a backend holds them.
    pub fn scoring<'a, V>(&self, sinks: Option<&'a V>) -> Scoring<'a, V> {
        Scoring { scale: self.scale(), softcap: self.terms.softcap, sinks }
    }

    /// Key heads, then value heads, of the token in slot `at`, as they are stored.
    pub fn kv(&self, at: KvSlot) -> impl Iterator<Item = f32> {
        let (dtype, kv) = (self.dtype, self.kv);
        self.given_kv(at).map(move |x| kv.round(dtype, x))
    }

    /// The same, before they are rounded for storage.
    pub fn given_kv(&self, at: KvSlot) -> impl Iterator<Item = f32> {
        let (dtype, width) = (self.dtype, 2 * self.heads.kv_heads * self.heads.head_dim);
        (0..width as u64).map(move |i| dtype.round(noise([1, at.page.0.into(), at.slot.into(), i])))
    }

    /// Query heads of `row` at `position`.
    pub fn query(&self, row: usize, position: usize) -> impl Iterator<Item = f32> {
        let (dtype, sharpness) = (self.dtype, self.sharpness);
        (0..self.heads.q_width() as u64)
            .map(move |i| dtype.round(sharpness * noise([2, row as u64, position as u64, i])))
    }

    /// See [`tolerance`]: a backend may round both to the model's dtype. With fp8 keys and values, the definition uses
    /// the rounded ones, so that their rounding does not count; numerators are then in f16 or finer. A capped score is
    /// off by some roundings of its cap, and numerators by as much relatively.
    pub fn tolerance(&self) -> f64 {
        tolerance(self.dtype, self.dtype) + 4.0 * F32 * f64::from(self.terms.softcap.unwrap_or(0.0))
    }

    /// The result of one row by the definition; its own position is the last of `context`.
    pub fn dense(&self, row: usize, context: &[KvSlot]) -> Vec<f64> {
        let hidden = self.window.map_or(0, |window| context.len().saturating_sub(window as usize));
        let query: Vec<f32> = self.query(row, context.len() - 1).collect();
        let stored: Vec<Vec<f32>> = context[hidden..].iter().map(|&at| self.kv(at).collect()).collect();
        let sinks = self.sinks();
        let stored: Vec<&[f32]> = stored.iter().map(Vec::as_slice).collect();
        dense(self.heads, &self.scoring(sinks.as_ref()), &query, &stored)
    }

    /// Compares the device's rows with the definition: see `tolerance`. `repeats`: whether repeated runs gave the same
    /// bits.
    pub fn found(&self, pairs: &[(&[f32], &[f64])], repeats: bool) -> CaseResult {
        let error = relative_error(pairs.iter().copied());
        CaseResult::twice(WorstError { error, tolerance: self.tolerance() }, repeats)
    }
}

/// Tolerance of attention relative to f64 if softmax numerators and results are rounded to these dtypes: the norm of
/// the difference over the norm of the result.
///
/// The error of a rounding is 0.38 of its maximum (uniform over mantissas from 1 to 2), and up to a quarter more by
/// chance in short results: 0.48. The two roundings are independent: 0.54 together for equal dtypes, before chance, as
/// measured for single-pass kernels (2.1e-3 in bf16, 2.8e-4 in f16). In f32, roundings of scores count: 1e-5.
pub fn tolerance(numerators: Dtype, results: Dtype) -> f64 {
    (0.48 * numerators.rounding().hypot(results.rounding())).max(1e-5)
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeadLayout { q_heads, kv_heads, head_dim } = self.heads;
        write!(f, "{q_heads} / {kv_heads} x {head_dim}")?;
        if self.kv != KvDtype::Model {
            write!(f, ", {}", self.kv)?;
        }
        if let Some(cap) = self.terms.softcap {
            write!(f, ", softcap {cap}")?;
        }
        if self.terms.has_sinks {
            write!(f, ", sinks")?;
        }
        self.window.map_or(Ok(()), |window| write!(f, ", window {window}"))
    }
}

pub fn hints<B: Backend>(backend: &B, heads: HeadLayout, dtype: Dtype, window: Option<u32>) -> PlanHints {
    let small = |size: usize| u32::try_from(size).expect("heads are far below 2^32");
    PlanHints {
        group: GroupIx(0),
        tile: backend.attention_tile(heads, dtype, window),
        window,
        q_heads: small(heads.q_heads),
        kv_heads: small(heads.kv_heads),
        head_dim: small(heads.head_dim),
        kv_element_bytes: small(backend.kv_element_bytes(heads, dtype)),
        cost: backend.cost_model(),
    }
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

/// The context of a row of a forest: the slots of its positions `0 ..= pos(row)`.
pub fn context(forest: &Forest, row: usize) -> Vec<KvSlot> {
    let position = forest.row_positions[row];
    let mut slots = vec![None; position as usize + 1];
    let mut at = Some(forest.row_segments[row]);
    while let Some(ix) = at {
        let segment = &forest.segments[ix as usize];
        let first_page = segment.first_position / forest.page_tokens;
        for p in segment.first_position..(segment.first_position + segment.tokens).min(position + 1) {
            let page = segment.pages.start + p / forest.page_tokens - first_page;
            slots[p as usize] = Some(KvSlot { page: forest.pages[page as usize], slot: p % forest.page_tokens });
        }
        at = segment.parent;
    }
    slots.into_iter().map(|slot| slot.expect("a path has no gaps")).collect()
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
        backend.run(&mut step, shape, |backend, step| {
            backend.kv_append(&mut kv, LAYER, &qkv, step);
            Ok(())
        })?;
        backend.collect(&mut step)?;
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

/// The result of one plan, `[R, q_width]`, and whether the same step gave the same bits in three runs: a backend may
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
    let mut out = buffer(backend, holds, padded, setting.heads.q_width(), &[])?;
    let sinks = setting.sinks().map(|sinks| vector(backend, &sinks)).transpose()?;
    let mut results = Vec::new();
    for _ in 0..3 {
        // Detects an op that writes nothing.
        backend.write(&mut out, rows, &vec![f32::NAN; rows * setting.heads.q_width()])?;
        let shape = backend.load(&mut step, batch())?;
        backend.run(&mut step, shape, |backend, step| {
            backend.tree_attention(&mut out, &qkv, kv, LAYER, step, 0, setting.scoring(sinks.as_ref()));
            Ok(())
        })?;
        backend.collect(&mut step)?;
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

    /// Compares these rows of `out` `[all rows, q width]` with their `exact` results.
    pub fn compare(&self, rows: &[usize], out: &[f32], exact: &[Vec<f64>], repeats: bool) -> CaseResult {
        let width = self.setting.heads.q_width();
        let pairs = rows.iter().zip(exact).map(|(&row, exact)| (&out[row * width..][..width], exact.as_slice()));
        self.setting.found(&pairs.collect::<Vec<_>>(), repeats)
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

/// The name of the planner's row in the report.
fn op(planner: Planner) -> &'static str {
    match planner {
        Planner::Flat => "attention flat",
        Planner::SingleLevel => "attention single",
        Planner::Tree => "attention tree",
        Planner::Balanced => "attention bal.",
    }
}
