//! Checks latent attention as a whole against its expanded form, dense and in f64: random forests with every planner,
//! whose plans are divided into items that are read as latents and items that are read as copies of either store. Rows
//! of the definition are made of what the device stores: latents, maps and queries, which are functions of their
//! places.

use std::collections::HashMap;
use std::fmt;

use rayon::prelude::*;

use crate::case::{ANY_VOCAB, CheckEffort, buffer, dot, rows_at, run, tails, vector};
use crate::dense::relative_error;
use crate::report::{CaseResult, CheckReport, WorstError};
use crate::setting::hints;
use offshoot_backend::{
    ActivationDtype, Backend, CopyStore, Dtype, Expansion, HeadLayout, HeldPart, KvDtype, KvShape, LatentHeads,
    MatrixPart, Scoring, Split, StepBatch, WeightView,
};
use offshoot_core::dice::{Dice, noise};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_fixtures::forests::{ForestShape, GrownForest, context, grow};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::{AttentionPlan, Csr, KvSpan, PlanHints, Planner, WorkItem};

/// Layers of latents, of which the second is used; it is the first of those that are expanded.
const LAYERS: usize = 2;
const LAYER: LayerIx = LayerIx(1);
const COPY_LAYER: LayerIx = LayerIx(0);

/// Rows of a forest that are checked against the definition, which is slow.
const CHECKED: usize = 24;

/// DeepSeek-V2-Lite's.
const LITE: LatentHeads = LatentHeads { heads: 16, rank: 512, nope: 128, rope: 64, value: 128 };

/// Latents of one of the widths that Hopper has a kernel for, with few heads and small maps.
const FEW_HEADS: LatentHeads = LatentHeads { heads: 3, rank: 256, nope: 32, rope: 64, value: 32 };

/// Small ones, one of them with one head, then those of models.
const SHAPES: [LatentHeads; 8] = [
    LatentHeads { heads: 4, rank: 32, nope: 16, rope: 8, value: 16 },
    FEW_HEADS,
    LatentHeads { heads: 3, rank: 136, nope: 16, rope: 16, value: 24 },
    LatentHeads { heads: 1, rank: 16, nope: 8, rope: 8, value: 8 },
    LITE,
    LatentHeads { heads: 40, rank: 256, nope: 64, rope: 32, value: 64 },
    LatentHeads { heads: 20, rank: 512, nope: 192, rope: 64, value: 256 },
    LatentHeads { heads: 128, rank: 512, nope: 128, rope: 64, value: 128 },
];

/// The rows of the report.
pub const OPS: [&str; 3] = ["latents absorbed", "latents expanded", "latents mixed"];

/// Ranks from which there are fewer cases.
const LARGE_RANK: usize = 256;

/// How the items of a plan are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forms {
    Absorbed,
    /// All as copies of this store.
    Expanded(CopyStore),
    /// Each item in some form.
    Mixed,
}

impl Forms {
    const ALL: [Forms; 4] =
        [Forms::Absorbed, Forms::Expanded(CopyStore::Kept), Forms::Expanded(CopyStore::Again), Forms::Mixed];

    /// The name of its row in the report.
    fn op(self) -> &'static str {
        match self {
            Forms::Absorbed => OPS[0],
            Forms::Expanded(_) => OPS[1],
            Forms::Mixed => OPS[2],
        }
    }
}

/// The parameters of a case, apart from the tree.
#[derive(Clone, Copy, Debug)]
struct LatentSetting {
    heads: LatentHeads,
    dtype: Dtype,
    kv: KvDtype,
    softcap: Option<f32>,
    has_sinks: bool,
}

impl fmt::Display for LatentSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, kv, softcap, has_sinks, .. } = self;
        write!(f, "{heads}, kv dtype {kv}, softcap {softcap:?}, sinks {has_sinks}")
    }
}

impl LatentSetting {
    fn number(i: usize, heads: LatentHeads, dtype: Dtype) -> Self {
        let kv = if i % 4 == 3 { KvDtype::Fp8 } else { KvDtype::Model };
        Self { heads, dtype, kv, softcap: [None, None, Some(1.0)][i % 3], has_sinks: i.is_multiple_of(2) }
    }

