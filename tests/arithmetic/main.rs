//! Tests of the ops and what is built on them: every CPU code path compared with the definition.

#[path = "../common/runs.rs"]
mod runs;

mod bench;
mod deterministic;
mod long_decode;
