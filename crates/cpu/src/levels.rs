//! Attention attribution on the CPU: `level_lse` and `add_level_mass`. There is one implementation, which is also the
//! definition. Rows are spread over threads; the keys of a page are multiplied side by side.

use super::attention::{context, operand};
use super::kv::SLOTS;
use super::team::Team;
use super::{Cpu, CpuBuffer, KvStore};
use offshoot_backend::{Attended, AttentionLevels, LevelRow, MOST_LEVELS};
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;
use offshoot_kv::plan::AttentionPlan;

/// Rows whose attention is attributed, and the plans of their step.
pub struct CpuLevelRows {
    plans: Vec<AttentionPlan>,
    rows: Vec<LevelRow>,
}

impl AttentionLevels for Cpu {
    type LevelRows = CpuLevelRows;

    fn level_rows(&mut self, _: &KvStore, plans: &[AttentionPlan], rows: &[LevelRow]) -> Result<CpuLevelRows> {
        Ok(CpuLevelRows { plans: plans.to_vec(), rows: rows.to_vec() })
    }

    fn level_lse(&mut self, out: &mut CpuBuffer, read: &Attended<'_, Self>, rows: &CpuLevelRows) {
        level_lse(&self.cores.team, out, read, &rows.plans[read.plan], &rows.rows);
    }

    fn add_level_mass(&mut self, mass: &mut CpuBuffer, lse: &CpuBuffer, layer: LayerIx, layers: usize) {
        add_level_mass(mass, lse, layer, layers);
    }
}

fn level_lse(team: &Team, out: &mut CpuBuffer, read: &Attended<'_, Cpu>, plan: &AttentionPlan, rows: &[LevelRow]) {
    let Attended { stored: layer, qkv, kv, scoring, .. } = *read;
    let heads = kv.heads(layer);
    let d = heads.head_dim;
    assert_eq!((out.rows, out.width), (rows.len(), heads.q_heads * MOST_LEVELS), "level_lse: shape of the output");
    team.for_chunks(&mut out.data, heads.q_heads * MOST_LEVELS, |i, out| {
        let LevelRow { row, bounds } = rows[i];
        let context = context(plan, row as usize);
        let queries: Vec<f32> = qkv.row(row as usize)[..heads.q_width()].iter().map(|&x| operand(kv, x)).collect();
        let groups = queries.chunks_exact(heads.group() * d).zip(out.chunks_exact_mut(heads.group() * MOST_LEVELS));
        for (kv_head, (queries, out)) in groups.enumerate() {
            let mut scores = vec![Vec::new(); heads.group()];
            for run in context.chunk_by(|a, b| a.1.page == b.1.page) {
                let keys = kv.page_keys(layer, kv_head, run[0].1.page);
                for (scores, query) in scores.iter_mut().zip(queries.chunks_exact(d)) {
                    let dots = dots(query, &keys);
                    scores.extend(run.iter().map(|(_, at)| scoring.score(dots[at.slot as usize])));
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

/// Dot products of `query` with each slot's key; `keys` is `[head_dim][SLOTS]`.
fn dots(query: &[f32], keys: &[f32]) -> [f32; SLOTS] {
    let mut dots = [0.0; SLOTS];
    for (q, keys) in query.iter().zip(keys.as_chunks::<SLOTS>().0) {
        for (dot, k) in dots.iter_mut().zip(keys) {
            *dot += q * k;
        }
    }
    dots
}

/// `ln(sum of exp(scores))`; -inf where there are none.
fn log_sum_exp(scores: &[f32]) -> f32 {
    let most = scores.iter().fold(f32::NEG_INFINITY, |most, &score| most.max(score));
    match most {
        f32::NEG_INFINITY => most,
        _ => most + scores.iter().map(|score| (score - most).exp()).sum::<f32>().ln(),
    }
}

fn add_level_mass(mass: &mut CpuBuffer, lse: &CpuBuffer, layer: LayerIx, layers: usize) {
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
