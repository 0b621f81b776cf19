// How keys, or values, of a head lie in a page: PAGE_TOKENS rows, plain or swizzled. The 16-byte chunks of a swizzled
// row have changed places by the number of its slot, within 128 bytes, so that any column of eight rows below one
// another meets all banks of shared memory: a page that the copy engine brings there as it is can be multiplied. 128
// bytes of eight swizzled rows are what attention/wgmma.cuh calls 128-byte swizzle. Pages are swizzled where
// tree_attention_wgmma.cu reads them, else plain.
#pragma once

constexpr unsigned PAGE_TOKENS = 32;

// Chunk c of the row in `slot` lies at chunk c ^ swizzle_of(..); rows have 64 bytes, 128 or 256.
__host__ __device__ constexpr unsigned swizzle_of(unsigned slot, unsigned row_bytes) {
    return row_bytes == 64 ? slot / 2 % 4 : slot % 8;
}

// Where byte `byte` of the row in `slot` lies.
template <bool IS_SWIZZLED>
__device__ __forceinline__ unsigned page_place(unsigned slot, unsigned byte, unsigned row_bytes) {
    return slot * row_bytes + (IS_SWIZZLED ? byte ^ swizzle_of(slot, row_bytes) * 16 : byte);
}
