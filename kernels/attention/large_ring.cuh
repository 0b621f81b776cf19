// What the two sides of wide tiles share for heads of 256 and 512, and of 192 with values of 128: shapes, and the ring
// of keys and values with its barriers. A warpgroup holds 64 rows of results, COLUMNS columns wide: two of them hold
// 128 rows of 256 or 128, or 64 rows of 512, of which each multiplies half of the columns. attention/large_copy.cuh
// fills the ring, attention/large.cuh consumes it.
//
// A slot holds the keys or values of a step, or a half of each: [panel][64 tokens], laid out as in attention/wgmma.cuh.
// So are the queries, [panel][TILE_ROWS], which stay in shared memory while they are multiplied.
#pragma once

#include "attention/wide_tiles.cuh"

constexpr unsigned SHARES = KEY_DIM > 256 ? 2 : 1;  // of a head's elements
constexpr unsigned TILE_ROWS = 128 / SHARES;
// Panels of keys, or of values, in a slot.
constexpr unsigned KEY_PANELS = KEY_DIM / 64 / SHARES, VALUE_PANELS = VALUE_DIM / 64 / SHARES;
constexpr unsigned RING_SLOT_BYTES = KEY_PANELS * PANEL_BYTES, RING_SLOTS = KEY_DIM == 192 ? 7 : 5;
static_assert(KEY_PANELS >= VALUE_PANELS, "a slot is as large as keys are");
constexpr unsigned QUERY_PANEL_BYTES = TILE_ROWS * 128, QUERY_BYTES = KEY_DIM / 64 * QUERY_PANEL_BYTES;
constexpr unsigned WIDE_BYTES = QUERY_BYTES + RING_SLOTS * RING_SLOT_BYTES;
static_assert(SHARES == 1 || SHARES == 2, "two warpgroups hold a tile");

// Barriers and descriptions of the ring's keys, beside queries and ring.
struct LargeShared {
    unsigned long long full[RING_SLOTS];  // 32 arrivals of a copying warp
    unsigned long long empty[RING_SLOTS];  // an arrival of each multiplying warp
    StageInfo keys[RING_SLOTS];
};

// What a slot holds: the keys or values of a step, and which share of their elements.
struct SlotContent {
    unsigned step, values, share;
};

// Slots of a tile of so many steps.
__device__ __forceinline__ unsigned slots_of(unsigned steps) {
    return 2 * SHARES * steps;
}

// What the `i`-th slot of a tile holds. With one share keys come a step ahead of the values, which are multiplied
// together: k0 k1 v0 k2 v1 .. v(steps - 1); with two, all of a step come together: k0 k0' v0 v0' k1 ..
__device__ __forceinline__ SlotContent slot_content(unsigned i, unsigned steps) {
    if (SHARES == 2) {
        return {i / 4, i / 2 % 2, i % 2};
    }
    if (i == 0 || (i % 2 == 1 && i + 1 < 2 * steps)) {
        return {(i + 1) / 2, 0, 0};
    }
    return {i + 1 == 2 * steps ? steps - 1 : i / 2 - 1, 1, 0};
}

using RingCursor = Cursor<RING_SLOTS>;

// Called by one thread before any other, and the copy engine, use the barriers.
__device__ __forceinline__ void init_large(LargeShared& large) {
    for (unsigned i = 0; i < RING_SLOTS; i++) {
        init_barrier(shared_address(&large.full[i]), 32);
        init_barrier(shared_address(&large.empty[i]), 2 * GROUP_THREADS / 32);
    }
    fence_proxies();
}
