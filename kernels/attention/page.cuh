// Swizzled pages (kv_page.cuh) in shared memory, and how a warp loads the keys or values of one head there: a full page
// by one instruction of the copy engine. A barrier of attention/barrier.cuh signals completion.
#pragma once

#include "attention/barrier.cuh"
#include "attention/tile.cuh"
#include "kv_page.cuh"

static_assert(KEY_DIM == VALUE_DIM && !VALUES_IN_KEYS, "narrow tiles have values as wide as keys, beside them");

// Heads of more than 128 elements are divided into parts of 128, which warps stream and merge as if they were heads.
constexpr unsigned PARTS = KEY_DIM <= 128 ? 1 : KEY_DIM / 128;
constexpr unsigned PART_DIM = KEY_DIM / PARTS;
constexpr unsigned PART_STEPS = PART_DIM / 16;
static_assert(PARTS * PART_DIM == KEY_DIM && PART_DIM % 16 == 0, "whole parts and steps");
constexpr unsigned KV_ROW_BYTES = PARTS == 1 ? KEY_DIM * sizeof(KvElement) : PANEL_ROW_BYTES;  // of rows or panels
// Bytes of the keys, or the values, of one part of a KV block.
constexpr unsigned SLOT_BYTES = KV_BLOCK_TOKENS * PART_DIM * sizeof(KvElement);
static_assert(KV_BLOCK_TOKENS == PAGE_TOKENS, "a KV block lies in a page");

// Address of chunk `chunk` of row `row` in the page, or part of one, at `page`, a multiple of 64; the chunk is in the
// first group of those that are permuted among themselves.
__device__ __forceinline__ unsigned row_place(unsigned page, unsigned row, unsigned chunk) {
    return page + row * KV_ROW_BYTES + (chunk ^ swizzle_of(row, KV_ROW_BYTES)) * 16;
}

// From the place of chunk c of a row to that of chunk c ^ `by` if `by` is in the first group, and else as far on.
__device__ __forceinline__ unsigned moved_by(unsigned place, unsigned by) {
    constexpr unsigned GROUP = swizzled_chunks(KV_ROW_BYTES),
                       APART = PARTS == 1 ? GROUP * 16 : KV_BLOCK_TOKENS * PANEL_ROW_BYTES;
    return (place ^ by % GROUP * 16) + by / GROUP * APART;
}

// Called by one warp: copies the slots in `kv_block` of `from`, a part of a page's keys or values, to `to` and zeroes
// the others.
// Makes 32 arrivals at `full`.
__device__ __forceinline__ void copy_kv_block(unsigned to, const KvElement* from, const KvBlock& kv_block,
                                              unsigned full) {
    const unsigned lane = threadIdx.x % 32;
    if (kv_block.from == 0 && kv_block.to == KV_BLOCK_TOKENS) {
        if (lane == 0) {
            // Order earlier generic accesses to this memory before the copy.
            fence_proxies();
            arrive_expecting(full, SLOT_BYTES);
            copy_bulk(to, from, SLOT_BYTES, full);
        }
        return;
    }
#pragma unroll 4
    for (unsigned at = lane * 16; at < SLOT_BYTES; at += 32 * 16) {
        const unsigned slot = at / KV_ROW_BYTES % KV_BLOCK_TOKENS;
        copy_16(to + at, reinterpret_cast<const char*>(from) + at, slot >= kv_block.from && slot < kv_block.to);
    }
    arrive_with_copies(full);
}
