//! Measurements, each against what the machine can do at most in the same run.

pub mod gemm;
pub mod machine;
