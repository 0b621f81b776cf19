//! Where attention falls, by levels: `level_lse` and `add_level_mass` against the definition in f64, on random forests by every
//! planner with borders anywhere, and on leaves that move on.

use std::fmt::Display;

use rayon::prelude::*;

use super::attention::{LAYER, Setting, context, filled, hints, queries};
use super::case::{ANY_VOCAB, F32, buffer, rows_at};
use super::device::Effort;
use super::dice::Dice;
use super::forests::{Shape, grow};
use super::leaves::{Leaves, STEPS, greedy};
use super::report::{Found, Report, Worst, share};
use crate::backend::{Backend, Dtype, Holds, KvDtype, LevelBorders, LevelMass, MOST_LEVELS, Sampled, StepBatch};
use crate::error::{Error, Result};
use crate::ids::LayerIx;
use crate::kv::KvSlot;
use crate::plan::Planner;

/// Rows of a step that are asked for.
const ASKS: u32 = 24;

pub fn levels<B: Backend>(backend: &mut B, effort: Effort, report: &mut Report) -> Result<()> {
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
                backend.keep_kv(setting.kv);
                forest(backend, &setting, shape, seed, report)?;
            }
            let setting = if seed == 2 { Setting::fp8(number, dtype) } else { Setting::number(number, dtype) };
            number += 1;
            backend.keep_kv(setting.kv);
            moving(backend, &setting, seed, report)?;
        }
    }
    backend.keep_kv(KvDtype::Model);
    Ok(())
}

