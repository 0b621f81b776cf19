//! Task files whose searches run: choices, votes that stop early, tree of thoughts.

#[path = "../../../../tests/common/job.rs"]
mod job;
#[path = "../../../../tests/common/shared.rs"]
mod shared;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod choices;
mod stopping;
mod tree_of_thought;
