//! The ops on an NVIDIA GPU, found at run time: nothing of CUDA is needed to build, and a machine without it says why.

pub mod args;
pub mod attention;
pub mod buffer;
pub mod cache;
pub mod compile;
pub mod cublaslt;
pub mod device;
pub mod device_plan;
pub mod event;
pub mod function;
pub mod gemm;
pub mod graph;
pub mod kv;
pub mod libraries;
pub mod memory;
pub mod nvrtc;
pub mod ops;
pub mod probe;
pub mod ptxas;
pub mod staging;
pub mod token_word;
pub mod unit;
pub mod units;
pub mod weights;
