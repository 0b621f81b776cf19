//! Grids of launches: the block size of element-wise kernels, the number of blocks for a row, and counts as kernel
//! arguments.

/// Threads of a block of kernels that do not reduce over a row.
pub const LANE_BLOCK: u32 = 128;

/// Elements per thread of an element-wise kernel, as in kernels/lanes.cuh.
pub const LANES: u32 = 8;

/// Number of blocks for a row, LANES elements per thread.
pub fn lane_blocks(elements: u32) -> u32 {
    elements.div_ceil(LANE_BLOCK * LANES)
}

/// Threads of a block of `round_rows` or `gated_silu_fp8`, which rounds a row of so many inputs: as many as have four
/// vectors each, up to those of kernels/reduce.cuh. More threads than vectors would read the last ones again.
pub fn rounding_threads(inner: usize) -> u32 {
    small(inner).div_ceil(4 * LANES).next_multiple_of(32).clamp(32, 256)
}

/// Outputs and places of a block of `expert_linear_any` and `linear_4bit_any`.
const ANY_TILE: usize = 16;

/// More blocks along the places would have nothing to do at any size that these kernels are made for.
const MOST_ANY_BLOCKS: usize = 4096;

/// Grid and threads of these kernels for places of experts. Along the places there are as many blocks as tiles may
/// exist: each expert's last one is not full.
pub fn any_grid(outputs: usize, places: usize, experts: usize) -> ([u32; 3], u32) {
    let tiles = places.min(experts + places / ANY_TILE).min(MOST_ANY_BLOCKS);
    ([small(outputs.div_ceil(ANY_TILE)), small(tiles), 1], small(ANY_TILE * ANY_TILE))
}

/// A count as a 32-bit kernel argument.
pub fn small(count: usize) -> u32 {
    u32::try_from(count).expect("rows, widths and bytes of a row are below 2^32")
}
