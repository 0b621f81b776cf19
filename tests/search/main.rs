//! Search drivers over a sampling tree.

#[path = "../common/job.rs"]
mod job;
#[path = "../common/shared.rs"]
mod shared;
#[path = "../common/skip.rs"]
mod skip;

mod choices;
mod sampling_tree;
mod search;
mod search_drivers;
mod stopping;
mod tree_of_thought;