    /// Scores of queries and keys as these are made have a standard deviation of 1 / 3, times [`Self::SHARPNESS`].
    fn scale(&self) -> f32 {
        ((self.heads.nope + self.heads.rope) as f32).powf(-0.5)
    }

    const SHARPNESS: f32 = 3.0;

    fn sinks(&self) -> Option<Vec<f32>> {
        self.has_sinks.then(|| (0..self.heads.heads as u64).map(|head| 2.0 * noise([3, 0, 0, head])).collect())
    }

    fn scoring<'a, V>(&self, sinks: Option<&'a V>) -> Scoring<'a, V> {
        Scoring { scale: self.scale(), softcap: self.softcap, sinks }
    }

    /// The latent and rotated part of the token in slot `at`, before they are rounded for storage.
    fn given(&self, at: KvSlot) -> impl Iterator<Item = f32> {
        let dtype = self.dtype;
        let number = move |i| dtype.round(noise([1, at.page.0.into(), at.slot.into(), i]));
        (0..self.heads.latent_width() as u64).map(number)
    }

    fn query(&self, row: usize) -> impl Iterator<Item = f32> {
        let dtype = self.dtype;
        (0..self.heads.query_width() as u64).map(move |i| dtype.round(Self::SHARPNESS * noise([2, row as u64, 0, i])))
    }

    /// The queries of as many rows.
    fn queries(&self, rows: usize) -> Vec<f32> {
        (0..rows).flat_map(|row| self.query(row)).collect()
    }

    /// All maps; what they make of a latent has elements of its size.
    fn maps(&self) -> Vec<f32> {
        let (dtype, size) = (self.dtype, (3.0 / self.heads.rank as f32).sqrt());
        let count = (self.heads.map_rows() * self.heads.rank) as u64;
        (0..count).into_par_iter().map(|i| dtype.round(size * noise([4, 0, 0, i]))).collect()
    }

    /// Relative to f64, the norm of the difference over the norm of the result: see `setting::tolerance`, which has the
    /// roundings of numerators and results. Absorbed queries are rounded, or the keys of copies: errors of scores that
    /// are as large relative to scores, whose deviation is 1. What is read is rounded before it is mapped, or the
    /// values of copies are, whatever the KV dtype, to which the definition's latents are rounded, too. In f32,
    /// roundings of scores and of two more products count.
    fn tolerance(&self) -> f64 {
        let each = self.dtype.rounding();
        let cap = 4.0 * Dtype::F32.rounding() * f64::from(self.softcap.unwrap_or(0.0));
        (0.48 * 2.0 * each).max(2e-5) + cap
    }
}

/// Dense maps of these numbers, `[heads, nope + value, rank]`, which `dtype` can hold.
pub fn latent_maps<B: Backend>(
    backend: &mut B,
    heads: LatentHeads,
    dtype: Dtype,
    maps: &[f32],
) -> Result<B::LatentMaps> {
    let bytes = dtype.encode(maps);
    let view = WeightView { dtype, rows: heads.map_rows(), cols: heads.rank, bytes: &bytes };
    let part = HeldPart { part: MatrixPart::Dense(view), becomes: None };
    backend.latent_maps(&[part], heads, dtype, &Split::Whole, None)
}

/// The keys and values of all heads of a token, in f64.
struct Expanded {
    /// `[heads, nope + rope]`
    keys: Vec<f64>,
    /// `[heads, value]`
    values: Vec<f64>,
}

/// A random forest, with its latents on the device.
struct LatentForest<'a, B: Backend> {
    setting: &'a LatentSetting,
    grown: GrownForest,
    contexts: Vec<Vec<KvSlot>>,
    maps: B::LatentMaps,
    kv: B::Kv,
    queries: Vec<f32>,
    /// The rows that are checked, and their results by the definition.
    checked: Vec<usize>,
    exact: Vec<Vec<f64>>,
}

impl<'a, B: Backend> LatentForest<'a, B> {
    fn new(backend: &mut B, setting: &'a LatentSetting, shape: ForestShape, seed: u64) -> Result<Self> {
        let grown = grow(shape, backend.page_tokens(), seed);
        let contexts: Vec<_> = (0..grown.rows.len()).map(|row| context(&grown.forest, row)).collect();
        let numbers = setting.maps();
        let maps = latent_maps(backend, setting.heads, setting.dtype, &numbers)?;
        let kv = filled(backend, setting, &contexts)?;
        let queries = setting.queries(contexts.len());
        let stride = contexts.len().div_ceil(CHECKED);
        let first = Dice::new(seed).next() as usize % stride;
        let checked: Vec<usize> = (first..contexts.len()).step_by(stride).collect();
        let exact = exact(setting, &numbers, &checked, &contexts);
        Ok(Self { setting, grown, contexts, maps, kv, queries, checked, exact })
    }

