//! The ops on an NVIDIA GPU, found at run time: nothing of CUDA is needed to build, and a machine without it says why.

pub mod args;
pub mod attention;
pub mod cache;
pub mod compile;
pub mod device;
pub mod device_plan;
pub mod event;
pub mod function;
pub mod graph;
pub mod libraries;
pub mod memory;
pub mod nvrtc;
pub mod probe;
pub mod ptxas;
pub mod unit;
pub mod units;
