//! What the planners are told, for tests of plans.

use offshoot_core::ids::GroupIx;
use offshoot_kv::plan::{CostModel, PlanHints};

/// Llama-3-8B's heads; tiles of one position as on the GPU, larger ones as on the CPU.
pub fn hints(tile: u32, window: Option<u32>) -> PlanHints {
    let cost = if tile == 1 { CostModel::CUDA } else { CostModel::CPU };
    PlanHints {
        tile,
        group: GroupIx(0),
        window,
        q_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        kv_element_bytes: 2,
        latents: None,
        cost,
    }
}
