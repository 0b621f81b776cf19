//! Tree attention. `clear` is its definition: for each row and head, the tiles of its context are folded in rising position
//! order into one running state. This file chooses the instruction path and holds what is reused between calls.

mod clear;

use super::{Buffer, Isa, KvStore};
use crate::ids::LayerIx;
use crate::plan::AttentionPlan;

/// Positions that are folded at once. A row's tiles are aligned to absolute positions, so neither planner, siblings nor chunks
/// change where its sums break.
pub const TILE: u32 = 64;

/// Memory reused from call to call.
#[derive(Default)]
pub struct Scratch {}

#[allow(clippy::too_many_arguments)]
pub fn tree_attention(
    isa: Isa,
    scratch: &mut Scratch,
    out: &mut Buffer,
    qkv: &Buffer,
    kv: &KvStore,
    layer: LayerIx,
    plan: &AttentionPlan,
    scale: f32,
) {
    let _ = (isa, scratch);
    clear::tree_attention(out, qkv, kv, layer, plan, scale);
}
