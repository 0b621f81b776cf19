//! The library part of `offshoot check`: the facts of a model folder, its arithmetic against golden files, its promise
//! that chunks change no bit, and what rounded keys and values do to it. Reports are printable; exit codes are the
//! command line's.

mod chunks;
mod facts;
mod golden;
mod golden_file;
mod kv_rounding;

pub use chunks::{ChunkReport, chunks};
pub use facts::{Facts, facts};
pub use golden::{CaseReport, GoldenReport, Miss, golden, golden_cases, tolerance};
pub use golden_file::{GoldenCase, read_golden};
pub use kv_rounding::{RoundingReport, kv_rounding};
