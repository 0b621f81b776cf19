//! Integers only: the prefix tree and attention plans.

mod copies;
mod forms;
#[path = "../../../../tests/common/full.rs"]
mod full;
mod hints;
mod kv_eviction;
mod kv_match_costs;
mod kv_scores;
mod kv_scripts;
mod kv_sharing;
mod kv_windows;
mod plan_advance;
mod plan_costs;
mod plan_explain;
mod plans;
mod prompt_parts;
mod prompt_tree;
