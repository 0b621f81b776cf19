//! The ops of attention attribution on the CPU, compared with a dense definition in f64 and with tree attention: if
//! every value is the one-hot vector of its level, tree attention returns the share of attention on each level.

use offshoot_backend::{
    ActivationDtype, Attended, AttentionLevels, Backend, Dtype, HeadLayout, KvDtype, KvShape, LevelBounds, LevelMass,
    LevelRow, MOST_LEVELS, RowToken, Scoring, StepBatch,
};
use offshoot_cases::setting::{ScoreTerms, Setting, hints};
use offshoot_core::dice::Dice;
use offshoot_core::ids::{LayerIx, TokenId};
use offshoot_cpu::kv::PAGE_TOKENS;
use offshoot_cpu::{Cpu, CpuBuffer, Isa, KvStore};
use offshoot_fixtures::forests::{ForestShape, context, grow};
use offshoot_kv::plan::Planner;
use offshoot_kv::{Forest, KvSlot};

const LAYER: LayerIx = LayerIx(0);
const VOCAB: usize = 4;

fn batch(positions: &[u32]) -> StepBatch {
    let tokens = vec![RowToken::Known(TokenId(0)); positions.len()];
    StepBatch { tokens, positions: positions.to_vec(), ..StepBatch::default() }
}

fn level_of(bounds: &LevelBounds, position: usize) -> usize {
    (0..MOST_LEVELS).find(|&level| bounds.level(level).contains(&(position as u32))).unwrap()
}

/// KV memory with the setting's keys; the value of a position is the one-hot vector of its level.
fn memory(cpu: &mut Cpu, setting: &Setting, contexts: &[Vec<KvSlot>], bounds: &LevelBounds) -> KvStore {
    let HeadLayout { kv_heads, head_dim, .. } = setting.heads;
    let mut levels: Vec<(KvSlot, usize)> = contexts
        .iter()
        .flat_map(|context| context.iter().enumerate())
        .map(|(p, &at)| (at, level_of(bounds, p)))
        .collect();
    levels.sort_unstable_by_key(|(at, _)| (at.page, at.slot));
    levels.dedup();
    let pages = levels.last().unwrap().0.page.ix() + 1;
    cpu.set_kv_dtype(setting.kv);
    let mut kv = cpu.kv(&KvShape::uniform(1, setting.heads, setting.dtype, pages)).unwrap();
    let mut qkv = CpuBuffer::new(levels.len(), setting.heads.qkv_width());
    for (row, &(at, level)) in qkv.data.chunks_exact_mut(setting.heads.qkv_width()).zip(&levels) {
        let (keys, values) = row[setting.heads.q_width()..].split_at_mut(kv_heads * head_dim);
        keys.iter_mut().zip(setting.given_kv(at)).for_each(|(x, key)| *x = key);
        values.chunks_exact_mut(head_dim).for_each(|value| value[level] = 1.0);
    }
    let mut step = cpu.step(&[setting.heads], setting.dtype, VOCAB).unwrap();
    let slots = levels.iter().map(|&(at, _)| at).collect();
    cpu.load(&mut step, StepBatch { slots: vec![slots], ..batch(&vec![0; levels.len()]) }).unwrap();
    cpu.kv_append(&mut kv, LAYER, &qkv, &step);
    kv
}

/// `level_lse` (`[rows, q_heads, MOST_LEVELS]`), the masses of two equal layers, and tree attention (`[step rows,
/// q_width]`).
fn attribute(
    cpu: &mut Cpu,
    setting: &Setting,
    kv: &KvStore,
    (forest, planner): (&Forest, Planner),
    rows: &[LevelRow],
) -> (Vec<f32>, Vec<LevelMass>, Vec<f32>) {
    let plan = planner.plan(forest, &hints(cpu, setting.heads, setting.dtype, setting.window));
    let positions = &forest.row_positions;
    let mut qkv = CpuBuffer::new(positions.len(), setting.heads.qkv_width());
    for (row, x) in qkv.data.chunks_exact_mut(setting.heads.qkv_width()).enumerate() {
        x.iter_mut().zip(setting.query(row, positions[row] as usize)).for_each(|(x, query)| *x = query);
    }
    let mut buffer = |width, rows| {
        let mut buffer = cpu.buffer(width, ActivationDtype::Sums).unwrap();
        cpu.resize(&mut buffer, rows).unwrap();
        buffer.data.fill(f32::NAN);
        buffer
    };
    let mut lse = buffer(setting.heads.q_heads * MOST_LEVELS, rows.len());
    let (mut mass, mut out) = (buffer(MOST_LEVELS, rows.len()), buffer(setting.heads.q_width(), positions.len()));
    let level_rows = cpu.level_rows(kv, std::slice::from_ref(&plan), rows).unwrap();
    cpu.level_lse(
        &mut lse,
        &Attended { layer: LAYER, stored: LAYER, qkv: &qkv, kv, plan: 0, scoring: Scoring::scaled(setting.scale()) },
        &level_rows,
    );
    cpu.add_level_mass(&mut mass, &lse, LayerIx(0), 2);
    cpu.add_level_mass(&mut mass, &lse, LayerIx(1), 2);
    let mut step = cpu.step(&[setting.heads], setting.dtype, VOCAB).unwrap();
    cpu.load(&mut step, StepBatch { plans: vec![plan], ..batch(positions) }).unwrap();
    cpu.tree_attention(&mut out, &qkv, kv, LAYER, &mut step, 0, Scoring::scaled(setting.scale()));
    (lse.data, mass.data.as_chunks().0.to_vec(), out.data)
}

