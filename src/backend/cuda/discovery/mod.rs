//! What of CUDA this machine has: GPUs and the driver's version (`probe`), and where NVRTC and cuBLASLt lie
//! (`libraries`). No context is made and nothing is compiled here.

pub mod libraries;
pub mod probe;
