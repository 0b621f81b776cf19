// What the two sides of Hopper's wide tiles share: shapes, the ring of keys and values with its barriers, and the order
// in which a block takes tiles. attention/copy.cuh fills the ring, attention/wide_wgmma.cuh consumes it. Operands are
// laid out as in attention/wgmma.cuh: queries are [panel][128 rows], keys and values [panel][64 tokens].
#pragma once

#include "attention/page.cuh"

constexpr unsigned GROUP_THREADS = 128;  // per warpgroup
constexpr unsigned STEP_TOKENS = 2 * KV_BLOCK_TOKENS;  // scored per softmax step
constexpr unsigned PANELS = HEAD_DIM / 64;
constexpr unsigned PANEL_BYTES = 64 * 128;  // of 64 rows
constexpr unsigned OPERAND_BYTES = PANELS * PANEL_BYTES;
constexpr unsigned QUERY_BYTES = 2 * OPERAND_BYTES;
// A stage of the ring holds the keys of one step and the values of the step before, which are multiplied together.
constexpr unsigned STAGES = 3, STAGE_BYTES = 2 * OPERAND_BYTES;
// A stage of 8-bit keys and values, which are copied to a separate ring and widened from there: [operand][two KV
// blocks], laid out as in pages.
constexpr unsigned RAW_OPERAND_BYTES = STEP_TOKENS * KV_ROW_BYTES, RAW_STAGE_BYTES = 2 * RAW_OPERAND_BYTES;
constexpr unsigned WIDE_BYTES = QUERY_BYTES + STAGES * STAGE_BYTES + (FP8 ? STAGES * RAW_STAGE_BYTES : 0);
static_assert(HEAD_DIM % 64 == 0, "whole panels");

// Describes the keys of a stage.
struct StageInfo {
    unsigned kv_blocks[2];  // the second word of each
    unsigned whole;  // nonzero if every row of the tile sees all slots of both
};

// Barriers and stage descriptions, beside queries and ring.
struct WideShared {
    unsigned long long queries_full, queries_empty;
    unsigned long long full[STAGES], empty[STAGES];
    StageInfo stage_info[STAGES];
    StageInfo raw_info[FP8 ? STAGES : 1];  // of keys that are not widened yet; read and written by one thread
};

// Ids of named barriers.
enum NamedBarrier { READY = 1, HELPING = 2 };

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

// Iterates over the (tile, key head) pairs of this block: every gridDim.x-th, longest tiles first.
struct WideTiles {
    unsigned index, count;

    __device__ __forceinline__ WideTiles(const Job& job) : index(blockIdx.x), count(job.words[WIDE_TILES] * job.kv_heads) {}
    __device__ __forceinline__ bool more() const {
        return index < count;
    }
    __device__ __forceinline__ void next() {
        index += gridDim.x;
    }
    // This lane's word of the tile; 0 after the last tile.
    __device__ __forceinline__ unsigned word(const Job& job) const {
        const unsigned lane = threadIdx.x % 32;
        return more() && lane < TILE_WORDS ? job.words[job.words[WIDE_AT] + job.by_kv_heads.quotient(index) * TILE_WORDS + lane] : 0;
    }
    __device__ __forceinline__ Tile tile(const Job& job) const {
        return read_tile(job.words, job.words[WIDE_AT], job.by_kv_heads.quotient(index));
    }
    __device__ __forceinline__ unsigned head(const Job& job) const {
        return job.by_kv_heads.remainder(index);
    }
};

__device__ __forceinline__ unsigned steps_of(const Tile& tile) {
    return (tile.kv_blocks + 1) / 2;
}

// A position in the ring: stage and phase parity.
struct RingCursor {
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ void next() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};
