//! The measurements of the `bench` subcommand, each compared with the limit of the machine, measured in the same run.

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
