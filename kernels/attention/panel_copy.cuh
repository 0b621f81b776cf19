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

// Copies COUNT panels of a step to `to`, of which `page_at` gives the first one's beginning in a page. The barrier
// `full` gets 32 arrivals. The copy engine brings the slots of KV blocks that are full, and in plans that are not
// deterministic, where a KV block has one page, of all.
template <unsigned COUNT, class PageAt>
__device__ __forceinline__ void copy_panels(const Job& job, unsigned to, const KvBlock (&here)[2],
                                            const bool (&is_full)[2], unsigned full, const PageAt& page_at) {
    const unsigned lane = threadIdx.x % 32;
    unsigned slots[2];  // that the copy engine brings
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        const unsigned some = DETERMINISTIC || here[half].to < here[half].from ? 0 : here[half].to - here[half].from;
        slots[half] = is_full[half] ? KV_BLOCK_TOKENS : some;
    }
    // The barrier knows of the bytes before they are asked for: an H100 ended launches in which copies could be done
    // before.
    if (lane == 0) {
        expect_bytes(full, (slots[0] + slots[1]) * COUNT * COPIED_ROW_BYTES);
    }
    __syncwarp();
    if (lane < 2 * COUNT) {
        // Order earlier generic accesses to this memory before the copy.
        fence_proxies();
        const unsigned panel = lane % COUNT, half = lane / COUNT;
        const unsigned page = half == 0 ? here[0].page : here[1].page, count = half == 0 ? slots[0] : slots[1],
                       at = DETERMINISTIC ? 0 : (half == 0 ? here[0].from : here[1].from) * COPIED_ROW_BYTES;
        if (count != 0) {
            copy_bulk(to + panel * COPIED_PANEL_BYTES + half * KV_PANEL_BYTES + at,
                      page_at(page) + panel * KV_PANEL_BYTES + at, count * COPIED_ROW_BYTES, full);
        }
    }
    __syncwarp();
    if (!(is_full[0] && is_full[1])) {
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const unsigned place = to + half * KV_PANEL_BYTES;
            if (is_full[half]) {
                continue;
            }
            if constexpr (DETERMINISTIC) {
                const unsigned page = here[half].page;
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
    arrive(full);
}
