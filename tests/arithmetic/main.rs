//! The ops and what is built of them: every path of arithmetic against its definition.

#[path = "../common/runs.rs"]
mod runs;
#[path = "../common/shared.rs"]
mod shared;
#[path = "../common/skip.rs"]
mod skip;

mod attention_levels;
mod batch_invariance;
mod bench;
mod deterministic;
mod goldens;
mod long_decode;
mod ops;
mod sampling;
mod tree_attention;
