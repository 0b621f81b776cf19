// Swizzled pages (kv_page.cuh) in shared memory, and how a warp loads the keys or values of one head there: a full page
// by one instruction of the copy engine. A barrier of attention/barrier.cuh signals completion.
#pragma once

#include "attention/barrier.cuh"
#include "attention/tile.cuh"
#include "kv_page.cuh"

constexpr unsigned KV_ROW_BYTES = HEAD_DIM * sizeof(KvElement);  // per row
constexpr unsigned SLOT_BYTES = KV_BLOCK_TOKENS * KV_ROW_BYTES;
static_assert(KV_BLOCK_TOKENS == PAGE_TOKENS, "a KV block lies in a page");

// Address of chunk `chunk` of row `row` in the page at `page`, a multiple of KV_ROW_BYTES. Chunk c ^ d is at
// row_place(.., c) ^ d * 16.
__device__ __forceinline__ unsigned row_place(unsigned page, unsigned row, unsigned chunk) {
    return page + row * KV_ROW_BYTES + (chunk ^ swizzle_of(row, KV_ROW_BYTES)) * 16;
}

// Copies `bytes` with the copy engine and signals `barrier`. Addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// Called by one warp: copies the slots in `kv_block` of `from`, a page's keys or values, to `to` and zeroes the others.
// Makes 32 arrivals at `full`.
__device__ __forceinline__ void copy_kv_block(unsigned to, const KvElement* from, const KvBlock& kv_block, unsigned full) {
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
        const unsigned slot = at / KV_ROW_BYTES;
        copy_16(to + at, reinterpret_cast<const char*>(from) + at, slot >= kv_block.from && slot < kv_block.to);
    }
    arrive_with_copies(full);
}
