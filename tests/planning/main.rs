//! Integers only: the prefix tree, attention plans, and jobs through the scheduler on a simulated device.

#[path = "../common/shared.rs"]
mod shared;
#[path = "../common/skip.rs"]
mod skip;

mod hints;
mod kv_scripts;
mod modelled_times;
mod plan_advance;
mod plan_costs;
mod plan_explain;
mod plans;
mod prompt_parts;
mod prompt_tree;
mod simulate;