    /// Runs the ops of a layer, by a plan whose items are read in these forms.
    fn attend(&self, backend: &mut B, plan: &AttentionPlan, forms: Forms) -> Result<CaseResult> {
        let (setting, rows) = (self.setting, self.contexts.len());
        let (heads, dtype) = (setting.heads, setting.dtype);
        let (absorbed, expanded) = (heads.absorbed(), heads.expanded());
        let mut copied = Copied::of(plan, forms);
        for (plan, heads) in copied.plans.iter_mut().zip([absorbed, expanded, expanded]) {
            plan.tile = backend.attention_tile(heads, dtype, None);
        }
        let mut copies = [self.copies(backend, &copied)?, self.copies(backend, &copied)?];
        let batch = || StepBatch {
            plans: copied.plans.to_vec(),
            expansions: Some(copied.expansions.clone()),
            ..rows_at(&plan.row_positions)
        };
        let mut step = backend.step(&[absorbed, expanded, expanded], dtype, ANY_VOCAB)?;
        let padded = backend.load(&mut step, batch())?.rows;
        let (holds, sums) = (ActivationDtype::Operands(dtype), ActivationDtype::Sums);
        let queries = buffer(backend, holds, padded, heads.query_width(), &self.queries)?;
        let mut absorbing = buffer(backend, holds, padded, absorbed.q_width(), &tails(heads, &self.queries))?;
        let mut read = buffer(backend, holds, padded, absorbed.out_width(), &[])?;
        let mut out = buffer(backend, holds, padded, heads.out_width(), &[])?;
        let mut lse = buffer(backend, sums, padded, heads.heads, &[])?;
        let mut other = buffer(backend, holds, padded, heads.out_width(), &[])?;
        let mut other_lse = buffer(backend, sums, padded, heads.heads, &[])?;
        let sinks = setting.sinks().map(|sinks| vector(backend, &sinks)).transpose()?;
        let mut results = Vec::new();
        for _ in 0..3 {
            // Detects an op that writes nothing.
            backend.write(&mut out, rows, &vec![f32::NAN; rows * heads.out_width()])?;
            let shape = backend.load(&mut step, batch())?;
            run(backend, &mut step, shape, |backend, step| {
                backend.absorb_queries(&mut absorbing, &queries, &self.maps);
                let scoring = setting.scoring(sinks.as_ref());
                backend.tree_attention_lse(&mut read, &mut lse, &absorbing, &self.kv, LAYER, step, 0, scoring);
                backend.map_values(&mut out, &read, &self.maps);
                for (store, copies) in CopyStore::ALL.into_iter().zip(&mut copies) {
                    let of_store = shape.copies[store as usize];
                    if of_store.expansions > 0 {
                        backend.expand_latents(copies, COPY_LAYER, &self.kv, LAYER, &self.maps, store, step);
                    }
                    if of_store.is_read {
                        let (scoring, plan) = (setting.scoring(None), 1 + store as usize);
                        let (to, to_lse) = (&mut other, &mut other_lse);
                        backend.tree_attention_lse(to, to_lse, &queries, copies, COPY_LAYER, step, plan, scoring);
                        backend.merge_attended(&mut out, &mut lse, &other, &other_lse);
                    }
                }
            })?;
            results.push(backend.read(&out, rows)?);
        }
        let first = results.swap_remove(0);
        let repeats = results.iter().all(|one| first.iter().zip(one).all(|(a, b)| a.to_bits() == b.to_bits()));
        let width = heads.out_width();
        let found = self.checked.iter().map(|&row| &first[row * width..][..width]);
        let error = relative_error(found.zip(self.exact.iter().map(Vec::as_slice)));
        Ok(CaseResult::twice(WorstError { error, tolerance: setting.tolerance() }, repeats))
    }

