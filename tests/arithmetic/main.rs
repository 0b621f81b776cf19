//! Tests of the ops and what is built on them: every CPU code path compared with the definition.

#[path = "../common/gguf.rs"]
mod gguf_files;
#[path = "../common/runs.rs"]
mod runs;
#[path = "../common/shared.rs"]
mod shared;
#[path = "../common/skip.rs"]
mod skip;

mod attention_levels;
mod batch_invariance;
mod bench;
mod delta_rule;
mod deterministic;
mod families;
mod gguf;
mod goldens;
mod long_decode;
mod ops;
mod quantised;
mod quantised_products;
mod ranks;
mod sampling;
mod tree_attention;
