// How the products of experts are cut into tiles: what all kernels of expert_linear share. A tile is up to CAP places
// of one expert times some of its outputs. Blocks find their tiles in `firsts`, which route_places has written, so that
// no host reads a count.
#pragma once

#include "element.cuh"

constexpr unsigned MOST_EXPERTS = 1024;  // as in crates/cuda/src/experts

// The operands of a launch, as its kernel's arguments give them.
struct Operands {
    const unsigned* firsts;  // [experts + 1]: the first place of each expert, and the number of places
    const unsigned* rows;  // [places]: the row of each place
    unsigned experts, outputs, inner;  // of each matrix [outputs, inner]
    unsigned gathers;  // whether inputs are rows (1) or places (0)
};

// Rows of one tile.
struct Rows {
    unsigned expert, first, count;  // places first .. first + count
};

// For each expert, its first place and the number of tiles of all experts up to it; filled once in each block's shared
// memory.
struct TileEnds {
    unsigned of[MOST_EXPERTS], firsts[MOST_EXPERTS + 1];
};

// Called by all threads of a block: counts the tiles of up to `cap` places. The caller synchronises afterwards.
__device__ __forceinline__ void count_tiles(TileEnds& ends, const Operands& operands, unsigned cap) {
    for (unsigned expert = threadIdx.x; expert < operands.experts; expert += blockDim.x) {
        const unsigned first = operands.firsts[expert], end = operands.firsts[expert + 1];
        ends.of[expert] = (end - first + cap - 1) / cap;
        ends.firsts[expert] = first;
        if (expert + 1 == operands.experts) {
            ends.firsts[operands.experts] = end;
        }
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        // Each lane sums a run of experts, then those of the lanes before it.
        const unsigned run = (operands.experts + 31) / 32, begin = threadIdx.x * run;
        unsigned own = 0;
        for (unsigned i = begin; i < begin + run && i < operands.experts; i++) {
            own += ends.of[i];
        }
        unsigned before = own;
        for (unsigned distance = 1; distance < 32; distance *= 2) {
            const unsigned other = __shfl_sync(0xffffffff, before, threadIdx.x - distance);
            before += threadIdx.x >= distance ? other : 0;
        }
        before -= own;
        for (unsigned i = begin; i < begin + run && i < operands.experts; i++) {
            before += ends.of[i];
            ends.of[i] = before;
        }
    }
}

// The expert of tile `tile`, below the last entry of `ends`.
__device__ __forceinline__ unsigned expert_of(const TileEnds& ends, const Operands& operands, unsigned tile) {
    unsigned low = 0, high = operands.experts - 1;
    while (low < high) {
        const unsigned middle = (low + high) / 2;
        if (ends.of[middle] > tile) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// The rows of tile `tile`, below the last entry of `ends`: all tiles of an expert but the last have `cap`.
__device__ __forceinline__ Rows rows_of(const TileEnds& ends, const Operands& operands, unsigned tile, unsigned cap) {
    const unsigned expert = expert_of(ends, operands, tile);
    const unsigned within = (tile - (expert == 0 ? 0 : ends.of[expert - 1])) * cap;
    const unsigned first = ends.firsts[expert] + within, end = ends.firsts[expert + 1];
    return {expert, first, min(end - first, cap)};
}

// The same if rows are spread evenly: the tiles of an expert have equally many, a multiple of `step` but in the last.
// The cap that `ends` counts by is a multiple of `step`, so that no tile is empty. `expert`: that of an earlier tile,
// or 0; becomes the tile's. Blocks walk through their tiles, so it is near.
__device__ __forceinline__ Rows even_rows_of(const TileEnds& ends, unsigned tile, unsigned step, unsigned& expert) {
    while (ends.of[expert] <= tile) {
        expert++;
    }
    const unsigned before = expert == 0 ? 0 : ends.of[expert - 1], tiles = ends.of[expert] - before;
    const unsigned begin = ends.firsts[expert], end = ends.firsts[expert + 1];
    const unsigned each = (end - begin + tiles * step - 1) / (tiles * step) * step;
    const unsigned first = begin + (tile - before) * each;
    return {expert, first, min(end - first, each)};
}

// The input row of a place.
__device__ __forceinline__ unsigned input_of(const Operands& operands, unsigned place) {
    return operands.gathers ? operands.rows[place] : place;
}
