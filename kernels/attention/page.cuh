// Swizzled pages (kv_page.cuh) in shared memory, and how a single warp brings a page's keys or values of one head
// there: whole ones by one instruction of the copy engine. Who waits for them waits for a barrier of
// attention/barrier.cuh.
#pragma once

#include "attention/barrier.cuh"
#include "attention/tile.cuh"
#include "kv_page.cuh"

constexpr unsigned KEPT_BYTES = HEAD_DIM * sizeof(Kept);  // of a row
constexpr unsigned SLOT_BYTES = KV_BLOCK_TOKENS * KEPT_BYTES;
static_assert(KV_BLOCK_TOKENS == PAGE_TOKENS, "a KV block lies in a page");

// Where chunk `chunk` of row `row` lies of a page at `page`, a multiple of KEPT_BYTES. So chunk c ^ d lies at
// row_place(.., c) ^ d * 16.
__device__ __forceinline__ unsigned row_place(unsigned page, unsigned row, unsigned chunk) {
    return page + row * KEPT_BYTES + (chunk ^ swizzle_of(row, KEPT_BYTES)) * 16;
}

// Copies `bytes` by the copy engine, all three multiples of 16; `barrier` hears of them.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// By one warp: the slots that `kv_block` holds of `from`, a page's keys or values, to `to`; the others become zeros. 32
// arrivals at `full`.
__device__ __forceinline__ void copy_kv_block(unsigned to, const Kept* from, const KvBlock& kv_block, unsigned full) {
    const unsigned lane = threadIdx.x % 32;
    if (kv_block.from == 0 && kv_block.to == KV_BLOCK_TOKENS) {
        if (lane == 0) {
            // What came there before may have come otherwise.
            fence_proxies();
            arrive_expecting(full, SLOT_BYTES);
            copy_bulk(to, from, SLOT_BYTES, full);
        }
        return;
    }
#pragma unroll 4
    for (unsigned at = lane * 16; at < SLOT_BYTES; at += 32 * 16) {
        const unsigned slot = at / KEPT_BYTES;
        copy_16(to + at, reinterpret_cast<const char*>(from) + at, slot >= kv_block.from && slot < kv_block.to);
    }
    arrive_with_copies(full);
}
