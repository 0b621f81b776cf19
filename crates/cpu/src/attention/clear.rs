//! The definition of tree attention: one row, head, tile and position at a time. The fast paths sum in other orders,
//! but each of them in an order that does not depend on what else is in the step.

use super::splits::{SECTION, TILE};
use crate::{CpuBuffer, Isa, KvStore};
use offshoot_backend::Scoring;
use offshoot_core::ids::LayerIx;
use offshoot_kv::KvSlot;
use offshoot_kv::plan::AttentionPlan;

/// Softmax state of a section of one row and head: `m` is the largest score so far, `l` the sum of `exp(s - m)`, `o`
/// the sum of `exp(s - m) v`.
struct SoftmaxState {
    o: Vec<f32>,
    m: f32,
    l: f32,
}

pub fn tree_attention(
    out: &mut CpuBuffer,
    qkv: &CpuBuffer,
    kv: &KvStore,
    layer: LayerIx,
    plan: &AttentionPlan,
    scoring: Scoring<'_, Vec<f32>>,
    mut lse: Option<&mut CpuBuffer>,
) {
    let heads = kv.heads(layer);
    let (d, value_dim) = (heads.head_dim, heads.value_dim());
    for row in 0..plan.row_positions.len() {
        let context = context(plan, row);
        for head in 0..heads.q_heads {
            let kv_head = head / heads.group();
            let q: Vec<f32> = qkv.row(row)[head * d..][..d].iter().map(|&x| operand(kv, x)).collect();
            let state_of = |section: &[(u32, KvSlot)], sink| {
                let mut state = SoftmaxState::new(value_dim, sink);
                for tile in section.chunk_by(|a, b| a.0 / TILE == b.0 / TILE) {
                    state.fold(kv, layer, kv_head, tile, &q, &scoring);
                }
                state
            };
            let mut sections = context.chunk_by(|a, b| a.0 / SECTION == b.0 / SECTION);
            let mut state = state_of(sections.next().unwrap_or_default(), scoring.sinks.map(|sinks| sinks[head]));
            sections.for_each(|section| state.merge(&state_of(section, None)));
            let width = out.width;
            let out = &mut out.data[row * width + head * value_dim..][..value_dim];
            for (y, o) in out.iter_mut().zip(&state.o) {
                *y = o / state.l;
            }
            if let Some(lse) = &mut lse {
                lse.data[row * heads.q_heads + head] = state.m + state.l.ln();
                // A row that sees nothing of a member's positions.
                if state.l == 0.0 {
                    out.fill(0.0);
                }
            }
        }
    }
}

/// The positions `row` attends to, rising as the plan counts them, each with its slot.
pub fn context(plan: &AttentionPlan, row: usize) -> Vec<(u32, KvSlot)> {
    let seen = plan.seen(row);
    let items = plan.merge.offsets[row] as usize..plan.merge.offsets[row + 1] as usize;
    let mut context = Vec::new();
    for &item in &plan.merge.values[items] {
        let spans = &plan.items[item as usize].spans;
        for span in &plan.spans[spans.start as usize..spans.end as usize] {
            let first_page = span.first_position / plan.page_tokens;
            for p in (span.first_position..span.first_position + span.tokens).filter(|p| seen.contains(p)) {
                let page = span.pages.start + p / plan.page_tokens - first_page;
                context.push((p, KvSlot { page: plan.pages[page as usize], slot: p % plan.page_tokens }));
            }
        }
    }
    context
}

/// `x` rounded as an operand of a product with stored keys or values.
pub fn operand(kv: &KvStore, x: f32) -> f32 {
    Isa::Portable.attention_operand(kv.dtype()).round(x)
}

impl SoftmaxState {
    /// The state of no positions. A sink is a score of its own: it counts in the sum and adds no value.
    fn new(value_dim: usize, sink: Option<f32>) -> Self {
        let l = if sink.is_some() { 1.0 } else { 0.0 };
        SoftmaxState { o: vec![0.0; value_dim], m: sink.unwrap_or(f32::NEG_INFINITY), l }
    }

    /// Adds the positions of another section, behind all of its own.
    fn merge(&mut self, next: &SoftmaxState) {
        let m = self.m.max(next.m);
        let (before, after) = ((self.m - m).exp(), (next.m - m).exp());
        self.m = m;
        self.l = self.l * before + next.l * after;
        self.o.iter_mut().zip(&next.o).for_each(|(o, next)| *o = *o * before + next * after);
    }

    /// Adds the positions of one tile.
    fn fold(
        &mut self,
        kv: &KvStore,
        layer: LayerIx,
        kv_head: usize,
        tile: &[(u32, KvSlot)],
        q: &[f32],
        scoring: &Scoring<'_, Vec<f32>>,
    ) {
        let dot = |k: Vec<f32>| q.iter().zip(k).map(|(q, k)| q * k).sum::<f32>();
        let score = |at: KvSlot| scoring.score(dot(kv.key(layer, kv_head, at)));
        let scores: Vec<f32> = tile.iter().map(|&(_, at)| score(at)).collect();
        let m = scores.iter().fold(self.m, |m, &s| m.max(s));
        let shrink = (self.m - m).exp();
        self.m = m;
        self.l *= shrink;
        self.o.iter_mut().for_each(|o| *o *= shrink);
        for (s, &(_, at)) in scores.iter().zip(tile) {
            let p = (s - m).exp();
            self.l += p;
            let p = operand(kv, p);
            self.o.iter_mut().zip(kv.value(layer, kv_head, at)).for_each(|(o, v)| *o += p * v);
        }
    }
}
