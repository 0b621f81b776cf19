//! The CPU backend. Every op has a clear loop that defines it (`Isa::Portable`) and, where it pays, faster paths. The
//! path is chosen once, at start, from the instruction sets of the processor. Ops run on the backend's own threads
//! (`team`); only loading uses rayon. `cpu` dispatches each op to its module.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`. Much is public for the
//! tests below `tests/` alone: the library takes a minute to compile, so tests inside it would cost another.

mod activation;
#[cfg(target_arch = "x86_64")]
pub mod amx;
pub mod attention;
mod buffer;
mod causal_conv;
mod columns;
mod cpu;
pub mod exp;
mod experts;
mod fabric;
mod gated_norm;
pub mod gemm;
pub mod isa;
pub mod kv;
mod latent;
mod levels;
mod lora;
pub mod machine;
pub mod memory;
mod norm;
mod ranked;
mod rope;
pub mod rows;
pub mod sampling;
mod selective_scan;
mod state_update;
mod states;
pub mod step;
mod sums;
pub mod team;
#[cfg(target_arch = "x86_64")]
pub mod tile_order;
mod timed;

pub use buffer::CpuBuffer;
pub use cpu::Cpu;
pub use experts::{CpuExperts, CpuRoutes};
pub use fabric::CpuFabric;
pub use gemm::CpuWeights;
pub use isa::Isa;
pub use kv::KvStore;
pub use latent::{CpuLatentMaps, LATENT_MAP_COPIES};
pub use levels::CpuLevelRows;
pub use lora::{CpuLora, CpuLoraTerm};
pub use step::CpuStep;
pub use team::{Cores, Team};
