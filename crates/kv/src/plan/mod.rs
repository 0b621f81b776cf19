//! Divides one step's attention. An [`AttentionPlan`] lists work items (rows x KV spans -> one partial state per row
//! and head) and how partials merge; sharing or not sharing a prefix is only a different plan. Planners are functions
//! from a [`Forest`] to a plan, chosen by [`Planner`]; they compute with integers only and know neither model nor
//! device. Latent attention has several plans, by the form in which an item is read ([`FormPlans`]).
//!
//! # Whole tiles
//! Floating-point addition is not associative, so *where* a reduction breaks changes bits. Backends that promise
//! batch-invariant logits reduce over *tiles*: absolute positions `[k*tile, (k+1)*tile)`. Every planner keeps each tile
//! of a row's context inside one item (`PlanHints::tile`), so that planners decide only which rows share an item. Where
//! a segment ends inside a tile, the tile's part of that segment is a span of its descendants' items. `tile == 1`
//! allows items to break anywhere.

mod advance;
mod attention_plan;
mod balanced;
mod builder;
mod check;
mod cost;
mod explain;
mod form_choice;
mod forms;
mod gpus;
mod latents;
mod member;
mod parts;
mod single_level;
mod stats;
mod tree;

use serde::{Deserialize, Serialize};

pub use advance::{NewPage, of_group};
pub use attention_plan::{AttentionPlan, Csr, GrowingSpan, KvSpan, Member, WorkItem};
pub use balanced::Weighed;
pub use check::PlanFault;
pub use cost::{CostModel, PlanHints, Split, Tiles};
pub use explain::{Explained, ExplainedForm, Treatment, explain};
pub use form_choice::WhySlower;
pub use forms::{CopyRoom, FormPlans, LatentForm, LatentFormChoice};
pub use latents::{LatentHints, LatentRates};
pub use stats::PlanStats;

use crate::Forest;

use offshoot_core::named;

/// The choice of planner.
#[warn(missing_docs)]
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

named!(Planner { Flat = "flat", SingleLevel = "single", Tree = "tree", Balanced = "balanced" });

impl Planner {
    /// Plans the step's attention. Every result passes `AttentionPlan::check`.
    pub fn plan(self, forest: &Forest, hints: &PlanHints) -> AttentionPlan {
        let plan = match self {
            Planner::Flat => single_level::flat(forest, hints),
            Planner::SingleLevel => single_level::plan(forest, hints),
            Planner::Tree => tree::plan(forest, hints),
            Planner::Balanced => balanced::plan(forest, hints),
        };
        debug_assert_eq!(plan.check(forest), Ok(()));
        plan
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