/// What a row that is asked for should come to.
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
    fn of(setting: &Setting, row: usize, context: &[KvSlot], borders: &LevelBorders) -> Self {
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
                let range = borders.level(level);
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
    fn compare(&self, found: &[f32], mass: Option<LevelMass>, worst: &mut [Worst; 2]) {
        let mut loosest = 0.0f64;
        for (&found, &(exact, tolerance)) in found.iter().zip(self.lse.iter().flatten()) {
            // What is empty is -inf on both sides.
            let same = f64::from(found) == exact;
            loosest = if exact.is_finite() { loosest.max(tolerance) } else { loosest };
            see(&mut worst[0], if same { 0.0 } else { (f64::from(found) - exact).abs() }, tolerance);
        }
        let mass = mass.unwrap_or([f32::NAN; MOST_LEVELS]);
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

/// Borders anywhere in a context of so many positions, and behind it.
fn borders(dice: &mut Dice, positions: u32) -> LevelBorders {
    let mut ends: Vec<u32> =
        (0..dice.within(0, MOST_LEVELS as u32 - 1)).map(|_| dice.within(0, positions + 3)).collect();
    ends.sort_unstable();
    LevelBorders::behind(&ends).expect("they rise, and are few")
}

fn file(report: &mut Report, setting: &Setting, case: impl Display, worst: [Worst; 2], found: impl Fn(Worst) -> Found) {
    for (op, worst) in ["level_lse", "level_mass"].into_iter().zip(worst) {
        report.see(op, Some(setting.dtype), format_args!("{case}, {setting}"), found(worst));
    }
}

fn forest<B: Backend>(backend: &mut B, setting: &Setting, shape: Shape, seed: u64, report: &mut Report) -> Result<()> {
    let grown = grow(shape, backend.page_tokens(), seed);
    let rows = grown.rows.len();
    let contexts: Vec<_> = (0..rows).map(|row| context(&grown.forest, row)).collect();
    let kv = filled(backend, setting, contexts.iter().flatten().copied(), 0)?;
    let mut dice = Dice::new(seed);
    // Some rows are asked for twice.
    let mut wanted: Vec<u32> = (0..ASKS).map(|_| dice.within(0, rows as u32 - 1)).collect();
    wanted.sort_unstable();
    let borders: Vec<_> =
        wanted.iter().map(|&row| borders(&mut dice, grown.forest.row_positions[row as usize] + 1)).collect();
    let asked = wanted.par_iter().zip(&borders);
    let exact: Vec<Exact> =
        asked.map(|(&row, borders)| Exact::of(setting, row as usize, &contexts[row as usize], borders)).collect();
    for planner in Planner::ALL {
        let plan = planner.plan(&grown.forest, &hints(backend, setting.heads, setting.dtype, setting.window));
        let batch = StepBatch {
            wanted: wanted.clone(),
            plans: vec![plan],
            requests: vec![greedy(); wanted.len()],
            borders: borders.clone(),
            ..rows_at(&grown.forest.row_positions)
        };
        let found = divide(backend, setting, &kv, &batch)?;
        let (first, again) = found.split_first().expect("a step was run");
        let mut worst = [Worst::default(); 2];
        for ((exact, lse), mass) in exact.iter().zip(first.0.chunks(setting.heads.q_heads * MOST_LEVELS)).zip(&first.1)
        {
            exact.compare(lse, *mass, &mut worst);
        }
        let repeats = again.iter().all(|again| again == first);
        let found = |worst| Found::twice(worst, repeats);
        file(report, setting, format_args!("{planner} plan of {shape:?}, seed {seed}"), worst, found);
    }
    Ok(())
}

/// What `level_lse` leaves of the asks, and their masses.
type Division = (Vec<f32>, Vec<Option<LevelMass>>);

/// The same step three times: a backend may run it by other ways the second and the third time. As of two layers that are alike,
/// so that one begins the masses and the other adds to them.
fn divide<B: Backend>(backend: &mut B, setting: &Setting, kv: &B::Kv, batch: &StepBatch) -> Result<Vec<Division>> {
    let mut step = backend.step(setting.heads, setting.dtype, ANY_VOCAB)?;
    let asks = batch.wanted.len();
    let shape = backend.load(&mut step, batch.clone())?;
    let queries = queries(setting, &batch.positions);
    let qkv = buffer(backend, Holds::Operands(setting.dtype), shape.rows, setting.heads.qkv_width(), &queries)?;
    let width = setting.heads.q_heads * MOST_LEVELS;
    let mut lse = buffer(backend, Holds::Sums, shape.wanted, width, &[])?;
    let logits = buffer(backend, Holds::Sums, shape.wanted, ANY_VOCAB, &vec![0.0; asks * ANY_VOCAB])?;
    let mut found = Vec::new();
    for _ in 0..3 {
        // So that an op which writes nothing is seen.
        backend.write(&mut lse, asks, &vec![f32::NAN; asks * width])?;
        let shape = backend.load(&mut step, batch.clone())?;
        backend.run(&mut step, shape, |backend, step| {
            backend.level_lse(&mut lse, &qkv, kv, LAYER, step, 0, setting.scale());
            backend.add_level_mass(&lse, LayerIx(0), 2, step);
            backend.add_level_mass(&lse, LayerIx(1), 2, step);
            backend.sample(&logits, step);
            Ok(())
        })?;
        let masses = masses(backend.collect(&mut step)?);
        found.push((backend.read(&lse, asks)?, masses));
    }
    Ok(found)
}

fn masses(drawn: Vec<Sampled>) -> Vec<Option<LevelMass>> {
    drawn.into_iter().map(|drawn| drawn.mass).collect()
}

/// Leaves that grow by a token a step, some of them over a page's end.
fn moving<B: Backend>(backend: &mut B, setting: &Setting, seed: u64, report: &mut Report) -> Result<()> {
    let dice = &mut Dice::new(seed);
    let leaves = dice.within(1, 30);
    let tree = Leaves::grow(backend.page_tokens(), dice, leaves)?;
    let rows = leaves as usize;
    let borders: Vec<_> = (0..rows).map(|row| borders(dice, tree.context(row, 0).len() as u32)).collect();
    for planner in [Planner::Flat, Planner::Balanced] {
        let mut kv = tree.memory(backend, setting)?;
        let mut step = backend.step(setting.heads, setting.dtype, ANY_VOCAB)?;
        let batch = StepBatch { borders: borders.clone(), ..tree.batch(backend, setting, planner) };
        let mut shape = backend.load(&mut step, batch)?;
        let mut qkv = buffer(backend, Holds::Operands(setting.dtype), shape.rows, setting.heads.qkv_width(), &[])?;
        let width = setting.heads.q_heads * MOST_LEVELS;
        let mut lse = buffer(backend, Holds::Sums, shape.wanted, width, &[])?;
        let logits = buffer(backend, Holds::Sums, shape.wanted, ANY_VOCAB, &vec![0.0; rows * ANY_VOCAB])?;
        let mut worst = [Worst::default(); 2];
        for number in 0..STEPS as usize {
            if number > 0 {
                shape = backend.advance(&mut step, &vec![0.0; rows], &tree.turns(number))?;
            }
            backend.write(&mut qkv, rows, &tree.inputs(setting, number))?;
            backend.run(&mut step, shape, |backend, step| {
                backend.kv_append(&mut kv, LAYER, &qkv, step);
                backend.level_lse(&mut lse, &qkv, &kv, LAYER, step, 0, setting.scale());
                backend.add_level_mass(&lse, LayerIx(0), 1, step);
                backend.sample(&logits, step);
                Ok(())
            })?;
            let masses = masses(backend.collect(&mut step)?);
            if masses.len() != rows {
                return Err(Error::Internal(format!("{} draws of {rows} rows", masses.len())));
            }
            let found = backend.read(&lse, rows)?;
            let exact =
                (0..rows).into_par_iter().map(|row| Exact::of(setting, row, tree.context(row, number), &borders[row]));
            let exact: Vec<Exact> = exact.collect();
            for ((exact, lse), mass) in exact.iter().zip(found.chunks(width)).zip(masses) {
                exact.compare(lse, mass, &mut worst);
            }
        }
        file(report, setting, format_args!("{leaves} leaves, seed {seed}, {planner}"), worst, Found::once);
    }
    Ok(())
}
