//! Attention of the rows of a forest: all together, some of them, and one alone, with every planner.

use super::differences::Differences;
use crate::attention::{StoredForest, attend};
use crate::case::CheckEffort;
use crate::report::CheckReport;
use crate::setting::{ScoreTerms, Setting, hints, sharpness};
use offshoot_backend::{Backend, Dtype, HeadLayout, KvDtype};
use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_fixtures::forests::ForestShape;
use offshoot_kv::StepRow;
use offshoot_kv::plan::Planner;

/// Query heads, key heads, and their width: those that tensor cores take, then others.
const HEADS: [(usize, usize, usize); 9] =
    [(8, 2, 128), (4, 4, 64), (16, 1, 128), (7, 1, 64), (2, 2, 80), (8, 1, 256), (4, 1, 16), (8, 1, 512), (4, 2, 96)];
/// None, longer than a tile of any device, and shorter.
const WINDOWS: [Option<u32>; 4] = [None, Some(700), None, Some(45)];
const SHAPES: [ForestShape; 6] = [
    ForestShape::Document(40),
    ForestShape::DeepChain,
    ForestShape::MidPageForks,
    ForestShape::EmptyLeaves,
    ForestShape::Many(200),
    ForestShape::Ragged,
];
/// Rows that are checked against the definition, which is slow.
const CHECKED: usize = 12;

pub fn attention<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let shapes = if effort == CheckEffort::Quick { &SHAPES[..1] } else { &SHAPES };
    // Only asynchronous devices have different kernels for other head widths.
    let heads = if effort == CheckEffort::Full && B::IS_ASYNC { HEADS.len() } else { 1 };
    for (d, dtype) in Dtype::ALL.into_iter().enumerate() {
        for (seed, &shape) in (0u64..).zip(shapes) {
            for i in (d + seed as usize..).take(heads) {
                let (q_heads, kv_heads, head_dim) = HEADS[i % HEADS.len()];
                let window = WINDOWS[i % WINDOWS.len()];
                let heads = HeadLayout::new(q_heads, kv_heads, head_dim);
                // The same for the first heads of every other shape with fp8 keys and values.
                let is_first = i == d + seed as usize && seed % 2 == 0;
                let kept = [KvDtype::Model, KvDtype::Fp8];
                for kv in kept.into_iter().take(if is_first { 2 } else { 1 }) {
                    let sharpness = sharpness(dtype)[(i + 2) % 3];
                    let terms = ScoreTerms { softcap: [None, None, Some(20.0)][i % 3], has_sinks: i % 2 == 1 };
                    let setting = Setting { heads, dtype, kv, window, sharpness, terms };
                    forest(backend, &setting, shape, seed, report)?;
                }
            }
        }
    }
    backend.set_kv_dtype(KvDtype::Model);
    Ok(())
}

/// The results of the rows `names` of a forest, `[names, out width]`, and whether the same step gave the same bits.
fn attend_rows<B: Backend>(
    backend: &mut B,
    setting: &Setting,
    stored: &StoredForest<'_, B>,
    names: &[usize],
    planner: Planner,
) -> Result<(Vec<f32>, bool)> {
    let Setting { heads, dtype, window, .. } = *setting;
    let rows: Vec<StepRow> = names.iter().map(|&row| stored.grown.rows[row]).collect();
    let forest = stored.grown.tree.forest(&rows);
    let plan = planner.plan(&forest, &hints(backend, heads, dtype, window));
    plan.check(&forest).map_err(|fault| Error::Internal(format!("{planner} plan of some rows: {fault}")))?;
    let width = heads.qkv_width();
    let queries: Vec<f32> = names.iter().flat_map(|&row| &stored.queries[row * width..][..width]).copied().collect();
    attend(backend, setting, &stored.kv, &plan, &queries)
}

/// Compares the rows of a forest with themselves among others.
pub fn forest<B: Backend>(
    backend: &mut B,
    setting: &Setting,
    shape: ForestShape,
    seed: u64,
    report: &mut CheckReport,
) -> Result<()> {
    backend.set_kv_dtype(setting.kv);
    let stored = StoredForest::new(backend, setting, shape, seed)?;
    let case = format!("{shape:?}, seed {seed}, {setting}");
    let (all, width): (Vec<usize>, _) = ((0..stored.contexts.len()).collect(), setting.heads.out_width());
    let (found, repeats) = attend_rows(backend, setting, &stored, &all, Planner::Tree)?;

    let checked: Vec<usize> = all.iter().copied().step_by(all.len().div_ceil(CHECKED)).collect();
    let compared = stored.compare(&checked, &found, &stored.dense(&checked), repeats);
    report.see("exact, attention", Some(setting.dtype), &case, compared);

    let mut dice = Dice::new(seed);
    let some: Vec<usize> = all.iter().copied().filter(|_| dice.one_in(4)).collect();
    let one = [dice.pick(&all)];
    // The longest context has the most states to merge.
    let longest = all.iter().copied().max_by_key(|&row| stored.grown.forest.row_positions[row]).map(|row| [row]);
    let longest = longest.expect("a forest has rows");
    let mut steps: Vec<(&[usize], Planner)> = Planner::ALL.into_iter().map(|planner| (&all[..], planner)).collect();
    steps.extend([(&one[..], Planner::Balanced), (&one, Planner::Flat), (&longest, Planner::Tree)]);
    if !some.is_empty() {
        steps.extend([(&some[..], Planner::Tree), (&some, Planner::Balanced)]);
    }
    let mut differences = Differences::default();
    for (names, planner) in steps {
        let (fewer, _) = attend_rows(backend, setting, &stored, names, planner)?;
        for (&row, fewer) in names.iter().zip(fewer.chunks_exact(width)) {
            let how = format_args!("row {row} of {}, among {} by {planner}", all.len(), names.len());
            differences.see(how, &found[row * width..][..width], fewer);
        }
    }
    differences.file(report, "alone, attention", setting.dtype, case);
    Ok(())
}
