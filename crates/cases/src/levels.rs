//! Attention attribution: checks `level_lse` and `add_level_mass` against the definition in f64, on random forests with
//! every planner and random level bounds, and on leaves that advance.

use std::fmt::Display;

use rayon::prelude::*;

use crate::attention::{LAYER, StoredForest};
use crate::case::{ANY_VOCAB, CheckEffort, F32, buffer, run};
use crate::leaves::{Leaves, STEPS};
use crate::report::{CaseResult, CheckReport, WorstError};
use crate::setting::{Setting, hints};
use offshoot_backend::{
    ActivationDtype, Attended, AttentionLevels, Dtype, KvDtype, LevelBounds, LevelRow, MOST_LEVELS,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;
use offshoot_fixtures::forests::ForestShape;
use offshoot_kv::KvSlot;
use offshoot_kv::plan::{AttentionPlan, Planner};

/// Rows of a step whose attention is attributed.
const ROWS: u32 = 24;

/// The rows of the report.
pub const OPS: [&str; 2] = ["level_lse", "level_mass"];

/// Runs the cases of the two ops.
///
/// # Errors
///
/// The device's.
pub fn levels<B: AttentionLevels>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let shapes: &[ForestShape] = match effort {
        CheckEffort::Quick => &[ForestShape::MidPageForks],
        CheckEffort::Full => {
            &[ForestShape::DeepChain, ForestShape::MidPageForks, ForestShape::Many(100), ForestShape::Ragged]
        }
    };
    let trees = if effort == CheckEffort::Quick { 1 } else { 3 };
    let mut number = 0;
    for dtype in Dtype::ALL {
        for seed in 0..trees {
            for &shape in shapes {
                let setting =
                    if number % 4 == 3 { Setting::fp8(number, dtype) } else { Setting::number(number, dtype) };
                number += 1;
                backend.set_kv_dtype(setting.kv);
                forest(backend, &setting, shape, seed, report)?;
            }
            let setting = if seed == 2 { Setting::fp8(number, dtype) } else { Setting::number(number, dtype) };
            number += 1;
            backend.set_kv_dtype(setting.kv);
            moving(backend, &setting, seed, report)?;
        }
    }
    backend.set_kv_dtype(KvDtype::Model);
    Ok(())
}

/// The exact attribution of a row.
struct ExactAttribution {
    /// For each head and level, the log-sum-exp and its tolerance.
    lse: Vec<[(f64, f64); MOST_LEVELS]>,
    mass: [f64; MOST_LEVELS],
}

