//! The votes of samples on an item, and when a vote is decided. Pure functions of answers; `eval::statistics` computes
//! what votes are worth over many items (maj@k, intervals).

mod decided;
mod tally;

pub use decided::{Decided, confidence};
pub use tally::{VoteTally, Votes};
