// What the two sides of tiles of latents share: shapes, and two buffers of keys with their barriers. A tile has 64
// packed rows. Two warpgroups multiply it: step n of the tile lies in buffer n % 2, warpgroup n % 2 scores its keys,
// and each warpgroup multiplies all weights with its half of the values, which are the first elements of the keys.
// attention/latent_copy.cuh fills the buffers, attention/latent.cuh multiplies.
//
// Queries and buffers are [panel][64 rows], laid out as in attention/wgmma.cuh. A buffer has three shares: the left
// half of the values, the right half, and the rotated part of the keys. Once a step is scored nobody reads the last
// one: its panel then holds the step's weights, which are as large. Keys of 8 bits are copied to the last half of a
// share's place, and widened to f16 from there.
#pragma once

#include "attention/wide_tiles.cuh"

static_assert(VALUES_IN_KEYS && (VALUE_DIM == 512 || VALUE_DIM == 256) && KEY_DIM == VALUE_DIM + 64,
              "two halves of a latent, and one panel");
constexpr unsigned TILE_ROWS = 64, GROUP_WARPS = GROUP_THREADS / 32;
constexpr unsigned KEY_PANELS = KEY_DIM / 64, HALF_PANELS = VALUE_DIM / 128;
// The rows of a tile of at most so many take turns among the warps: each warp then has some of them to store, and none
// of its lanes two. Other tiles' rows lie in their order.
constexpr unsigned SPREAD_ROWS = TILE_ROWS / 2;
constexpr unsigned OPERAND_BYTES = KEY_PANELS * PANEL_BYTES;  // of queries, or of a buffer
constexpr unsigned LATENT_BYTES = 3 * OPERAND_BYTES;

enum Share { LEFT, RIGHT, ROTATED, SHARES };

// Where the `row`-th of a tile's rows lies among the 64, and the row that lies at a place, past the end if none does.
__device__ __forceinline__ unsigned place_of_row(unsigned rows, unsigned row) {
    return rows <= SPREAD_ROWS ? row % GROUP_WARPS * WARP_ROWS + row / GROUP_WARPS : row;
}
__device__ __forceinline__ unsigned row_at_place(unsigned rows, unsigned place) {
    return rows <= SPREAD_ROWS ? place % WARP_ROWS * GROUP_WARPS + place / WARP_ROWS : place;
}

// Bytes of a buffer before a share.
__device__ __forceinline__ constexpr unsigned share_at(unsigned share) {
    return share * HALF_PANELS * PANEL_BYTES;
}

// Barriers, and what the multiplying warpgroups tell each other, beside queries and buffers.
struct LatentShared {
    unsigned long long full[2][SHARES];  // 32 arrivals of a copying warp
    unsigned long long copied[FP8 ? 2 : 1][SHARES];  // the same, of keys that are not widened yet
    unsigned long long empty[2][SHARES];  // see `init_latent`
    unsigned long long issued;  // the first step's scores are under way: an arrival of each warp that scores it
    unsigned long long raised;  // its `top` and `factor` are there: the same
    unsigned long long weighed[2];  // a step's weights are there: the same
    StageInfo keys[2];
    // After the first and the second step of a pair, for each row: m, and what earlier sums are multiplied by.
    float top[2][TILE_ROWS], factor[2][TILE_ROWS];
    float sums[2][2][TILE_ROWS];  // l of each warpgroup's own steps, of tiles by turns
};

// Called by one thread before any other, and the copy engine, use the barriers.
__device__ __forceinline__ void init_latent(LatentShared& latent) {
    for (unsigned buffer = 0; buffer < 2; buffer++) {
        // A half of the values is multiplied by one warpgroup, and scored by the one of the buffer: if that is another
        // one, both signal. The rotated part is scored by that of the buffer, which waits for nothing there; then the
        // other one reads the weights.
        const unsigned of_left = buffer == 0 ? 1 : 2, of_right = buffer == 0 ? 2 : 1;
        for (unsigned share = 0; share < SHARES; share++) {
            const unsigned groups = share == LEFT ? of_left : share == RIGHT ? of_right : 1;
            init_barrier(shared_address(&latent.full[buffer][share]), 32);
            if (FP8) {
                init_barrier(shared_address(&latent.copied[buffer][share]), 32);
            }
            init_barrier(shared_address(&latent.empty[buffer][share]), groups * GROUP_WARPS);
        }
        init_barrier(shared_address(&latent.weighed[buffer]), GROUP_WARPS);
    }
    init_barrier(shared_address(&latent.raised), GROUP_WARPS);
    init_barrier(shared_address(&latent.issued), GROUP_WARPS);
    fence_proxies();
}