impl ExactAttribution {
    /// The attributions of some rows, of which `context_of` gives the slots that they see.
    fn of_rows<'a>(
        setting: &Setting,
        rows: &[LevelRow],
        context_of: impl Fn(usize) -> &'a [KvSlot] + Sync,
    ) -> Vec<Self> {
        let of_row = |LevelRow { row, bounds }: &LevelRow| {
            let row = *row as usize;
            Self::of(setting, row, context_of(row), bounds)
        };
        rows.par_iter().map(of_row).collect()
    }

    /// The attribution of a row; its own position is the last of `context`.
    ///
    /// A score is a sum of `head_dim` products in f32, with as many roundings, which do not all have the same sign. The
    /// logarithm of a sum has the error of the scores, plus a few roundings of its own, of exponents and of a cap.
    fn of(setting: &Setting, row: usize, context: &[KvSlot], bounds: &LevelBounds) -> Self {
        let (heads, scale) = (setting.heads, f64::from(setting.scale()));
        let (scoring, cap) = (setting.scoring::<Vec<f32>>(None), f64::from(setting.terms.softcap.unwrap_or(0.0)));
        let d = heads.head_dim;
        let hidden = setting.window.map_or(0, |window| context.len().saturating_sub(window as usize));
        let stored: Vec<Vec<f32>> = context[hidden..].iter().map(|&at| setting.kv(at).collect()).collect();
        let query: Vec<f32> = setting.query(row, context.len() - 1).collect();
        let of_head = |(head, query): (usize, &[f32])| {
            let products = |kv: &Vec<f32>| -> Vec<f64> {
                let key = &kv[head / heads.group() * d..][..d];
                query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).collect()
            };
            std::array::from_fn(|level| {
                let range = bounds.level(level);
                let of_level = stored.iter().zip(hidden as u32..).filter(|(_, position)| range.contains(position));
                let products: Vec<Vec<f64>> = of_level.map(|(kv, _)| products(kv)).collect();
                let scores: Vec<f64> =
                    products.iter().map(|products| scoring.score_exactly(products.iter().sum())).collect();
                let sizes = products.iter().map(|products| products.iter().map(|x| x.abs() * scale).sum::<f64>());
                let lse = log_sum_exp(&scores);
                let sums = 4.0 * (d as f64).sqrt() * sizes.fold(0.0, f64::max);
                (lse, F32 * (sums + 16.0 + 4.0 * lse.abs() + 8.0 * cap))
            })
        };
        let lse: Vec<[(f64, f64); MOST_LEVELS]> = query.chunks_exact(d).enumerate().map(of_head).collect();
        let mut mass = [0.0; MOST_LEVELS];
        for head in &lse {
            let total = log_sum_exp(&head.map(|(lse, _)| lse));
            mass.iter_mut().zip(head).for_each(|(mass, (lse, _))| *mass += (lse - total).exp() / heads.q_heads as f64);
        }
        Self { lse, mass }
    }

    /// Compares the device's results for this row with the exact ones.
    fn compare(&self, found: &[f32], mass: &[f32], worst: &mut [WorstError; 2]) {
        let mut loosest = 0.0f64;
        for (&found, &(exact, tolerance)) in found.iter().zip(self.lse.iter().flatten()) {
            // Empty levels are -inf on both sides.
            let same = f64::from(found) == exact;
            loosest = if exact.is_finite() { loosest.max(tolerance) } else { loosest };
            let tolerance = if tolerance.is_finite() { tolerance } else { 0.0 };
            worst[0].raise(if same { 0.0 } else { (f64::from(found) - exact).abs() }, tolerance);
        }
        for (&found, exact) in mass.iter().zip(self.mass) {
            worst[1].raise((f64::from(found) - exact).abs(), 2.0 * loosest);
        }
    }
}

fn log_sum_exp(scores: &[f64]) -> f64 {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    if most.is_finite() { most + sum.ln() } else { most }
}

/// Random level bounds within a context of `positions` positions, or just after it.
fn bounds(dice: &mut Dice, positions: u32) -> LevelBounds {
    let mut ends: Vec<u32> =
        (0..dice.within(0, MOST_LEVELS as u32 - 1)).map(|_| dice.within(0, positions + 3)).collect();
    ends.sort_unstable();
    LevelBounds::behind(&ends).expect("they rise, and are few")
}

fn file(
    report: &mut CheckReport,
    setting: &Setting,
    case: impl Display,
    worst: [WorstError; 2],
    found: impl Fn(WorstError) -> CaseResult,
) {
    for (op, worst) in OPS.into_iter().zip(worst) {
        report.see(op, Some(setting.dtype), format_args!("{case}, {setting}"), found(worst));
    }
}

fn forest<B: AttentionLevels>(
    backend: &mut B,
    setting: &Setting,
    shape: ForestShape,
    seed: u64,
    report: &mut CheckReport,
) -> Result<()> {
    let stored = StoredForest::new(backend, setting, shape, seed)?;
    let (forest, rows) = (&stored.grown.forest, stored.contexts.len());
    let positions = &forest.row_positions;
    let mut dice = Dice::new(seed);
    // Some rows occur twice.
    let mut chosen: Vec<u32> = (0..ROWS).map(|_| dice.within(0, rows as u32 - 1)).collect();
    chosen.sort_unstable();
    let level_row = |&row: &u32| LevelRow { row, bounds: bounds(&mut dice, positions[row as usize] + 1) };
    let chosen: Vec<LevelRow> = chosen.iter().map(level_row).collect();
    let contexts = &stored.contexts;
    let exact = ExactAttribution::of_rows(setting, &chosen, |row| &contexts[row]);
    let holds = ActivationDtype::Operands(setting.dtype);
    let qkv = buffer(backend, holds, rows, setting.heads.qkv_width(), &stored.queries)?;
    for planner in Planner::ALL {
        let plan = planner.plan(forest, &hints(backend, setting.heads, setting.dtype, setting.window));
        let [first, again] = [(); 2].map(|()| attribute(backend, setting, (&qkv, &stored.kv), &plan, &chosen));
        let (first, again) = (first?, again?);
        let mut worst = [WorstError::default(); 2];
        first.compare(&exact, &mut worst);
        let found = |worst| CaseResult::twice(worst, first == again);
        file(report, setting, format_args!("{planner} plan of {shape:?}, seed {seed}"), worst, found);
    }
    Ok(())
}

