// Panels of keys and values on their way from a page to shared memory, where a step's have 64 tokens: two KV blocks.
// Full KV blocks are brought by the copy engine, a panel of 32 slots at a time: 4 KB, or 2 KB of 8 bits an element.
#pragma once

#include "attention/barrier.cuh"
#include "attention/wide_tiles.cuh"
#include "kv_page.cuh"

constexpr unsigned COPIED_ROW_BYTES = FP8 ? PANEL_ROW_BYTES / 2 : PANEL_ROW_BYTES;  // of a panel
constexpr unsigned KV_PANEL_BYTES = KV_BLOCK_TOKENS * COPIED_ROW_BYTES;
constexpr unsigned COPIED_PANEL_BYTES = 2 * KV_PANEL_BYTES;  // of a step

// Called by one warp: copies COUNT panels of a KV block that is not full, of which `page` begins with the first. Slots
// that no row sees are zeroed.
template <unsigned COUNT, class Page>
__device__ __forceinline__ void copy_some_slots(unsigned to, const KvBlock& kv_block, const Page& page) {
    constexpr unsigned ROW_CHUNKS = COPIED_ROW_BYTES / 16;
    const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
    for (unsigned row = lane / ROW_CHUNKS; row < KV_BLOCK_TOKENS; row += 32 / ROW_CHUNKS) {
        const char* from = page(row);
#pragma unroll
        for (unsigned panel = 0; panel < COUNT; panel++) {
            const unsigned at = row * COPIED_ROW_BYTES + lane % ROW_CHUNKS * 16;
            copy_16(to + panel * COPIED_PANEL_BYTES + at, from + panel * KV_PANEL_BYTES + at,
                    row >= kv_block.from && row < kv_block.to);
        }
    }
}

// A number of panels, known to the compiler.
template <unsigned COUNT>
struct Panels {
    static constexpr unsigned PANELS = COUNT;
};

// Copies COUNT panels of a step to `to`, of which `page_at` gives the first one's beginning in a page. The barrier
// `full` gets 32 arrivals.
template <unsigned COUNT, class PageAt>
__device__ __forceinline__ void copy_panels(const Job& job, unsigned to, const KvBlock (&here)[2],
                                            const bool (&is_full)[2], unsigned full, const PageAt& page_at) {
    const unsigned lane = threadIdx.x % 32;
    if (!(is_full[0] && is_full[1])) {
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            if (!is_full[half]) {
                const unsigned page = here[half].page;
                copy_some_slots<COUNT>(to + half * KV_PANEL_BYTES, here[half], [&](unsigned row) {
                    return page_at(DETERMINISTIC ? page_of(job.words, page, row) : page);
                });
            }
        }
        copies_issued();
        wait_copies<0>();
        fence_proxies();
    }
    __syncwarp();
    if (lane == 0) {
        arrive_expecting(full, (is_full[0] + is_full[1]) * COUNT * KV_PANEL_BYTES);
    }
    __syncwarp();
    if (lane < 2 * COUNT) {
        // Order earlier generic accesses to this memory before the copy. The barrier knows of the bytes already: an
        // H100 ended launches in which copies could be done before.
        fence_proxies();
        const unsigned panel = lane % COUNT, half = lane / COUNT;
        if (half == 0 ? is_full[0] : is_full[1]) {
            const unsigned page = half == 0 ? here[0].page : here[1].page;
            copy_bulk(to + panel * COPIED_PANEL_BYTES + half * KV_PANEL_BYTES, page_at(page) + panel * KV_PANEL_BYTES,
                      KV_PANEL_BYTES, full);
        }
    }
}