/// Scores of one head at the positions the row attends to, by level.
fn scores(setting: &Setting, row: usize, context: &[KvSlot], bounds: &LevelBounds, head: usize) -> Vec<Vec<f64>> {
    let (d, last) = (setting.heads.head_dim, context.len() - 1);
    let query: Vec<f32> = setting.query(row, last).skip(head * d).take(d).collect();
    let mut scores = vec![Vec::new(); MOST_LEVELS];
    for (p, &at) in context.iter().enumerate() {
        if setting.window.is_none_or(|window| last - p < window as usize) {
            let key = setting.kv(at).skip(head / setting.heads.group() * d);
            let dot: f64 = query.iter().zip(key).map(|(&q, k)| f64::from(q) * f64::from(k)).sum();
            scores[level_of(bounds, p)].push(dot * f64::from(setting.scale()));
        }
    }
    scores
}

fn denominator(scores: &[f64]) -> f64 {
    scores.iter().map(|score| score.exp()).sum()
}

/// Tolerance of a log-sum-exp: the error of a score, which is a sum of at most 80 products of total size about 9
/// (queries up to 4, keys up to 1, over the root of 80). Its roundings add up like a random walk: 4 sqrt(80) of them.
/// 16 more are for exponents, their sum and its logarithm. The relative error of a share of the denominator is the
/// same.
const LSE_TOLERANCE: f64 = (4.0 * 8.95 * 9.0 + 16.0) * Dtype::F32.rounding();

#[test]
fn level_shares_equal_attention_over_one_hot_values() {
    for isa in Isa::available() {
        check_levels(isa);
    }
}

fn check_levels(isa: Isa) {
    let mut cpu = Cpu::with_isa(isa);
    let mut empty = 0;
    for seed in 0..24 {
        let mut dice = Dice::new(seed);
        let dtype = dice.pick(&Dtype::ALL);
        let (q_heads, kv_heads) = dice.pick(&[(1, 1), (3, 3), (4, 2), (6, 1)]);
        let heads = HeadLayout { q_heads, kv_heads, head_dim: dice.pick(&[8, 18, 32, 80]) };
        let window = dice.pick(&[None, None, Some(1), Some(17), Some(100)]);
        let setting = Setting {
            heads,
            dtype,
            kv: dice.pick(&[KvDtype::Model, KvDtype::Fp8]),
            window,
            sharpness: 4.0,
            terms: ScoreTerms::default(),
        };
        let shape =
            dice.pick(&[ForestShape::MidPageForks, ForestShape::Star, ForestShape::EmptyLeaves, ForestShape::Ragged]);
        let grown = grow(shape, PAGE_TOKENS, seed);
        let forest = &grown.forest;
        let contexts: Vec<_> = (0..grown.rows.len()).map(|row| context(forest, row)).collect();
        let longest = contexts.iter().map(Vec::len).max().unwrap() as u32;
        let mut ends: Vec<u32> = (0..dice.within(0, 7)).map(|_| dice.within(0, longest)).collect();
        ends.sort_unstable();
        let bounds = LevelBounds::behind(&ends).unwrap();
        let kv = memory(&mut cpu, &setting, &contexts, &bounds);
        let mut chosen: Vec<u32> = (0..6).map(|_| dice.within(0, contexts.len() as u32 - 1)).collect();
        chosen.sort_unstable();
        let planner = dice.pick(&Planner::ALL);
        let case = format!("{isa}, seed {seed}: {shape:?}, {dtype:?}, {setting}, {planner}, {ends:?}");
        let in_levels = |bounds| chosen.iter().map(|&row| LevelRow { row, bounds }).collect::<Vec<_>>();
        let (lse, masses, out) = attribute(&mut cpu, &setting, &kv, (forest, planner), &in_levels(bounds));
        let (total, ..) = attribute(&mut cpu, &setting, &kv, (forest, planner), &in_levels(LevelBounds::none()));
        for (index, &row) in chosen.iter().enumerate() {
            let mut mean = [0.0; MOST_LEVELS];
            for head in 0..heads.q_heads {
                let at = (index * heads.q_heads + head) * MOST_LEVELS;
                let (lse, total) = (&lse[at..at + MOST_LEVELS], &total[at..at + MOST_LEVELS]);
                let scores = scores(&setting, row as usize, &contexts[row as usize], &bounds, head);
                let all: f64 = scores.iter().map(|scores| denominator(scores)).sum();
                let attended = &out[row as usize * heads.q_width() + head * heads.head_dim..];
                for level in 0..MOST_LEVELS {
                    let (found, exact) = (f64::from(lse[level]), denominator(&scores[level]));
                    match scores[level].is_empty() {
                        true => assert_eq!(lse[level], f32::NEG_INFINITY, "{case}"),
                        false => {
                            assert!((found - exact.ln()).abs() < LSE_TOLERANCE, "{case}: {found}, not {}", exact.ln())
                        }
                    }
                    empty += usize::from(scores[level].is_empty());
                    // The relative rounding error of each numerator.
                    let rounding = isa.attention_operand(dtype).rounding();
                    let share = f64::from(attended[level]);
                    assert!(
                        (share - exact / all).abs() < rounding + 2.0 * LSE_TOLERANCE,
                        "{case}: {share} of attention, not {}",
                        exact / all
                    );
                    mean[level] += exact / all / heads.q_heads as f64;
                }
                let sum: f64 = lse.iter().map(|&lse| f64::from(lse).exp()).sum();
                assert!(
                    (sum / f64::from(total[0]).exp() - 1.0).abs() < LSE_TOLERANCE,
                    "{case}: a denominator of {sum}"
                );
            }
            for (&mass, mean) in masses[index].iter().zip(mean) {
                assert!((f64::from(mass) - mean).abs() < LSE_TOLERANCE, "{case}: a mass of {mass}, not {mean}");
            }
        }
    }
    assert!(empty > 0, "no case had an empty level");
}
