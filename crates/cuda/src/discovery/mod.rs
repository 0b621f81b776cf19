//! Finds CUDA on this machine: GPUs and the driver's version (`probe`), NVRTC and cuBLASLt (`libraries`). Makes no
//! context and compiles nothing.

pub mod libraries;
pub mod probe;
