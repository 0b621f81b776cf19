//! The definitions of `level_lse` and `add_level_mass`, one row, head, level and position at a time; rows are spread over
//! threads. There are no faster ones: who asks where attention falls does not ask for speed.

use rayon::prelude::*;

use super::attention::{context, operand};
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
    let heads = kv.shape().heads;
    let d = heads.head_dim;
    let StepBatch { wanted, levels, plans, .. } = batch;
    assert_eq!(
        (out.rows, out.width),
        (levels.len(), heads.q_heads * MOST_LEVELS),
        "level_lse: room for all wanted rows"
    );
    assert_eq!(levels.len(), wanted.len(), "level_lse: levels of all wanted rows");
    let rows = out.data.par_chunks_exact_mut(heads.q_heads * MOST_LEVELS).zip(wanted.par_iter().zip(levels));
    rows.for_each(|(out, (&row, borders))| {
        let context = context(&plans[plan], row as usize);
        let queries = qkv.row(row as usize)[..heads.q_width()].chunks_exact(d);
        let group = heads.group();
        for (head, (out, query)) in out.chunks_exact_mut(MOST_LEVELS).zip(queries).enumerate() {
            let query: Vec<f32> = query.iter().map(|&x| operand(kv, x)).collect();
            for (level, lse) in out.iter_mut().enumerate() {
                let of_level = context.iter().filter(|(position, _)| borders.level(level).contains(position));
                let dot = |key: Vec<f32>| query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>();
                *lse = log_sum_exp(of_level.map(|&(_, at)| dot(kv.key(layer, head / group, at)) * scale).collect());
            }
        }
    });
}

fn log_sum_exp(scores: Vec<f32>) -> f32 {
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
            let total = log_sum_exp(head.to_vec());
            for (mass, lse) in mass.iter_mut().zip(head) {
                *mass += (lse - total).exp() / (heads * layers) as f32;
            }
        }
    }
}
