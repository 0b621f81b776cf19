//! The measurements of `offshoot bench`, each compared with the machine's limit, which is measured in the same run.

pub mod allreduce;
pub mod attention;
pub mod batches;
pub mod decode;
pub mod delta_rule;
pub mod gemm;
mod mixtures;
pub mod products;
pub mod tables;
pub mod tree_attention;
pub mod trees;
pub mod workload_file;
pub mod workloads;
