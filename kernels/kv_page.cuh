// Layout of the keys, or values, of one head in a page: PAGE_TOKENS rows, plain or swizzled. A swizzled row stores its
// 16-byte chunks in an order that depends on the slot number, permuted within 128 bytes, so that reading one column of
// eight consecutive rows touches all shared-memory banks. A page that the copy engine brings to shared memory unchanged
// can thus be multiplied directly. Eight swizzled rows of 128 bytes are the "128-byte swizzle" of attention/wgmma.cuh.
// Pages are swizzled where tree_attention_wgmma.cu reads them, else plain.
#pragma once

constexpr unsigned PAGE_TOKENS = 32;

// Chunk c of the row in `slot` is stored at chunk c ^ swizzle_of(..). Rows have 64, 128 or 256 bytes.
__host__ __device__ constexpr unsigned swizzle_of(unsigned slot, unsigned row_bytes) {
    return row_bytes == 64 ? slot / 2 % 4 : slot % 8;
}

// Byte offset within the page of byte `byte` of the row in `slot`.
template <bool IS_SWIZZLED>
__device__ __forceinline__ unsigned page_place(unsigned slot, unsigned byte, unsigned row_bytes) {
    return slot * row_bytes + (IS_SWIZZLED ? byte ^ swizzle_of(slot, row_bytes) * 16 : byte);
}
