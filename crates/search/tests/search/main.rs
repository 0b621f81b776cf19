//! Search drivers over a sampling tree.

#[path = "../../../../tests/common/job.rs"]
mod job;

mod rollouts;
mod sampling_tree;
mod search;
mod search_drivers;
