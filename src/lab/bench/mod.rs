//! Floor 8: what the `bench` subcommand measures, each figure beside what the machine can do at most in the same run.

pub mod attention;
pub mod batches;
pub mod chart;
pub mod decode;
pub mod gemm;
pub mod products;
pub mod tables;
pub mod tree_attention;
pub mod trees;
pub mod workload_file;
pub mod workloads;
