//! Tree attention. `clear` defines it: for each row and head, the tiles of each section of the context are folded in
//! rising position order into a softmax state, and the states of the sections merge in that order. The fast paths fold
//! a tile into several rows at once: `tiles` lists the pages of each tile, `head_tasks` divides the work among threads,
//! `walk` runs a task and `prefetcher` chooses what it prefetches, `states` holds the states between calls of the
//! kernels in `fold`, written over the vector operations of `lanes` and `path`; `in_keys` makes values of keys that
//! hold them, for which `groups` has kernels. `avx2` and `avx512` implement those; `amx` has a kernel of its own, and
//! `one_row` one for single rows. Other processors than x86-64 have the clear loops alone.

mod clear;
mod splits;

#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub mod fold;
#[cfg(target_arch = "x86_64")]
mod gather;
#[cfg(target_arch = "x86_64")]
pub mod groups;
#[cfg(target_arch = "x86_64")]
pub mod head_tasks;
#[cfg(target_arch = "x86_64")]
pub mod in_keys;
#[cfg(target_arch = "x86_64")]
pub mod lanes;
#[cfg(target_arch = "x86_64")]
mod one_row;
#[cfg(target_arch = "x86_64")]
pub mod path;
#[cfg(target_arch = "x86_64")]
mod prefetcher;
#[cfg(target_arch = "x86_64")]
mod states;
#[cfg(target_arch = "x86_64")]
pub mod tiles;
#[cfg(target_arch = "x86_64")]
pub mod walk;

pub(super) use clear::{context, operand};
#[cfg(target_arch = "x86_64")]
use path::PathKernels;
pub use splits::{SECTION, TILE};

#[cfg(target_arch = "x86_64")]
use super::Isa;
use super::{Cores, CpuBuffer, KvStore};
use offshoot_backend::Scoring;
#[cfg(target_arch = "x86_64")]
use offshoot_backend::{Dtype, HeadLayout};
use offshoot_core::ids::LayerIx;
use offshoot_kv::plan::AttentionPlan;

/// Memory reused between calls.
#[derive(Default)]
pub struct AttentionScratch {
    #[cfg(target_arch = "x86_64")]
    tiles: tiles::PlanTiles,
    #[cfg(target_arch = "x86_64")]
    walk: walk::WalkScratch,
}

/// See `Backend::tree_attention`. If there is `lse`, `[R, q_heads]`, it becomes the natural log-sum-exps of the
/// results; a row that sees nothing has zeros and -inf. The processor must support the path of `cores`.
#[allow(clippy::too_many_arguments)]
pub fn tree_attention(
    cores: &Cores,
    scratch: &mut AttentionScratch,
    out: &mut CpuBuffer,
    qkv: &CpuBuffer,
    kv: &KvStore,
    layer: LayerIx,
    plan: &AttentionPlan,
    scoring: Scoring<'_, Vec<f32>>,
    lse: Option<&mut CpuBuffer>,
) {
    let heads = kv.heads(layer);
    let rows = plan.row_positions.len();
    assert!(qkv.rows == rows && qkv.width >= heads.q_width(), "tree_attention: shape of qkv");
    assert_eq!((out.rows, out.width), (rows, heads.out_width()), "tree_attention: shape of the output");
    assert!(scoring.sinks.is_none_or(|sinks| sinks.len() == heads.q_heads), "tree_attention: a sink for each head");
    let has_room = lse.as_ref().is_none_or(|lse| (lse.rows, lse.width) == (rows, heads.q_heads));
    assert!(has_room, "tree_attention: shape of the log-sum-exps");
    #[cfg(target_arch = "x86_64")]
    if let Some(kernels) = fast_path(cores.isa, kv.dtype(), heads) {
        let AttentionScratch { tiles, walk: walk_scratch } = scratch;
        // Slots that share a word of values with others are cleared where values lie in keys.
        let pair = if heads.values_in_keys() { 1 } else { kv.layout(layer).pair() };
        tiles.resolve(plan, pair);
        let call = walk::AttentionCall { qkv, kv, layer, plan, tiles, scoring };
        // SAFETY: the processor supports the path.
        return unsafe { walk::run(&cores.team, &call, &kernels, walk_scratch, out, lse) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (cores, scratch);
    clear::tree_attention(out, qkv, kv, layer, plan, scoring, lse);
}

/// The fast path of `isa` over keys and values of dtype `stored` with these heads; `None` where the clear loops
/// are used. The kernels may only be called if the processor supports `isa`.
#[cfg(target_arch = "x86_64")]
fn fast_path(isa: Isa, stored: Dtype, heads: HeadLayout) -> Option<PathKernels> {
    match (isa, stored) {
        (Isa::Portable, _) => None,
        (Isa::Avx2, Dtype::F32) => Some(PathKernels::in_groups::<avx2::Avx2F32>()),
        (Isa::Avx2, Dtype::F16) => Some(PathKernels::widening::<avx2::Avx2F16>()),
        (Isa::Avx2, Dtype::Bf16) => Some(PathKernels::widening::<avx2::Avx2Bf16>()),
        (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, Dtype::F32) => Some(PathKernels::in_groups::<avx512::Avx512F32>()),
        (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, Dtype::F16) => Some(PathKernels::widening::<avx512::Avx512F16>()),
        (Isa::Avx512, Dtype::Bf16) => Some(PathKernels::widening::<avx512::Avx512Bf16>()),
        (Isa::Amx, Dtype::Bf16) if amx::takes(heads.head_dim) && amx::takes(heads.value_dim()) => {
            Some(PathKernels::of::<amx::AmxBf16>())
        }
        (Isa::Avx512Bf16 | Isa::Amx, Dtype::Bf16) => Some(PathKernels::in_groups::<avx512::Avx512Bf16Dot>()),
    }
}
