// Panels of keys and values on their way from a page to shared memory, where a step's have 64 tokens: two KV blocks. Full
// KV blocks are brought by the copy engine, a panel of 32 slots (4 KB) at a time.
#pragma once

#include "attention/barrier.cuh"
#include "attention/wide_tiles.cuh"
#include "kv_page.cuh"

constexpr unsigned KV_PANEL_BYTES = KV_BLOCK_TOKENS * PANEL_ROW_BYTES;

// Called by one warp: copies COUNT panels of a KV block that is not full, of which `page` begins with the first. Slots
// that no row sees are zeroed.
template <unsigned COUNT, class Page>
__device__ __forceinline__ void copy_some_slots(unsigned to, const KvBlock& kv_block, const Page& page) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
    for (unsigned row = lane / 8; row < KV_BLOCK_TOKENS; row += 4) {
        const char* from = page(row);
#pragma unroll
        for (unsigned panel = 0; panel < COUNT; panel++) {
            const unsigned at = row * PANEL_ROW_BYTES + lane % 8 * 16;
            copy_16(to + panel * PANEL_BYTES + at, from + panel * KV_PANEL_BYTES + at,
                    row >= kv_block.from && row < kv_block.to);
        }
    }
}
