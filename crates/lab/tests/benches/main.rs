//! Measuring: what each bench prints, the files that it reads, and the simulated device beside what was measured.

#[path = "../../../../tests/common/full.rs"]
mod full;
#[path = "../common/lab.rs"]
mod lab;
#[path = "../../../../tests/command/mutations.rs"]
mod mutations;
#[path = "../../../../tests/common/shared.rs"]
mod shared;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod bench;
mod modelled_times;
mod workload_files;