    /// Memory for copies, with NaN in all slots: what pages held before is not read.
    fn copies(&self, backend: &mut B, copied: &Copied) -> Result<B::Kv> {
        let (expanded, dtype) = (self.setting.heads.expanded(), self.setting.dtype);
        let mut copies = backend.kv(&KvShape::uniform(1, expanded, dtype, copied.pages))?;
        let page_tokens = backend.page_tokens();
        let slots = |page| (0..page_tokens).map(move |slot| KvSlot { page, slot });
        let slots: Vec<KvSlot> = (0..copied.pages).map(PageId::new).flat_map(slots).collect();
        append(backend, &mut copies, COPY_LAYER, (expanded, dtype), &slots, |_| {
            vec![f32::NAN; expanded.stored_width()]
        })?;
        Ok(copies)
    }
}

/// The results of some rows, `[heads, value]` each, by keys and values that are computed from stored latents.
fn exact(setting: &LatentSetting, maps: &[f32], rows: &[usize], contexts: &[Vec<KvSlot>]) -> Vec<Vec<f64>> {
    let LatentHeads { heads, rank, nope, rope, value } = setting.heads;
    let mut slots: Vec<KvSlot> = rows.iter().flat_map(|&row| contexts[row].iter().copied()).collect();
    slots.sort_unstable_by_key(|at| (at.page.0, at.slot));
    slots.dedup();
    let expand = |at: KvSlot| {
        let stored: Vec<f32> = setting.given(at).map(|x| setting.kv.round(setting.dtype, x)).collect();
        let of_row = |row: usize| dot(&maps[row * rank..][..rank], &stored[..rank]);
        let rotated = || stored[rank..].iter().map(|&x| f64::from(x));
        let first = |head: usize| head * (nope + value);
        let key = |head: usize| (first(head)..first(head) + nope).map(of_row).chain(rotated());
        let of_values = |head: usize| (first(head) + nope..first(head + 1)).map(of_row);
        let (keys, values) = ((0..heads).flat_map(key).collect(), (0..heads).flat_map(of_values).collect());
        ((at.page, at.slot), Expanded { keys, values })
    };
    let expanded: HashMap<(PageId, u32), Expanded> = slots.par_iter().map(|&at| expand(at)).collect();
    let sinks = setting.sinks();
    let scoring = setting.scoring(sinks.as_ref());
    let result = |&row: &usize| {
        let query: Vec<f64> = setting.query(row).map(f64::from).collect();
        let of_head = |head: usize| {
            let query = &query[head * (nope + rope)..][..nope + rope];
            let tokens: Vec<&Expanded> = contexts[row].iter().map(|at| &expanded[&(at.page, at.slot)]).collect();
            let key = |token: &&Expanded| -> f64 {
                token.keys[head * (nope + rope)..].iter().zip(query).map(|(key, query)| key * query).sum()
            };
            let scores: Vec<f64> = tokens.iter().map(|token| scoring.score_exactly(key(token))).collect();
            let sink = sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
            let most = scores.iter().copied().fold(sink, f64::max);
            let (mut out, mut sum) = (vec![0.0; value], (sink - most).exp());
            for (score, token) in scores.iter().zip(tokens) {
                let weight = (score - most).exp();
                sum += weight;
                let values = &token.values[head * value..][..value];
                out.iter_mut().zip(values).for_each(|(out, value)| *out += weight * value);
            }
            out.into_iter().map(move |out| out / sum)
        };
        (0..heads).flat_map(of_head).collect()
    };
    rows.par_iter().map(result).collect()
}

/// KV memory with latents in all slots of these contexts, and NaN in every other slot of their pages.
fn filled<B: Backend>(backend: &mut B, setting: &LatentSetting, contexts: &[Vec<KvSlot>]) -> Result<B::Kv> {
    let (absorbed, dtype) = (setting.heads.absorbed(), setting.dtype);
    let mut slots: Vec<KvSlot> = contexts.iter().flatten().copied().collect();
    slots.sort_unstable_by_key(|at| (at.page.0, at.slot));
    slots.dedup();
    let pages = slots.last().map_or(0, |last| last.page.ix() + 1);
    let mut kv = backend.kv(&KvShape::uniform(LAYERS, absorbed, dtype, pages))?;
    let page_tokens = backend.page_tokens();
    let all = (0..pages).flat_map(|page| (0..page_tokens).map(move |slot| KvSlot { page: PageId::new(page), slot }));
    let all: Vec<KvSlot> = all.collect();
    append(backend, &mut kv, LAYER, (absorbed, dtype), &all, |_| vec![f32::NAN; absorbed.stored_width()])?;
    append(backend, &mut kv, LAYER, (absorbed, dtype), &slots, |at| setting.given(at).collect())?;
    Ok(kv)
}

