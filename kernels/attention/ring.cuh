// What the two sides of Hopper's wide tiles share for heads of up to 128: shapes, and the ring of keys and values with its
// barriers. attention/copy.cuh fills the ring, attention/wide_wgmma.cuh consumes it. Operands are laid out as in
// attention/wgmma.cuh: queries are [panel][128 rows], keys and values [panel][64 tokens]. Of a head of 80 or 96 the
// second panel is used in part.
#pragma once

#include "attention/wide_tiles.cuh"

constexpr unsigned PANELS = (HEAD_DIM + 63) / 64;
constexpr unsigned OPERAND_BYTES = PANELS * PANEL_BYTES;
constexpr unsigned QUERY_BYTES = 2 * OPERAND_BYTES;
// A stage of the ring holds the keys of one step and the values of the step before, which are multiplied together.
constexpr unsigned STAGES = 3, STAGE_BYTES = 2 * OPERAND_BYTES;
// A stage of 8-bit keys and values, which are copied to a separate ring and widened from there: [operand][two KV
// blocks], laid out as in pages.
constexpr unsigned RAW_OPERAND_BYTES = STEP_TOKENS * KV_ROW_BYTES, RAW_STAGE_BYTES = 2 * RAW_OPERAND_BYTES;
constexpr unsigned WIDE_BYTES = QUERY_BYTES + STAGES * STAGE_BYTES + (FP8 ? STAGES * RAW_STAGE_BYTES : 0);
// Barriers and stage descriptions, beside queries and ring.
struct WideShared {
    unsigned long long queries_full, queries_empty;
    unsigned long long full[STAGES], empty[STAGES];
    StageInfo stage_info[STAGES];
    StageInfo raw_info[FP8 ? STAGES : 1];  // of keys that are not widened yet; read and written by one thread
};

// Called by one thread before any other uses the barriers.
__device__ __forceinline__ void init_wide(WideShared& wide) {
    constexpr unsigned MULTIPLIERS = 2 * GROUP_THREADS / 32;
    constexpr unsigned COPIERS = GROUP_THREADS / 32;
    init_barrier(shared_address(&wide.queries_full), GROUP_THREADS);
    init_barrier(shared_address(&wide.queries_empty), MULTIPLIERS);
    for (unsigned i = 0; i < STAGES; i++) {
        init_barrier(shared_address(&wide.full[i]), COPIERS);
        init_barrier(shared_address(&wide.empty[i]), MULTIPLIERS);
    }
}

using RingCursor = Cursor<STAGES>;
