//! The sampling tree: the append-only record of a search on one problem, and the search's handle on the engine. `fork`,
//! `extend`, `score` and `prune` are all that a driver needs; `start` is `extend` with events, for drivers that stream,
//! judge or cancel siblings while others continue. The engine manages keys and values: pruning releases a branch but
//! never changes the record.

mod extension;
mod forms;
mod nodes;
mod probe;
mod questions;
mod sampling_tree;
mod trace;

pub use extension::{Extension, Growth, TreeEvent, UnappliedEvent};
pub use nodes::{NodeState, ThoughtNode, TokenRun};
pub use probe::{After, LogProb, Probe};
pub use questions::TreeCost;
pub use sampling_tree::{Prompt, SamplingTree};
pub use trace::{Trace, TraceNode};
