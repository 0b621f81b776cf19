//! What a kernel of dense weights is: its operands, and the table of those of an instruction set. `drive` calls them.

use super::lines_ahead::LinesAhead;
use super::operand::OperandFormat;
use crate::memory::CacheLevel;
use offshoot_backend::Dtype;

/// The kernels of an instruction set.
pub struct GemmKernels {
    /// Most rows of a group: a multiple of the operand's `row_unit`.
    pub rows: usize,
    /// Panels per kernel call, for passes of so many groups of at most `rows` rows.
    pub panels: fn(rows: usize, groups: usize) -> usize,
    /// Panels of the calls for what is left of a share, largest first; the last is one.
    pub fewer_panels: &'static [usize],
    /// The format of activations, for weights of this dtype.
    pub operand: fn(Dtype) -> OperandFormat,
    /// The kernel for weights of this dtype and exactly this many rows and panels.
    pub kernel: fn(Dtype, rows: usize, panels: usize) -> GemmKernel,
    /// Passes of up to so many rows, of one group, prefetch weights soon before they are read, on processors where that
    /// pays; other passes a strip ahead.
    pub soon_rows: usize,
    /// The cache that weights of this dtype are prefetched to a strip ahead, in passes of so many groups.
    pub strip_cache: fn(Dtype, groups: usize) -> CacheLevel,
    /// Runs a thread's shares of a pass of so many rows, between what its kernels need before and after their calls.
    pub around: fn(rows: usize, shares: &mut dyn FnMut()),
}

/// The function `tile` of the type `$kernel` for `$rows` rows and `$panels` panels, of those that are listed: numbers
/// of rows, each with its numbers of panels.
#[cfg(target_arch = "x86_64")]
macro_rules! tile_of {
    ($kernel:ty, $rows:ident, $panels:ident; $($r:literal x $($p:literal)+;)+) => {
        match ($rows, $panels) {
            $($(($r, $p) => <$kernel>::tile::<$r, $p>,)+)+
            _ => unreachable!("no kernel for {} rows and {} panels", $rows, $panels),
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(in crate::gemm) use tile_of;

/// Adds the products of a tile to its sums and stores them.
///
/// # Safety
/// The processor has the kernel's instruction set, and the tile's pointers are valid for its shape.
pub type GemmKernel = unsafe fn(&GemmTile);

/// The operands of a kernel call: one strip of a group of rows, times some panels.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "kernels are for x86"))]
pub struct GemmTile {
    /// Activations; rows are the operand's `row_stride` words apart.
    pub a: *const u32,
    /// The activations of the next kernel call, or after the last those of the first, to be prefetched. They may have
    /// fewer rows than these.
    pub next_a: *const u32,
    /// Rows of the group, whose padding `a` and `sums` have too.
    pub rows: usize,
    /// The strip in the first panel. The next panel's begins `panel_bytes` later.
    pub w: *const u8,
    pub panel_bytes: usize,
    /// Words per row of the strip.
    pub words: usize,
    /// The sums of the strips before, `[rows][panels * 16]`; `None`: this is the first one.
    pub sums: Option<*const f32>,
    /// Where the sums go, and the elements from one row to the next.
    pub to: *mut f32,
    pub to_stride: usize,
    /// Whether they are added to what is there.
    pub adds: bool,
    /// The weights to prefetch: after every `prefetch_every` words one cache line of each panel.
    pub prefetch: LinesAhead,
    pub prefetch_every: usize,
}
