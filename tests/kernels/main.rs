//! The CUDA backend without and with a GPU: kernels compiled, emulated and, where there is one, run.

#[path = "../common/skip.rs"]
mod skip;

mod cuda_compile;
mod cuda_members;
mod device_check;
