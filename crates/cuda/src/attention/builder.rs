//! A plan that is being built: what its parts share. `openings` finds what rows compute once, `tiling` lists KV blocks
//! and row tiles, `encode` writes the words.

use super::device_plan::DevicePlan;
use super::layout::Tiling;
use super::tiles::TilingScratch;
use offshoot_backend::HeadLayout;
use offshoot_kv::plan::AttentionPlan;

pub(super) struct PlanBuilder<'a> {
    pub plan: &'a AttentionPlan,
    pub heads: HeadLayout,
    pub tiling: &'a Tiling,
    pub scratch: &'a mut TilingScratch,
    pub output: &'a mut DevicePlan,
    /// Packed rows per row, and most whole rows of a tile: one, or a part of one, if a group fills a tile.
    pub group: u32,
    pub rows_a_tile: u32,
    /// Whether each tile of the plan (`AttentionPlan::tile`) makes exactly one state of a row.
    pub keeps_tiles: bool,
    /// Number of KV blocks listed so far.
    pub kv_blocks: u32,
}
