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

/// A count as a 32-bit kernel argument.
pub fn small(count: usize) -> u32 {
    u32::try_from(count).expect("rows, widths and bytes of a row are below 2^32")
}
