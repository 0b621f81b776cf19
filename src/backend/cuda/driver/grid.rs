//! Grids of launches: the block that element-wise kernels share, how many of them cover a row, and counts as kernels
//! take them.

/// Threads of a block of the kernels that take no sums over a row.
pub const LANE_BLOCK: u32 = 128;

/// Elements that a thread of an element-wise kernel takes at once, as in kernels/lanes.cuh.
const LANES: u32 = 8;

/// Blocks over the elements of a row, LANES to a thread.
pub fn lane_blocks(elements: u32) -> u32 {
    elements.div_ceil(LANE_BLOCK * LANES)
}

/// A count as the 32-bit word that kernels take.
pub fn small(count: usize) -> u32 {
    u32::try_from(count).expect("rows, widths and bytes of a row are below 2^32")
}
