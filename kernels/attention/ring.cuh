// What the two sides of Hopper's wide tiles share for heads of up to 128: shapes, and the ring of keys and values with
// its barriers. attention/copy.cuh fills the ring, attention/wide_wgmma.cuh consumes it. Operands are laid out as in
// attention/wgmma.cuh: queries are [panel][128 rows], keys and values [panel][64 tokens]. Of a head of 80 or 96 the
// second panel is used in part.
#pragma once

#include "attention/page.cuh"
#include "attention/wide_tiles.cuh"

constexpr unsigned PANELS = (KEY_DIM + 63) / 64;
constexpr unsigned OPERAND_BYTES = PANELS * PANEL_BYTES;
constexpr unsigned QUERY_BYTES = 2 * OPERAND_BYTES;
// Slots of the ring of a warp that takes narrow tiles, and bytes of the rings of a warpgroup.
constexpr unsigned NARROW_SLOTS = KEY_DIM == 128 ? 3 : 4;
constexpr unsigned NARROW_BYTES = GROUP_THREADS / 32 * NARROW_SLOTS * SLOT_BYTES;
// A stage of the ring holds the keys of one step and the values of the step before, which are multiplied together.
// Where short tiles are preferred, the ring also has the memory of narrow tiles, of which deterministic plans have
// none. A row's own tokens fill two or three stages, so the copying warps can fetch the next tiles while two are
// multiplied.
constexpr unsigned STAGE_BYTES = 2 * OPERAND_BYTES;
constexpr unsigned STAGES = 3 + (PREFERS_SHORT ? NARROW_BYTES / STAGE_BYTES : 0);
static_assert(!FP8 || STAGES == 3, "the two stages of the shortest tile have the last ones of the tile before widened");
// A stage of 8-bit keys and values, which are copied to a separate ring and widened from there: [operand][two KV
// blocks], laid out as in pages.
constexpr unsigned RAW_OPERAND_BYTES = STEP_TOKENS * KV_ROW_BYTES, RAW_STAGE_BYTES = 2 * RAW_OPERAND_BYTES;
constexpr unsigned WIDE_BYTES = QUERY_BYTES + STAGES * STAGE_BYTES + (FP8 ? STAGES * RAW_STAGE_BYTES : 0);
// Whether copies arrive by themselves, at `landed`, and a thread of its own signals that queries and stages are full.
constexpr bool RELAYS = PREFERS_SHORT;
// Warpgroups that take tiles one by one: each is signalled apart that its half of the queries, 64 rows, is full.
constexpr unsigned TAKERS = PREFERS_SHORT ? 2 : 1;

// Barriers and stage descriptions, beside queries and ring.
struct WideShared {
    unsigned long long queries_full[TAKERS], queries_empty[TAKERS];
    unsigned long long full[STAGES], empty[STAGES], landed[RELAYS ? STAGES : 1];
    StageInfo stage_info[STAGES];
    StageInfo raw_info[FP8 ? STAGES : 1];  // of keys that are not widened yet; read and written by one thread
};

// Called by one thread before any other uses the barriers.
__device__ __forceinline__ void init_wide(WideShared& wide) {
    constexpr unsigned MULTIPLIERS = 2 * GROUP_THREADS / 32;
    constexpr unsigned COPIERS = GROUP_THREADS / 32;
    for (unsigned taker = 0; taker < TAKERS; taker++) {
        init_barrier(shared_address(&wide.queries_full[taker]), RELAYS ? 1 : GROUP_THREADS);
        init_barrier(shared_address(&wide.queries_empty[taker]), MULTIPLIERS / TAKERS);
    }
    for (unsigned i = 0; i < STAGES; i++) {
        init_barrier(shared_address(&wide.full[i]), RELAYS ? 1 : COPIERS);
        init_barrier(shared_address(&wide.empty[i]), MULTIPLIERS);
        if (RELAYS) {
            // All copying threads, and the one that describes the stage.
            init_barrier(shared_address(&wide.landed[i]), GROUP_THREADS + 1);
        }
    }
}

using RingCursor = Cursor<STAGES>;

// Which of the two multiplying warpgroups take a tile: both; but where short tiles are preferred, those of up to 64
// rows they take by turns, so that what one tile waits for overlaps the next one. Who takes a tile alone releases its
// stages for both; the other passes them without a wait.
//
// A barrier's parity does not tell a phase from the second one after it. So a warpgroup must not wait for a stage
// before that stage has been full with what it held before. It never does: it first waits for a tile's queries, which
// are signalled with the tile's first stage, and all stages are signalled in their order.
struct TileTurns {
    unsigned turn = 0;

    struct Takers {
        unsigned first, end;

        __device__ __forceinline__ bool has(unsigned group) const {
            return first <= group && group < end;
        }
        __device__ __forceinline__ bool are_both() const {
            return end - first == 2;
        }
    };
    // Called for each tile, in their order.
    __device__ __forceinline__ Takers next(unsigned rows) {
        if (!PREFERS_SHORT || rows > 64) {
            return {0, 2};
        }
        const unsigned group = turn;
        turn ^= 1;
        return {group, group + 1};
    }
};
