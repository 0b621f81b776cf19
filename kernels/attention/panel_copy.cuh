// Panels of keys and values on their way from a page to shared memory, where a step's have 64 tokens: two KV blocks.
// The copy engine brings them, the slots of a panel at a time: of 32, 4 KB, or 2 KB of 8 bits an element.
#pragma once

#include "attention/barrier.cuh"
#include "attention/fp8.cuh"
#include "attention/wide_tiles.cuh"
#include "kv_page.cuh"

constexpr unsigned COPIED_ROW_BYTES = FP8 ? PANEL_ROW_BYTES / 2 : PANEL_ROW_BYTES;  // of a panel
constexpr unsigned KV_PANEL_BYTES = KV_BLOCK_TOKENS * COPIED_ROW_BYTES;
constexpr unsigned COPIED_PANEL_BYTES = 2 * KV_PANEL_BYTES;  // of a step

// Calls `of_slot` with slots of a KV block and places of 16 bytes of them in a panel: all lanes of a warp together with
// each such place once.
template <class OfSlot>
__device__ __forceinline__ void for_slots(const OfSlot& of_slot) {
    constexpr unsigned ROW_CHUNKS = COPIED_ROW_BYTES / 16;
    const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
    for (unsigned slot = lane / ROW_CHUNKS; slot < KV_BLOCK_TOKENS; slot += 32 / ROW_CHUNKS) {
        of_slot(slot, slot * COPIED_ROW_BYTES + lane % ROW_CHUNKS * 16);
    }
}

// Called by one warp: copies COUNT panels of a KV block whose slots may lie in several pages. `page(slot)` begins with
// the first of them. Slots that no row sees are zeroed.
template <unsigned COUNT, class Page>
__device__ __forceinline__ void copy_slots(unsigned to, const KvBlock& kv_block, const Page& page) {
    for_slots([&](unsigned slot, unsigned at) {
        const char* from = page(slot);
#pragma unroll
        for (unsigned panel = 0; panel < COUNT; panel++) {
            copy_16(to + panel * COPIED_PANEL_BYTES + at, from + panel * KV_PANEL_BYTES + at,
                    slot >= kv_block.from && slot < kv_block.to);
        }
    });
}

// Called by one warp: zeroes those slots of COUNT panels of a KV block that no row sees.
template <unsigned COUNT>
__device__ __forceinline__ void zero_slots(unsigned to, const KvBlock& kv_block) {
    for_slots([&](unsigned slot, unsigned at) {
        if (slot < kv_block.from || slot >= kv_block.to) {
#pragma unroll
            for (unsigned panel = 0; panel < COUNT; panel++) {
                store_16(to + panel * COPIED_PANEL_BYTES + at, 0, 0, 0, 0);
            }
        }
    });
}

// A number of panels, known to the compiler.
template <unsigned COUNT>
struct Panels {
    static constexpr unsigned PANELS = COUNT;
};

// Called by one warp: copies COUNT panels of a step to `to`, of which `page_at` gives the first one's beginning in a
// page. The barrier `full` gets 32 arrivals. The copy engine brings the slots of full KV blocks and, where a KV block
// has one page, of all. It needs no fence before: who writes to this memory otherwise has one behind.
template <unsigned COUNT, class PageAt>
__device__ __forceinline__ void copy_panels(const Job& job, unsigned to, const KvBlock (&here)[2],
                                            const bool (&is_full)[2], unsigned full, const PageAt& page_at) {
    const bool are_full = is_full[0] && is_full[1];
    unsigned slots[2];  // that the copy engine brings
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        const KvBlock& kv_block = here[half];
        const unsigned some = DETERMINISTIC || kv_block.to < kv_block.from ? 0 : kv_block.to - kv_block.from;
        slots[half] = is_full[half] ? KV_BLOCK_TOKENS : some;
    }
    __syncwarp();
    if (is_elected()) {
        // The barrier knows of the bytes before they are asked for: an H100 ended launches in which copies could be
        // done before.
        expect_bytes(full, (slots[0] + slots[1]) * COUNT * COPIED_ROW_BYTES);
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            if (slots[half] != 0) {
                const unsigned at = is_full[half] ? 0 : here[half].from * COPIED_ROW_BYTES;
                const unsigned place = to + half * KV_PANEL_BYTES + at, bytes = slots[half] * COPIED_ROW_BYTES;
                const char* from = page_at(here[half].page) + at;
#pragma unroll
                for (unsigned panel = 0; panel < COUNT; panel++) {
                    copy_bulk(place + panel * COPIED_PANEL_BYTES, from + panel * KV_PANEL_BYTES, bytes, full);
                }
            }
        }
    }
    if (!are_full) {
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const unsigned place = to + half * KV_PANEL_BYTES, page = here[half].page;
            if (is_full[half]) {
                continue;
            }
            if constexpr (DETERMINISTIC) {
                copy_slots<COUNT>(place, here[half],
                                  [&](unsigned slot) { return page_at(page_of(job.words, page, slot)); });
            } else {
                zero_slots<COUNT>(place, here[half]);
            }
        }
        if constexpr (DETERMINISTIC) {
            copies_issued();
            wait_copies<0>();
        }
        fence_proxies();
    }
    __syncwarp();
    if (is_elected()) {
        arrive(full, 32);
    }
}
