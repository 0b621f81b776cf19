//! The judge: verdicts, the sandbox and the files of the benchmarks.

#[path = "../common/busy.rs"]
mod busy;
#[path = "../common/compiler.rs"]
mod compiler;
#[path = "../common/judging.rs"]
mod judging;
#[path = "../common/parquet.rs"]
mod parquet_files;
#[path = "../common/sandbox.rs"]
mod sandbox_setup;
#[path = "../common/shared.rs"]
mod shared;
#[path = "../common/signals.rs"]
mod signals;
#[path = "../common/skip.rs"]
mod skip;

mod benchmark_files;
mod in_searches;
mod judge_command;
mod judge_files;
mod judge_python;
mod python_data;

/// The program that the sandbox starts as its helper.
const HELPER: &str = env!("CARGO_BIN_EXE_offshoot");
