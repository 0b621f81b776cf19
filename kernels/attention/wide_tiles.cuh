// What Hopper's wide tiles have in common for all heads: the threads that compute them, their steps, and the order in
// which a block takes tiles.
#pragma once

#include "attention/barrier.cuh"
#include "attention/tile.cuh"

constexpr unsigned GROUP_THREADS = 128;  // per warpgroup
constexpr unsigned STEP_TOKENS = 2 * KV_BLOCK_TOKENS;  // scored per softmax step
constexpr unsigned WARP_ROWS = 16;  // packed rows that a warp multiplies
// Whether the kernel is made for tiles of few rows and steps: deterministic plans have one for each row's own tokens.
// With heads of 80 and 96, and with 8-bit keys and values, it is as for other plans.
constexpr bool PREFERS_SHORT = DETERMINISTIC && !FP8 && (KEY_DIM == 64 || KEY_DIM == 128);
constexpr unsigned PANEL_BYTES = 64 * 128;  // of 64 rows of 64 elements

// Ids of named barriers. From TEAMS on: one for each team. In the kernel of latents, which has no teams, from SCORED on
// one for each warpgroup, and from SUMMED on one for each pair of warps.
enum NamedBarrier { READY = 1, HELPING = 2, QUERIES = 3, MERGING = 4, TEAMS = 5, SCORED = 5, SUMMED = 7 };

// Describes the keys of a step.
struct StageInfo {
    unsigned kv_blocks[2];  // the second word of each; BY_READER: first slot | slots << 6 | reader << 12
    unsigned whole;  // nonzero if every row of the tile sees all slots of both, or BY_READER
};
// Rows see the slots of KV blocks whose reader they are (attention/plan.cuh), or that have none, and no others.
constexpr unsigned BY_READER = 2;

// Whether tiles come in groups of key heads. Where heads are large, what tiles that run at the same time read of all of
// them is more than the second-level cache holds, and tiles of further rows would read it from memory again.
constexpr bool IN_GROUPS = KEY_DIM > 128 && !VALUES_IN_KEYS;

// Iterates over the (tile, key head) pairs of this block: one of every gridDim.x, group after group of WIDE_HEADS key
// heads; in a group openings first, then the longest tiles, each for all heads of the group. In the kernel of latents
// blocks choose in turns from both ends, so that after a long tile comes a short one.
struct WideTiles {
    unsigned index, count, at;  // at: the first tile's word
    unsigned ahead;  // pairs to the next one

    __device__ __forceinline__ WideTiles(const Job& job)
        : index(blockIdx.x),
          count(job.words[WIDE_TILES] * job.kv_heads),
          at(job.words[WIDE_AT]),
          ahead(VALUES_IN_KEYS ? 2 * (gridDim.x - blockIdx.x) - 1 : gridDim.x) {}
    __device__ __forceinline__ bool more() const {
        return index < count;
    }
    __device__ __forceinline__ void next() {
        index += ahead;
        if (VALUES_IN_KEYS) {
            ahead = 2 * gridDim.x - ahead;
        }
    }
    struct Place {
        unsigned tile, head;
    };
    __device__ __forceinline__ Place place(const Job& job) const {
        if constexpr (IN_GROUPS) {
            const unsigned tiles = job.words[WIDE_TILES], most = job.words[WIDE_HEADS];
            const unsigned first = index / (tiles * most) * most, in_group = index - tiles * first;
            const unsigned heads = min(most, job.kv_heads - first), tile = in_group / heads;
            return {tile, first + in_group - tile * heads};
        } else {
            const unsigned tile = job.by_kv_heads.quotient(index);
            return {tile, index - tile * job.kv_heads};
        }
    }
    // This lane's word of the tile; 0 after the last tile.
    __device__ __forceinline__ unsigned word(const Job& job) const {
        const unsigned lane = threadIdx.x % 32;
        return more() && lane < TILE_WORDS ? job.words[at + place(job).tile * TILE_WORDS + lane] : 0;
    }
    __device__ __forceinline__ Tile tile(const Job& job) const {
        return read_tile(job.words, at, place(job).tile);
    }
    // What tells who takes a tile, how many stages it has, and what it begins and ends with; zeros after the last one.
    struct Size {
        unsigned rows, kv_blocks, states;
    };
    __device__ __forceinline__ Size size(const Job& job) const {
        if (!more()) {
            return {0, 0, 0};
        }
        const unsigned* words = job.words + at + place(job).tile * TILE_WORDS;
        return {words[1], words[3], words[7]};
    }
    __device__ __forceinline__ unsigned head(const Job& job) const {
        return place(job).head;
    }
};

__device__ __forceinline__ unsigned steps_of(unsigned kv_blocks) {
    return (kv_blocks + 1) / 2;
}

__device__ __forceinline__ unsigned steps_of(const Tile& tile) {
    return steps_of(tile.kv_blocks);
}