/// The results of the two ops for some rows.
#[derive(PartialEq)]
struct DeviceAttribution {
    lse: Vec<f32>,
    mass: Vec<f32>,
}

impl DeviceAttribution {
    /// Compares the results with the rows' exact ones.
    fn compare(&self, exact: &[ExactAttribution], worst: &mut [WorstError; 2]) {
        let found = self.lse.chunks(self.lse.len() / exact.len()).zip(self.mass.chunks(MOST_LEVELS));
        for (exact, (lse, mass)) in exact.iter().zip(found) {
            exact.compare(lse, mass, worst);
        }
    }
}

/// Runs the ops as for two equal layers, so that one starts the sums and the other adds to them.
fn attribute<B: AttentionLevels>(
    backend: &mut B,
    setting: &Setting,
    (qkv, kv): (&B::Buffer, &B::Kv),
    plan: &AttentionPlan,
    rows: &[LevelRow],
) -> Result<DeviceAttribution> {
    let width = setting.heads.q_heads * MOST_LEVELS;
    // Detects an op that writes nothing.
    let mut lse = buffer(backend, ActivationDtype::Sums, rows.len(), width, &vec![f32::NAN; rows.len() * width])?;
    let nothing = vec![f32::NAN; rows.len() * MOST_LEVELS];
    let mut mass = buffer(backend, ActivationDtype::Sums, rows.len(), MOST_LEVELS, &nothing)?;
    let level_rows = backend.level_rows(kv, std::slice::from_ref(plan), rows)?;
    let read = Attended { layer: LAYER, stored: LAYER, qkv, kv, plan: 0, scoring: setting.scoring(None) };
    backend.level_lse(&mut lse, &read, &level_rows);
    backend.add_level_mass(&mut mass, &lse, LayerIx(0), 2);
    backend.add_level_mass(&mut mass, &lse, LayerIx(1), 2);
    Ok(DeviceAttribution { lse: backend.read(&lse, rows.len())?, mass: backend.read(&mass, rows.len())? })
}

/// Leaves that grow by a token per step, some of them across the end of a page.
fn moving<B: AttentionLevels>(backend: &mut B, setting: &Setting, seed: u64, report: &mut CheckReport) -> Result<()> {
    let dice = &mut Dice::new(seed);
    let leaves = dice.within(1, 30);
    let tree = Leaves::grow(backend.page_tokens(), dice, leaves)?;
    let rows = leaves as usize;
    let level_row = |row: u32| LevelRow { row, bounds: bounds(dice, tree.context(row as usize, 0).len() as u32) };
    let level_rows: Vec<LevelRow> = (0..leaves).map(level_row).collect();
    for planner in [Planner::Flat, Planner::Balanced] {
        let mut kv = tree.memory(backend, setting)?;
        let mut step = backend.step(&[setting.heads], setting.dtype, ANY_VOCAB)?;
        let batch = tree.batch(backend, setting, planner);
        let mut plan = batch.plans[0].clone();
        let mut shape = backend.load(&mut step, batch)?;
        let mut qkv =
            buffer(backend, ActivationDtype::Operands(setting.dtype), shape.rows, setting.heads.qkv_width(), &[])?;
        let logits = buffer(backend, ActivationDtype::Sums, shape.logit_rows, ANY_VOCAB, &vec![0.0; rows * ANY_VOCAB])?;
        let mut worst = [WorstError::default(); 2];
        for number in 0..STEPS as usize {
            if number > 0 {
                let new_pages = tree.new_pages(number);
                plan.advance(&new_pages);
                shape = backend.advance(&mut step, &vec![0.0; rows], &new_pages)?;
            }
            backend.write(&mut qkv, rows, &tree.inputs(setting, number))?;
            run(backend, &mut step, shape, |backend, step| {
                backend.kv_append(&mut kv, LAYER, &qkv, step);
                backend.sample(&logits, step);
            })?;
            let found = attribute(backend, setting, (&qkv, &kv), &plan, &level_rows)?;
            found
                .compare(&ExactAttribution::of_rows(setting, &level_rows, |row| tree.context(row, number)), &mut worst);
        }
        file(report, setting, format_args!("{leaves} leaves, seed {seed}, {planner}"), worst, CaseResult::once);
    }
    Ok(())
}
