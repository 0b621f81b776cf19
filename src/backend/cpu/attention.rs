//! Tree attention.
use super::{Buffer, Isa, KvStore};
use crate::ids::LayerIx;
use crate::plan::AttentionPlan;

pub const TILE: u32 = 64;

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
    let _ = (isa, scratch, out, qkv, kv, layer, plan, scale);
    unimplemented!("owner: attention")
}
