//! How the rows of swizzled pages lie, for suites that lay out pages themselves.

/// Where byte `byte` of the row in `slot` lies among the rows of a swizzled page (kernels/kv_page.cuh): the definition.
pub fn swizzled_place(slot: usize, byte: usize, row_bytes: usize) -> usize {
    let turn = if row_bytes == 64 { slot / 2 % 4 } else { slot % 8 };
    let (chunk, within) = (byte / 16, byte % 16);
    slot * row_bytes + (chunk ^ turn) * 16 + within
}
