//! Linear layers: `stack` divides a matrix into pieces of one format, which are dense (`dense`) or codes (`coded`),
//! quantised or in blocks; `grouped` has those of experts. Of dense weights there are the panels (`pack`), the clear
//! loops (`clear`), and the fast path: activations packed for the kernels (`operand`), the loops over rows and panels
//! (`drive`), which threads share out (`shares`), the lines that are prefetched (`lines_ahead`), and the kernels
//! (`kernel`) of each instruction set. Which operands may be rounded is stated in [`offshoot_backend`].
//!
//! Every output is one sequence of sums over the inputs in rising order, whatever the number of rows: the work is
//! divided by rows and outputs, never along the sum.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
pub mod blocks;
mod clear;
mod coded;
mod dense;
mod drive;
mod grouped;
mod kernel;
pub mod lines_ahead;
#[cfg(target_arch = "x86_64")]
mod one_row;
pub mod operand;
mod output;
pub mod pack;
mod quantised;
pub mod row_groups;
pub mod shares;
mod stack;
#[cfg(target_arch = "x86_64")]
mod widening;

pub use dense::linear;
pub use drive::DenseScratch;
pub use grouped::{expert_linear, grouped_dense, linear_dense};
pub use pack::CpuMatrix;
pub use stack::{CpuWeights, GemmScratch, Piece, add_rows, embed, linear_stack};
