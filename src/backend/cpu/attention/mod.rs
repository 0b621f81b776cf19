//! Tree attention. `clear` is its definition: for each row and head, the tiles of its context are folded in rising
//! position order into one running state. The fast paths fold a tile into several rows at once: `tiles` says where a
//! tile's keys and values lie, `walk` who folds which tiles, `fold` how, in terms of `lanes`, which `avx2`, `avx512`
//! and, for the twin of the latter's bf16 dot products, `bf16_twin` supply.

mod clear;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bf16_twin;
mod fold;
mod gather;
mod lanes;
mod tiles;
mod walk;

pub(super) use clear::{context, operand};

use super::{Buffer, Isa, KvStore};
use crate::backend::Dtype;
use crate::ids::LayerIx;
use crate::plan::AttentionPlan;

/// Positions that are folded at once. A row's tiles are aligned to absolute positions, so neither planner, siblings nor
/// chunks change where its sums break.
pub const TILE: u32 = 64;

/// Memory reused from call to call.
#[derive(Default)]
pub struct Scratch {
    tiles: tiles::Tiles,
    tasks: Vec<walk::TaskMemory>,
}

/// See `Backend::tree_attention`; `isa` is one that the processor has.
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
    let heads = kv.heads(layer);
    let rows = plan.row_positions.len();
    assert_eq!((qkv.rows, qkv.width), (rows, heads.qkv_width()), "queries of all rows");
    assert_eq!((out.rows, out.width), (rows, heads.q_width()), "room for all rows");
    let Some(walk) = walk(isa, kv.dtype()) else {
        return clear::tree_attention(out, qkv, kv, layer, plan, scale);
    };
    let Scratch { tiles, tasks } = scratch;
    tiles.resolve(plan, kv.layout(layer).pair());
    let step = walk::Step { qkv, kv, layer, plan, tiles, scale };
    // SAFETY: `isa` is one that the processor has.
    unsafe { walk(&step, tasks, out) };
}

/// The walk of a path over keys and values of a dtype, where it is not the clear loops. Safe to call where the
/// processor has the path.
fn walk(isa: Isa, stored: Dtype) -> Option<unsafe fn(&walk::Step<'_>, &mut Vec<walk::TaskMemory>, &mut Buffer)> {
    match (isa, stored) {
        (Isa::Bf16Twin, Dtype::Bf16) => Some(walk::run::<bf16_twin::Bf16Dot>),
        (Isa::Portable | Isa::Bf16Twin, _) => None,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Dtype::F32) => Some(walk::run::<avx2::F32>),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Dtype::F16) => Some(walk::run::<avx2::F16>),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Dtype::Bf16) => Some(walk::run::<avx2::Bf16>),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Avx512Bf16, Dtype::F32) => Some(walk::run::<avx512::F32>),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Avx512Bf16, Dtype::F16) => Some(walk::run::<avx512::F16>),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, Dtype::Bf16) => Some(walk::run::<avx512::Bf16>),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512Bf16, Dtype::Bf16) => Some(walk::run::<avx512::Bf16Dot>),
        #[cfg(not(target_arch = "x86_64"))]
        (Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16, _) => None,
    }
}
