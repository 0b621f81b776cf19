//! Launches of tree attention: which kernel computes which element type and head width, its tiles and shared memory, and the
//! arguments of `tree_attention` and `merge_states`. Plans become words in `device_plan`; who owns the buffers is the
//! backend's business.

use super::args::Args;
use super::device::Device;
use super::device_plan::Tiling;
use super::function::Function;
use super::memory::Memory;
use super::probe::DeviceFacts;
use super::unit::Unit;
use super::units;
use crate::backend::{Dtype, HeadLayout};
use crate::error::Result;

/// Threads of a block of either attention kernel.
const THREADS: u32 = 128;
/// Blocks of the tensor-core kernel on a multiprocessor.
const BLOCKS: usize = 2;
/// Heads that a block of `merge_states` computes, a warp each.
const MERGE_HEADS: usize = 8;
/// Packed rows of a narrow tile; the plain kernel knows no other.
const NARROW_ROWS: usize = 16;
/// The widest head of either kernel.
pub const MOST_HEAD_DIM: usize = 256;

/// Which kernel serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// `tree_attention`: f16 and bf16, head widths that are multiples of 16.
    TensorCores,
    /// `tree_attention_any`: all else.
    Any,
}

/// Element type and head width: what the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    element: Dtype,
    head_dim: usize,
}

impl Shape {
    fn path(self) -> Path {
        match self.element != Dtype::F32 && self.head_dim.is_multiple_of(16) {
            true => Path::TensorCores,
            false => Path::Any,
        }
    }

    /// Packed rows of the widest tile, as `WIDEST` of kernels/attention_tile.cuh.
    fn wide_rows(self) -> Option<usize> {
        match self.path() {
            Path::TensorCores if self.head_dim <= 128 => Some(128),
            Path::TensorCores => Some(64),
            Path::Any => None,
        }
    }

    /// Dynamic shared memory of a block, as `SHARED_BYTES` of kernels/attention_tile.cuh and tree_attention_any.cu.
    fn shared_bytes(self, facts: &DeviceFacts) -> usize {
        match self.path() {
            Path::TensorCores => {
                let kilobytes = match (facts.major, facts.minor) {
                    (8, 0 | 7) => 163,
                    (8 | 12.., _) => 99,
                    _ => 227,
                };
                let whole = kilobytes == 99 && self.head_dim > 96;
                (if whole { kilobytes - 2 } else { kilobytes / 2 - 2 }) * 1024
            }
            Path::Any => (2 * 32 * (self.head_dim + 1) + NARROW_ROWS * self.head_dim) * size_of::<f32>(),
        }
    }

    fn unit(self, kernel: &str) -> Unit {
        let element = match self.element {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        };
        Unit::new(units::source(kernel)).define("ELEMENT", element).define("HEAD_DIM", self.head_dim)
    }

    fn attention_unit(self) -> (Unit, &'static str) {
        let name = match self.path() {
            Path::TensorCores => "tree_attention",
            Path::Any => "tree_attention_any",
        };
        (self.unit(name), name)
    }

    fn merge_unit(self) -> Unit {
        self.unit("merge_states")
    }
}