/// Most rows per append, to keep its buffers small.
const APPENDED: usize = 1024;

/// Stores in `slots` what `stored` gives, by a step of a row each.
fn append<B: Backend>(
    backend: &mut B,
    kv: &mut B::Kv,
    layer: LayerIx,
    (heads, dtype): (HeadLayout, Dtype),
    slots: &[KvSlot],
    stored: impl Fn(KvSlot) -> Vec<f32> + Sync,
) -> Result<()> {
    let mut step = backend.step(&[heads], dtype, ANY_VOCAB)?;
    let mut qkv = backend.buffer(heads.qkv_width(), ActivationDtype::Operands(dtype))?;
    for slots in slots.chunks(APPENDED) {
        let batch = StepBatch { slots: vec![slots.to_vec()], ..rows_at(&vec![0; slots.len()]) };
        let shape = backend.load(&mut step, batch)?;
        backend.resize(&mut qkv, shape.rows)?;
        backend.write(&mut qkv, slots.len(), &rows_of(heads, slots, &stored))?;
        run(backend, &mut step, shape, |backend, step| backend.kv_append(kv, layer, &qkv, step))?;
    }
    Ok(())
}

/// Rows with queries of zeros, and what is stored in these slots.
fn rows_of(heads: HeadLayout, slots: &[KvSlot], stored: &(dyn Fn(KvSlot) -> Vec<f32> + Sync)) -> Vec<f32> {
    let row = |&at: &KvSlot| std::iter::repeat_n(0.0, heads.q_width()).chain(stored(at)).collect::<Vec<f32>>();
    slots.par_iter().flat_map_iter(row).collect()
}

/// The plans of a step, that of latents first, and what is expanded for the others.
struct Copied {
    plans: [AttentionPlan; 1 + CopyStore::COUNT],
    expansions: [Vec<Expansion>; CopyStore::COUNT],
    /// Pages of each store.
    pages: usize,
}

impl Copied {
    fn of(plan: &AttentionPlan, forms: Forms) -> Self {
        let number = |item: usize| match forms {
            Forms::Absorbed => 0,
            Forms::Expanded(store) => 1 + store as usize,
            Forms::Mixed => Dice::new(item as u64).below(1 + CopyStore::COUNT),
        };
        let numbers: Vec<usize> = (0..plan.items.len()).map(number).collect();
        let mut plans = [0, 1, 2].map(|number| part(plan, |item| numbers[item] == number));
        let [_, of_stores @ ..] = &mut plans;
        let mut expansions: [Vec<Expansion>; CopyStore::COUNT] = Default::default();
        let mut pages = 0;
        for (plan, expansions) in of_stores.iter_mut().zip(&mut expansions) {
            let mut copies = HashMap::new();
            for span in &plan.spans {
                let (mut position, end) = (span.first_position, span.first_position + span.tokens);
                for page in &mut plan.pages[span.pages.start as usize..span.pages.end as usize] {
                    let upto = end.min((position / plan.page_tokens + 1) * plan.page_tokens);
                    let next = PageId::new(copies.len());
                    let (from, to) = (*page, *copies.entry(*page).or_insert(next));
                    let slots = position % plan.page_tokens..(upto - 1) % plan.page_tokens + 1;
                    // In two parts, as those of a page that has grown.
                    let middle = slots.start + slots.len() as u32 / 2;
                    let parts = [slots.start..middle, middle..slots.end].into_iter().filter(|part| !part.is_empty());
                    expansions.extend(parts.map(|slots| Expansion { from, to, slots }));
                    (*page, position) = (to, upto);
                }
            }
            pages = pages.max(copies.len());
        }
        Self { plans, expansions, pages }
    }
}

