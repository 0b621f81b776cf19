//! Attention attribution: `level_lse` and `add_level_mass` against the definition in f64, on random forests by every planner with
//! level bounds anywhere, and on leaves that move on.

use std::fmt::Display;

use rayon::prelude::*;

use super::attention::{LAYER, Setting, context, filled, hints, queries};
use super::case::{ANY_VOCAB, F32, buffer};
use super::device::Effort;
use super::dice::Dice;
use super::forests::{Shape, grow};
use super::leaves::{Leaves, STEPS};
use super::report::{Found, Report, Worst, share};
use crate::backend::{ActivationDtype, Attended, AttentionLevels, Dtype, KvDtype, LevelBounds, LevelRow, MOST_LEVELS};
use crate::error::Result;
use crate::ids::LayerIx;
use crate::kv::KvSlot;
use crate::plan::{AttentionPlan, Planner};

/// Rows of a step whose attention is attributed.
const ROWS: u32 = 24;

pub fn levels<B: AttentionLevels>(backend: &mut B, effort: Effort, report: &mut Report) -> Result<()> {
    let shapes: &[Shape] = match effort {
        Effort::Quick => &[Shape::MidPageForks],
        Effort::Full => &[Shape::DeepChain, Shape::MidPageForks, Shape::Many(100), Shape::Ragged],
    };
    let trees = if effort == Effort::Quick { 1 } else { 3 };
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

/// What an attributed row should come to.
struct Exact {
    /// Of each head, and of each level how far it may be off.
    lse: Vec<[(f64, f64); MOST_LEVELS]>,
    mass: [f64; MOST_LEVELS],
}

impl Exact {
    /// Of the row whose own position is the last of `context`.
    ///
    /// A score is a sum of `head_dim` products in f32. Its roundings are as many; that they all go one way is left out. The
    /// logarithm of a sum is off by as much as the scores, and by a few roundings of its own and of exponents.
    fn of(setting: &Setting, row: usize, context: &[KvSlot], bounds: &LevelBounds) -> Self {
        let (heads, scale) = (setting.heads, f64::from(setting.scale()));
        let d = heads.head_dim;
        let hidden = setting.window.map_or(0, |window| context.len().saturating_sub(window as usize));
        let stored: Vec<Vec<f32>> = context[hidden..].iter().map(|&at| setting.kv(at).collect()).collect();
        let query: Vec<f32> = setting.query(row, context.len() - 1).collect();
        let of_head = |(head, query): (usize, &[f32])| {
            let products = |kv: &Vec<f32>| -> Vec<f64> {
                let key = &kv[head / heads.group() * d..][..d];
                query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k) * scale).collect()
            };
            std::array::from_fn(|level| {
                let range = bounds.level(level);
                let of_level = stored.iter().zip(hidden as u32..).filter(|(_, position)| range.contains(position));
                let products: Vec<Vec<f64>> = of_level.map(|(kv, _)| products(kv)).collect();
                let scores: Vec<f64> = products.iter().map(|products| products.iter().sum()).collect();
                let sizes = products.iter().map(|products| products.iter().map(|x| x.abs()).sum::<f64>());
                let lse = log_sum_exp(&scores);
                (lse, F32 * (4.0 * (d as f64).sqrt() * sizes.fold(0.0, f64::max) + 16.0 + 4.0 * lse.abs()))
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

    /// How far the device's results for this row are off.
    fn compare(&self, found: &[f32], mass: &[f32], worst: &mut [Worst; 2]) {
        let mut loosest = 0.0f64;
        for (&found, &(exact, tolerance)) in found.iter().zip(self.lse.iter().flatten()) {
            // What is empty is -inf on both sides.
            let same = f64::from(found) == exact;
            loosest = if exact.is_finite() { loosest.max(tolerance) } else { loosest };
            see(&mut worst[0], if same { 0.0 } else { (f64::from(found) - exact).abs() }, tolerance);
        }
        for (&found, exact) in mass.iter().zip(self.mass) {
            see(&mut worst[1], (f64::from(found) - exact).abs(), 2.0 * loosest);
        }
    }
}

fn see(worst: &mut Worst, error: f64, tolerance: f64) {
    let error = if error.is_nan() { f64::INFINITY } else { error };
    let seen = Worst { error, tolerance: if tolerance.is_finite() { tolerance } else { 0.0 } };
    if seen.error > 0.0 && share(seen) >= share(*worst) {
        *worst = seen;
    }
}

fn log_sum_exp(scores: &[f64]) -> f64 {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    if most.is_finite() { most + sum.ln() } else { most }
}

/// Level bounds anywhere in a context of so many positions, and behind it.
fn bounds(dice: &mut Dice, positions: u32) -> LevelBounds {
    let mut ends: Vec<u32> =
        (0..dice.within(0, MOST_LEVELS as u32 - 1)).map(|_| dice.within(0, positions + 3)).collect();
    ends.sort_unstable();
    LevelBounds::behind(&ends).expect("they rise, and are few")
}

fn file(report: &mut Report, setting: &Setting, case: impl Display, worst: [Worst; 2], found: impl Fn(Worst) -> Found) {
    for (op, worst) in ["level_lse", "level_mass"].into_iter().zip(worst) {
        report.see(op, Some(setting.dtype), format_args!("{case}, {setting}"), found(worst));
    }
}

fn forest<B: AttentionLevels>(
    backend: &mut B,
    setting: &Setting,
    shape: Shape,
    seed: u64,
    report: &mut Report,
) -> Result<()> {
    let grown = grow(shape, backend.page_tokens(), seed);
    let rows = grown.rows.len();
    let contexts: Vec<_> = (0..rows).map(|row| context(&grown.forest, row)).collect();
    let kv = filled(backend, setting, contexts.iter().flatten().copied(), 0)?;
    let positions = &grown.forest.row_positions;
    let mut dice = Dice::new(seed);
    // Some rows are named twice.
    let mut chosen: Vec<u32> = (0..ROWS).map(|_| dice.within(0, rows as u32 - 1)).collect();
    chosen.sort_unstable();
    let level_row = |&row: &u32| LevelRow { row, bounds: bounds(&mut dice, positions[row as usize] + 1) };
    let chosen: Vec<LevelRow> = chosen.iter().map(level_row).collect();
    let exact = chosen.par_iter().map(|LevelRow { row, bounds }| {
        let row = *row as usize;
        Exact::of(setting, row, &contexts[row], bounds)
    });
    let exact: Vec<Exact> = exact.collect();
    let queries = queries(setting, positions);
    let holds = ActivationDtype::Operands(setting.dtype);
    let qkv = buffer(backend, holds, rows, setting.heads.qkv_width(), &queries)?;
    for planner in Planner::ALL {
        let plan = planner.plan(&grown.forest, &hints(backend, setting.heads, setting.dtype, setting.window));
        let [first, again] = [(); 2].map(|()| divide(backend, setting, (&qkv, &kv), &plan, &chosen));
        let (first, again) = (first?, again?);
        let mut worst = [Worst::default(); 2];
        let lse = first.lse.chunks(setting.heads.q_heads * MOST_LEVELS);
        for ((exact, lse), mass) in exact.iter().zip(lse).zip(first.mass.chunks(MOST_LEVELS)) {
            exact.compare(lse, mass, &mut worst);
        }
        let repeats = first == again;
        let found = |worst| Found::twice(worst, repeats);
        file(report, setting, format_args!("{planner} plan of {shape:?}, seed {seed}"), worst, found);
    }
    Ok(())
}

/// What the two ops leave of some rows.
#[derive(PartialEq)]
struct Division {
    lse: Vec<f32>,
    mass: Vec<f32>,
}

/// As of two layers that are alike, so that one begins the sums and the other adds to them.
fn divide<B: AttentionLevels>(
    backend: &mut B,
    setting: &Setting,
    (qkv, kv): (&B::Buffer, &B::Kv),
    plan: &AttentionPlan,
    rows: &[LevelRow],
) -> Result<Division> {
    let width = setting.heads.q_heads * MOST_LEVELS;
    // So that an op which writes nothing is seen.
    let mut lse = buffer(backend, ActivationDtype::Sums, rows.len(), width, &vec![f32::NAN; rows.len() * width])?;
    let nothing = vec![f32::NAN; rows.len() * MOST_LEVELS];
    let mut mass = buffer(backend, ActivationDtype::Sums, rows.len(), MOST_LEVELS, &nothing)?;
    let level_rows = backend.level_rows(kv, std::slice::from_ref(plan), rows)?;
    let read = Attended { layer: LAYER, qkv, kv, plan: 0, scale: setting.scale() };
    backend.level_lse(&mut lse, &read, &level_rows);
    backend.add_level_mass(&mut mass, &lse, LayerIx(0), 2);
    backend.add_level_mass(&mut mass, &lse, LayerIx(1), 2);
    Ok(Division { lse: backend.read(&lse, rows.len())?, mass: backend.read(&mass, rows.len())? })
}

/// Leaves that grow by a token a step, some of them over a page's end.
fn moving<B: AttentionLevels>(backend: &mut B, setting: &Setting, seed: u64, report: &mut Report) -> Result<()> {
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
        let mut worst = [Worst::default(); 2];
        for number in 0..STEPS as usize {
            if number > 0 {
                let new_pages = tree.new_pages(number);
                plan.advance(&new_pages);
                shape = backend.advance(&mut step, &vec![0.0; rows], &new_pages)?;
            }
            backend.write(&mut qkv, rows, &tree.inputs(setting, number))?;
            backend.run(&mut step, shape, |backend, step| {
                backend.kv_append(&mut kv, LAYER, &qkv, step);
                backend.sample(&logits, step);
                Ok(())
            })?;
            backend.collect(&mut step)?;
            let found = divide(backend, setting, (&qkv, &kv), &plan, &level_rows)?;
            let exact = level_rows.par_iter().map(|LevelRow { row, bounds }| {
                let row = *row as usize;
                Exact::of(setting, row, tree.context(row, number), bounds)
            });
            let exact: Vec<Exact> = exact.collect();
            let lse = found.lse.chunks(setting.heads.q_heads * MOST_LEVELS);
            for ((exact, lse), mass) in exact.iter().zip(lse).zip(found.mass.chunks(MOST_LEVELS)) {
                exact.compare(lse, mass, &mut worst);
            }
        }
        file(report, setting, format_args!("{leaves} leaves, seed {seed}, {planner}"), worst, Found::once);
    }
    Ok(())
}
