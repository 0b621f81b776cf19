//! Tree attention. `clear` is its definition: for each row and head, the tiles of its context are folded in rising position
//! order into one running state. The fast paths fold a tile into several rows at once: `tiles` says where a tile's keys and
//! values lie, `walk` who folds which tiles, `fold` how, in terms of `lanes`, which `avx2` and `avx512` supply.

mod clear;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod fold;
#[cfg(target_arch = "x86_64")]
mod gather;
#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod walk;

pub(super) use clear::{context, operand};

use super::{Buffer, Isa, KvStore};
#[cfg(target_arch = "x86_64")]
use crate::backend::Dtype;
use crate::ids::LayerIx;
use crate::plan::AttentionPlan;

/// Positions that are folded at once. A row's tiles are aligned to absolute positions, so neither planner, siblings nor chunks
/// change where its sums break.
pub const TILE: u32 = 64;

/// Memory reused from call to call.
#[derive(Default)]
pub struct Scratch {
    #[cfg(target_arch = "x86_64")]
    tiles: tiles::Tiles,
    #[cfg(target_arch = "x86_64")]
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
    #[cfg(target_arch = "x86_64")]
    if isa != Isa::Clear {
        let Scratch { tiles, tasks } = scratch;
        tiles.resolve(plan, kv.layout(layer).pair());
        let step = walk::Step { qkv, kv, layer, plan, tiles, scale };
        // SAFETY: `isa` is one that the processor has.
        return unsafe {
            match (isa, kv.dtype()) {
                (Isa::Clear, _) => unreachable!("the clear loops are below"),
                (Isa::Avx2, Dtype::F32) => walk::run::<avx2::F32>(&step, tasks, out),
                (Isa::Avx2, Dtype::F16) => walk::run::<avx2::F16>(&step, tasks, out),
                (Isa::Avx2, Dtype::Bf16) => walk::run::<avx2::Bf16>(&step, tasks, out),
                (Isa::Avx512 | Isa::Avx512Bf16, Dtype::F32) => walk::run::<avx512::F32>(&step, tasks, out),
                (Isa::Avx512 | Isa::Avx512Bf16, Dtype::F16) => walk::run::<avx512::F16>(&step, tasks, out),
                (Isa::Avx512, Dtype::Bf16) => walk::run::<avx512::Bf16>(&step, tasks, out),
                (Isa::Avx512Bf16, Dtype::Bf16) => walk::run::<avx512::Bf16Dot>(&step, tasks, out),
            }
        };
    }
    let _ = (isa, scratch);
    clear::tree_attention(out, qkv, kv, layer, plan, scale);
}
