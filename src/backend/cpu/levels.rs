//! The definitions of `level_lse` and `add_level_mass`, row by row; rows are spread over threads. The keys of a page are multiplied
//! side by side, as they lie, and there is no other way beside this one.

use rayon::prelude::*;

use super::attention::{context, operand};
use super::kv::SLOTS;
use super::{Buffer, KvStore};
use crate::backend::{LevelMass, MOST_LEVELS, StepBatch};
use crate::ids::LayerIx;

/// See `Backend::level_lse`.
pub fn level_lse(
    out: &mut Buffer,
    qkv: &Buffer,
    kv: &KvStore,
    layer: LayerIx,
    batch: &StepBatch,
    plan: usize,
    scale: f32,
) {
    let heads = kv.heads(layer);
    let d = heads.head_dim;
    let StepBatch { wanted, borders, plans, .. } = batch;
    assert_eq!(
        (out.rows, out.width),
        (borders.len(), heads.q_heads * MOST_LEVELS),
        "level_lse: room for all wanted rows"
    );
    assert_eq!(borders.len(), wanted.len(), "level_lse: levels of all wanted rows");
    let rows = out.data.par_chunks_exact_mut(heads.q_heads * MOST_LEVELS).zip(wanted.par_iter().zip(borders));
    rows.for_each(|(out, (&row, borders))| {
        let context = context(&plans[plan], row as usize);
        let queries: Vec<f32> = qkv.row(row as usize)[..heads.q_width()].iter().map(|&x| operand(kv, x)).collect();
        let groups = queries.chunks_exact(heads.group() * d).zip(out.chunks_exact_mut(heads.group() * MOST_LEVELS));
        for (kv_head, (queries, out)) in groups.enumerate() {
            let mut scores = vec![Vec::new(); heads.group()];
            for run in context.chunk_by(|a, b| a.1.page == b.1.page) {
                let keys = kv.page_keys(layer, kv_head, run[0].1.page);
                for (scores, query) in scores.iter_mut().zip(queries.chunks_exact(d)) {
                    let dots = dots(query, &keys);
                    scores.extend(run.iter().map(|(_, at)| dots[at.slot as usize] * scale));
                }
            }
            for (scores, out) in scores.iter().zip(out.chunks_exact_mut(MOST_LEVELS)) {
                let before = |position: u32| context.partition_point(|&(p, _)| p < position);
                for (level, lse) in out.iter_mut().enumerate() {
                    let range = borders.level(level);
                    *lse = log_sum_exp(&scores[before(range.start)..before(range.end)]);
                }
            }
        }
    });
}

/// `query` with each of the keys `[head_dim][SLOTS]`.
fn dots(query: &[f32], keys: &[f32]) -> [f32; SLOTS] {
    let mut dots = [0.0; SLOTS];
    for (q, keys) in query.iter().zip(keys.as_chunks::<SLOTS>().0) {
        for (dot, k) in dots.iter_mut().zip(keys) {
            *dot += q * k;
        }
    }
    dots
}

fn log_sum_exp(scores: &[f32]) -> f32 {
    let most = scores.iter().fold(f32::NEG_INFINITY, |most, &score| most.max(score));
    match most {
        f32::NEG_INFINITY => most,
        _ => most + scores.iter().map(|score| (score - most).exp()).sum::<f32>().ln(),
    }
}

/// See `Backend::add_level_mass`; `masses` has one for each row of `lse` where layers came before.
pub fn add_level_mass(masses: &mut Vec<LevelMass>, lse: &Buffer, layer: LayerIx, layers: usize) {
    if layer.ix() == 0 {
        masses.clear();
        masses.resize(lse.rows, [0.0; MOST_LEVELS]);
    }
    let heads = lse.width / MOST_LEVELS;
    for (row, mass) in masses.iter_mut().enumerate() {
        for head in lse.row(row).chunks_exact(MOST_LEVELS) {
            let total = log_sum_exp(head);
            for (mass, lse) in mass.iter_mut().zip(head) {
                *mass += (lse - total).exp() / (heads * layers) as f32;
            }
        }
    }
}
