//! Divides one step's attention. An [`AttentionPlan`] lists work items (rows x KV spans -> one partial state per row and
//! head) and how partials merge; sharing or not sharing a prefix is only a different plan. Planners are functions from a
//! [`Forest`] to a plan, chosen by [`Planner`]; they compute with integers only and know neither model nor device.
//!
//! # Whole tiles
//! Floating-point addition is not associative, so *where* a reduction breaks changes bits. Backends that promise
//! batch-invariant logits reduce over *tiles*: absolute positions `[k*tile, (k+1)*tile)`. Every planner keeps each tile
//! of a row's context inside one item (`PlanHints::tile`), so that planners decide only which rows share an item. Where
//! a segment ends inside a tile, the tile's part of that segment is a span of its descendants' items. `tile == 1`
//! allows items to break anywhere.

mod advance;
mod balanced;
mod builder;
mod check;
mod cost;
mod explain;
mod flat;
mod gpus;
mod member;
mod single_level;
mod stats;
mod tree;

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use advance::{GrowingSpan, NewPage, of_group};
pub use balanced::Weighed;
pub use check::PlanFault;
pub use cost::{CostModel, Split, Tiles};
pub use explain::{Explained, Treatment, explain};
pub use gpus::{Gpu, Origin};
pub use member::Member;
pub use stats::PlanStats;

use crate::Forest;
use offshoot_core::ids::{GroupIx, PageId};

/// Contiguous keys and values of one segment: `tokens` tokens from absolute position `first_position`, in `pages` (a
/// range of `AttentionPlan::pages`), the first of them in slot `first_position % page_tokens` of the first page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSpan {
    pub pages: Range<u32>,
    pub first_position: u32,
    pub tokens: u32,
}

/// Rows x spans -> one partial (o, m, l) per row and head. Spans are in rising, adjoining positions, and belong to
/// segments on the path of every row. A row may see nothing of an item that holds it; its partial is then the empty one
/// (l = 0).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkItem {
    pub rows: Range<u32>,
    /// Range into `AttentionPlan::spans`.
    pub spans: Range<u32>,
}

/// Compressed lists: list `i` is `values[offsets[i] .. offsets[i + 1]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csr {
    pub offsets: Vec<u32>,
    pub values: Vec<u32>,
}

/// One step's attention, as integers. A row sees position `p` iff `p <= pos(row)` and, with a window, `pos(row) - p <
/// window`; spans may hold positions that some of the item's rows do not see: backends mask by this rule alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionPlan {
    pub page_tokens: u32,
    pub tile: u32,
    /// The page group of `pages`.
    pub group: GroupIx,
    pub window: Option<u32>,
    /// Whose positions the spans count; `None`: all.
    pub member: Option<Member>,
    /// Whether a backend may compute the first steps of a tile once for neighbouring items that begin with the same
    /// spans, and each item's rest from there. Only less than a tile is left to that: planners share whole ones.
    pub joins_beginnings: bool,
    pub items: Vec<WorkItem>,
    pub spans: Vec<KvSpan>,
    pub pages: Vec<PageId>,
    /// Absolute position of each row.
    pub row_positions: Vec<u32>,
    /// Row -> its items, in rising position order: the order in which their partials merge. Items are listed so that a
    /// row's items have rising indices.
    pub merge: Csr,
    /// For each row that is alone in its leaf segment and newest there: the span that ends with it and grows with it
    /// (see `advance`). In the order of rows.
    pub growing: Vec<GrowingSpan>,
    /// Tokens whose keys and values a plan without sharing would read; see [`PlanStats`].
    pub flat_kv_tokens: u64,
}

/// Facts of the model and the device that a planner needs.
#[derive(Clone, Copy, Debug)]
pub struct PlanHints {
    /// See the module's docs. A multiple of the page size, or 1.
    pub tile: u32,
    /// Page group of the layers this plan is for.
    pub group: GroupIx,
    /// Sliding window of these layers.
    pub window: Option<u32>,
    pub q_heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// Bytes of one stored key or value element.
    pub kv_element_bytes: u32,
    pub cost: CostModel,
}

/// The choice of planner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Planner {
    /// No sharing: every row reads its whole context alone.
    Flat,
    /// One shared level (the root segments), the rest unshared, as BatchLLM and RelayAttention.
    #[serde(rename = "single")]
    SingleLevel,
    /// All levels, one item a node, as Hydragen.
    Tree,
    /// All levels where it pays: folds short or little-shared nodes into their descendants, splits long ones.
    #[default]
    Balanced,
}

impl Planner {
    pub const ALL: [Planner; 4] = [Planner::Flat, Planner::SingleLevel, Planner::Tree, Planner::Balanced];

    /// Plans the step's attention. Every result passes `AttentionPlan::check`.
    pub fn plan(self, forest: &Forest, hints: &PlanHints) -> AttentionPlan {
        let plan = match self {
            Planner::Flat => flat::plan(forest, hints),
            Planner::SingleLevel => single_level::plan(forest, hints),
            Planner::Tree => tree::plan(forest, hints),
            Planner::Balanced => balanced::plan(forest, hints),
        };
        debug_assert_eq!(plan.check(forest), Ok(()));
        plan
    }
}

/// The planner's name on the command line and in results.
impl fmt::Display for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Planner::Flat => "flat",
            Planner::SingleLevel => "single",
            Planner::Tree => "tree",
            Planner::Balanced => "balanced",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planner_has_one_name_everywhere() {
        for planner in Planner::ALL {
            let word = planner.to_string();
            assert_eq!(serde_json::to_value(planner).expect("a word"), word);
        }
    }
}
