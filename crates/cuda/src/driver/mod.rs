//! The CUDA driver in a thin safe layer: one device with its stream, memory and copies, kernels and their arguments,
//! events and captured graphs. What to launch is left to the folders above.

pub mod args;
pub mod branch;
pub mod copies;
pub mod device;
pub mod event;
pub mod function;
pub mod graph;
pub mod grid;
mod launch;
pub mod mapped;
pub mod memory;
mod modules;
mod outside;
pub mod tensor_map;
