//! The definitions of `level_lse` and `add_level_mass`, row by row; rows are spread over threads. The keys of a page
//! are multiplied side by side, as they lie, and there is no other way beside this one.

use rayon::prelude::*;

use super::attention::{context, operand};
use super::kv::SLOTS;
use super::{Buffer, Cpu, KvStore};
use crate::backend::{Attended, AttentionLevels, LevelRow, MOST_LEVELS};
use crate::error::Result;
use crate::ids::LayerIx;
use crate::plan::AttentionPlan;

/// Rows whose attention is attributed, and what they see.
pub struct LevelRows {
    plans: Vec<AttentionPlan>,
    rows: Vec<LevelRow>,
}

impl AttentionLevels for Cpu {
    type LevelRows = LevelRows;

    fn level_rows(&mut self, _: &KvStore, plans: &[AttentionPlan], rows: &[LevelRow]) -> Result<LevelRows> {
        Ok(LevelRows { plans: plans.to_vec(), rows: rows.to_vec() })
    }

    fn level_lse(&mut self, out: &mut Buffer, read: &Attended<'_, Self>, rows: &LevelRows) {
        level_lse(out, read, &rows.plans[read.plan], &rows.rows);
    }

    fn add_level_mass(&mut self, mass: &mut Buffer, lse: &Buffer, layer: LayerIx, layers: usize) {
        add_level_mass(mass, lse, layer, layers);
    }
}

fn level_lse(out: &mut Buffer, read: &Attended<'_, Cpu>, plan: &AttentionPlan, rows: &[LevelRow]) {
    let Attended { layer, qkv, kv, scale, .. } = *read;
    let heads = kv.heads(layer);
    let d = heads.head_dim;
    assert_eq!((out.rows, out.width), (rows.len(), heads.q_heads * MOST_LEVELS), "level_lse: shape of the output");
    let rows = out.data.par_chunks_exact_mut(heads.q_heads * MOST_LEVELS).zip(rows);
    rows.for_each(|(out, &LevelRow { row, bounds })| {
        let context = context(plan, row as usize);
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
                    let range = bounds.level(level);
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

fn add_level_mass(mass: &mut Buffer, lse: &Buffer, layer: LayerIx, layers: usize) {
    assert_eq!((mass.rows, mass.width), (lse.rows, MOST_LEVELS), "add_level_mass: shape of the sums");
    if layer.ix() == 0 {
        mass.data.fill(0.0);
    }
    let heads = lse.width / MOST_LEVELS;
    for (row, mass) in mass.data.chunks_exact_mut(MOST_LEVELS).enumerate() {
        for head in lse.row(row).chunks_exact(MOST_LEVELS) {
            let total = log_sum_exp(head);
            for (mass, lse) in mass.iter_mut().zip(head) {
                *mass += (lse - total).exp() / (heads * layers) as f32;
            }
        }
    }
}
