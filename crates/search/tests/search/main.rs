//! Search drivers over a sampling tree.

#[path = "../../../../tests/common/job.rs"]
mod job;

mod comparing;
mod confidence;
mod confident_votes;
mod forms;
mod particles;
mod rollout_searches;
mod rollouts;
mod sampling_tree;
mod scorers;
mod search;
mod search_drivers;
