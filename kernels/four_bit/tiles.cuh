// How products of 4-bit matrices are cut into tiles: as those of experts (experts/tile.cuh), of which a plain layer is
// one whose places are its rows.
#pragma once

#include "experts/tile.cuh"

// Called by all threads of a block, and followed by its barrier. `places`: of a plain layer, for which `firsts` is
// null.
__device__ __forceinline__ void count_any_tiles(TileEnds& ends, const Operands& operands, unsigned places,
                                                unsigned cap) {
    if (operands.firsts) {
        count_tiles(ends, operands, cap);
    } else if (threadIdx.x == 0) {
        ends.of[0] = (places + cap - 1) / cap;
        ends.firsts[0] = 0;
        ends.firsts[1] = places;
    }
}

// A tile of places, and which of the tiles of the outputs.
struct TileIndex {
    unsigned places, outputs;
};

// Tiles of the same places follow each other for experts, whose weights are read once anyway. In a plain layer those of
// the same weights do: all places' tiles are at work while the weights are in the second-level cache.
__device__ __forceinline__ TileIndex tile_index(const Operands& operands, unsigned index, unsigned across,
                                                unsigned down) {
    if (operands.firsts) {
        return {index / across, index % across};
    }
    return {index % down, index / down};
}