/// The items of a plan that `keeps` says, which do not grow.
fn part(plan: &AttentionPlan, keeps: impl Fn(usize) -> bool) -> AttentionPlan {
    let mut part = AttentionPlan {
        items: Vec::new(),
        spans: Vec::new(),
        pages: Vec::new(),
        merge: Csr { offsets: vec![0], values: Vec::new() },
        growing: Vec::new(),
        ..plan.clone()
    };
    let small = |count: usize| u32::try_from(count).expect("a plan of a case is small");
    let mut numbers = vec![None; plan.items.len()];
    for (at, item) in plan.items.iter().enumerate().filter(|&(at, _)| keeps(at)) {
        let first = small(part.spans.len());
        for span in &plan.spans[item.spans.start as usize..item.spans.end as usize] {
            let first_page = small(part.pages.len());
            part.pages.extend(&plan.pages[span.pages.start as usize..span.pages.end as usize]);
            part.spans.push(KvSpan { pages: first_page..small(part.pages.len()), ..span.clone() });
        }
        numbers[at] = Some(small(part.items.len()));
        part.items.push(WorkItem { spans: first..small(part.spans.len()), ..item.clone() });
    }
    for row in plan.merge.offsets.windows(2) {
        let items = &plan.merge.values[row[0] as usize..row[1] as usize];
        part.merge.values.extend(items.iter().filter_map(|&item| numbers[item as usize]));
        part.merge.offsets.push(small(part.merge.values.len()));
    }
    part
}

/// Every planner and form on random forests.
pub fn latents<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let all = [
        ForestShape::MidPageForks,
        ForestShape::DeepChain,
        ForestShape::Star,
        ForestShape::EmptyLeaves,
        ForestShape::Ragged,
        // Contexts of several sections, which threads share on the CPU.
        ForestShape::Document(5),
    ];
    let (heads, shapes) = match effort {
        CheckEffort::Quick => (&SHAPES[..2], &all[..1]),
        CheckEffort::Full => (&SHAPES[..], &all[..]),
    };
    let mut number = 0;
    for (d, dtype) in Dtype::ALL.into_iter().enumerate() {
        for (h, &heads) in heads.iter().enumerate() {
            // Wide ones take long: two have every dtype, and both KV dtypes; others one each.
            let is_wide = heads.rank >= LARGE_RANK;
            let has_all = [FEW_HEADS, LITE].contains(&heads);
            if is_wide && !has_all && d != (h + 1) % Dtype::ALL.len() {
                continue;
            }
            for &shape in if is_wide { &[ForestShape::EmptyLeaves] } else { shapes } {
                let setting = LatentSetting::number(number, heads, dtype);
                let kept = if has_all { vec![KvDtype::Model, KvDtype::Fp8] } else { vec![setting.kv] };
                for kv in kept {
                    forest(backend, &LatentSetting { kv, ..setting }, shape, number as u64, report)?;
                }
                number += 1;
            }
        }
    }
    backend.set_kv_dtype(KvDtype::Model);
    Ok(())
}

fn forest<B: Backend>(
    backend: &mut B,
    setting: &LatentSetting,
    shape: ForestShape,
    seed: u64,
    report: &mut CheckReport,
) -> Result<()> {
    backend.set_kv_dtype(setting.kv);
    let stored = LatentForest::new(backend, setting, shape, seed)?;
    let forest = &stored.grown.forest;
    let (absorbed, expanded) = (setting.heads.absorbed(), setting.heads.expanded());
    let of_latents = hints(backend, absorbed, setting.dtype, None);
    let tile = of_latents.tile.max(backend.attention_tile(expanded, setting.dtype, None));
    let planners =
        if setting.heads.rank < LARGE_RANK { &Planner::ALL[..] } else { &[Planner::Tree, Planner::Balanced] };
    for planner in planners {
        let plan = planner.plan(forest, &PlanHints { tile, ..of_latents });
        plan.check(forest).map_err(|fault| Error::Internal(format!("{planner} plan of {shape:?}: {fault}")))?;
        for forms in Forms::ALL {
            if !report.wants(&[forms.op()]) {
                continue;
            }
            let found = stored.attend(backend, &plan, forms)?;
            let case = format_args!("{shape:?}, seed {seed}, {setting}, {planner}, {forms:?}");
            report.see(forms.op(), Some(setting.dtype), case, found);
        }
    }
    Ok(())
}
