// Layout of the keys, or values, of one head in a page: PAGE_TOKENS rows, plain, swizzled or in panels. A swizzled row
// stores its 16-byte chunks in an order that depends on the slot number, permuted within 128 bytes, so that reading one
// column of eight consecutive rows touches all shared-memory banks. A page that the copy engine brings to shared memory
// unchanged can thus be multiplied directly. Eight swizzled rows of 128 bytes are the "128-byte swizzle" of
// attention/wgmma.cuh. Swizzled rows of more than 256 bytes are divided into panels of 128 bytes:
// [panel][PAGE_TOKENS][128], each swizzled as rows of 128 bytes are. Where keys and values are not equally wide, rows
// of any width are divided so: pages are in panels. Panels have 64 elements a row: those of 8 bits have 64 bytes, and
// are swizzled as rows of 64 bytes are. Pages are swizzled or in panels where kernels for Hopper read them, else plain.
#pragma once

constexpr unsigned PAGE_TOKENS = 32;

enum PageLayout { PLAIN, SWIZZLED, IN_PANELS };

constexpr unsigned PANEL_ROW_BYTES = 128;

// The slot word of a row that is not stored.
constexpr unsigned NO_SLOT = ~0u;

// Members of a group divide a page among them, PAGE_TOKENS neighbouring slots each, which are a page of the same number
// in a member's memory. From the slot word of a row, page * members * PAGE_TOKENS + slot, or NO_SLOT: the word of its
// slot in the memory of `member`, page * PAGE_TOKENS + slot, or NO_SLOT if it does not store that.
__device__ __forceinline__ unsigned own_slot(unsigned word, unsigned member, unsigned members) {
    const unsigned block = word / PAGE_TOKENS;
    return word == NO_SLOT || block % members != member ? NO_SLOT : block / members * PAGE_TOKENS + word % PAGE_TOKENS;
}

// Chunks are permuted within groups of this many, the largest power of two up to 8 that divides those of a row.
__host__ __device__ constexpr unsigned swizzled_chunks(unsigned row_bytes) {
    return row_bytes % 128 == 0 ? 8 : row_bytes % 64 == 0 ? 4 : row_bytes % 32 == 0 ? 2 : 1;
}

// Chunk c of the row in `slot` is stored at chunk c ^ swizzle_of(..).
__host__ __device__ constexpr unsigned swizzle_of(unsigned slot, unsigned row_bytes) {
    return slot / (8 / swizzled_chunks(row_bytes)) % swizzled_chunks(row_bytes);
}

// Byte offset within the page of byte `byte` of the row in `slot`, whose elements have ELEMENT_BYTES.
template <PageLayout LAID, unsigned ELEMENT_BYTES = 2>
__device__ __forceinline__ unsigned page_place(unsigned slot, unsigned byte, unsigned row_bytes) {
    if (LAID == IN_PANELS || (LAID == SWIZZLED && row_bytes > 2 * PANEL_ROW_BYTES)) {
        constexpr unsigned ROW = ELEMENT_BYTES == 1 ? PANEL_ROW_BYTES / 2 : PANEL_ROW_BYTES;
        return byte / ROW * PAGE_TOKENS * ROW + slot * ROW + (byte % ROW ^ swizzle_of(slot, ROW) * 16);
    }
    return slot * row_bytes + (LAID == SWIZZLED ? byte ^ swizzle_of(slot, row_bytes) * 16 : byte);
}
