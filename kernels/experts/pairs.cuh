// Products of experts by pairs of blocks on Hopper. Two blocks of a cluster multiply the same places by neighbouring
// outputs, and each copies half of the inputs to both: so the second-level cache, whose rate bounds products of many
// places, is read less often. The places of an expert are spread evenly over its tiles, of up to CAP each.
//
// A stage of the ring holds 64 outputs x 128 bytes for each of GROUPS warpgroups, and 128 bytes of each place, in rows
// that are swizzled as attention/wgmma.cuh describes. One warp copies weights, one inputs.
//
// Defines: CAP (a multiple of 16), GROUPS, STAGES.
#pragma once

#include "attention/barrier.cuh"
#include "attention/mma.cuh"
#include "attention/wgmma.cuh"
#include "cluster.cuh"
#include "experts/tile.cuh"
#include "registers.cuh"
#include "tensor_map.cuh"

constexpr unsigned PAIR = 2;  // blocks of a cluster
constexpr unsigned GROUP_THREADS = 128, GROUP_OUTPUTS = 64, STAGE_ROW_BYTES = 128;
constexpr unsigned GROUP_BYTES = GROUP_OUTPUTS * STAGE_ROW_BYTES, WEIGHT_BYTES = GROUPS * GROUP_BYTES;
constexpr unsigned STAGE_BYTES = WEIGHT_BYTES + CAP * STAGE_ROW_BYTES;
// Columns of a product are a multiple of STEP, as places of a tile are, but for an expert's last one.
constexpr unsigned STEP = 16;
constexpr unsigned BOX_PLACES = 16, BOX_BYTES = BOX_PLACES * STAGE_ROW_BYTES;

struct Ring {
    unsigned long long full[STAGES], empty[STAGES];
};

using RingCursor = Cursor<STAGES>;

// A tile of this block: `groups` groups of outputs, of which there may be none, times places. The other block of the
// cluster has the same places.
struct PairTile {
    Rows rows;
    unsigned group, groups;
};

// The tiles of a cluster: every so many of all tiles, those of the same places one after another.
struct PairWork {
    Operands operands;
    const TileEnds& ends;
    unsigned groups, across;  // groups of outputs, and tiles of them
    unsigned count, of_places, of_outputs;  // tiles of places; which this one is, and which of those across
    unsigned expert = 0;

    __device__ __forceinline__ PairWork(const Operands& given, const TileEnds& ends)
        : operands(given),
          ends(ends),
          groups((given.outputs + GROUP_OUTPUTS - 1) / GROUP_OUTPUTS),
          across((groups + PAIR * GROUPS - 1) / (PAIR * GROUPS)),
          count(ends.of[given.experts - 1]),
          of_places(blockIdx.x / PAIR / across),
          of_outputs(blockIdx.x / PAIR % across) {}
    __device__ __forceinline__ bool more() const {
        return of_places < count;
    }
    __device__ __forceinline__ void next() {
        const unsigned clusters = gridDim.x / PAIR;
        of_places += clusters / across;
        of_outputs += clusters % across;
        if (of_outputs >= across) {
            of_outputs -= across;
            of_places++;
        }
    }
    __device__ __forceinline__ PairTile tile() {
        const unsigned group = (of_outputs * PAIR + blockIdx.x % PAIR) * GROUPS;
        const unsigned exist = group < groups ? groups - group : 0;
        return {even_rows_of(ends, of_places, STEP, expert), group, min(exist, GROUPS)};
    }
};

// Boxes of inputs of a tile.
__device__ __forceinline__ unsigned boxes_of(const PairTile& tile) {
    return (tile.rows.count + BOX_PLACES - 1) / BOX_PLACES;
}

// Bytes that a stage of the tile waits for.
__device__ __forceinline__ unsigned bytes_of(const PairTile& tile) {
    return tile.groups * GROUP_BYTES + boxes_of(tile) * BOX_BYTES;
}

// Called by all threads of a block: prepares the ring, whose stages are full after `copiers` warps have arrived, and
// counts the tiles. The cluster meets.
__device__ __forceinline__ void init_pairs(Ring& shared, TileEnds& ends, const Operands& operands, unsigned copiers) {
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            // `arrive_expecting` arrives for a warp.
            init_barrier(shared_address(&shared.full[i]), 32 * copiers);
            init_barrier(shared_address(&shared.empty[i]), PAIR * GROUPS * GROUP_THREADS / 32);
        }
        fence_proxies();
    }
    count_tiles(ends, operands, CAP);
    __syncthreads();
    meet_cluster(PAIR);
}

// Runs the warp that copies inputs: a lane for each box, of which each block of the cluster copies every so many.
__device__ __forceinline__ void copy_inputs(PairWork work, const TensorMap& x, unsigned inputs_of_panel,
                                            unsigned panels, unsigned ring, Ring& shared) {
    static_assert(CAP <= 32 * PAIR * BOX_PLACES, "a lane copies a box");
    const unsigned box = threadIdx.x % 32 * PAIR + blockIdx.x % PAIR;
    RingCursor cursor;
#pragma unroll 1
    for (; work.more(); work.next()) {
        const PairTile tile = work.tile();
        const bool copies = box < boxes_of(tile);
        const unsigned place = tile.rows.first + box * BOX_PLACES;
#pragma unroll 1
        for (unsigned panel = 0; panel < panels; panel++) {
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
            if (copies) {
                copy_box_to_cluster(ring + cursor.stage * STAGE_BYTES + WEIGHT_BYTES + box * BOX_BYTES, x,
                                    panel * inputs_of_panel, place, shared_address(&shared.full[cursor.stage]),
                                    PAIR);
            }
            cursor.next();
        }
    }
}

// Called by the lanes of a multiplying warp: neither block needs the stage for it any more.
__device__ __forceinline__ void release(Ring& shared, unsigned stage) {
    if (threadIdx.x % 32 < PAIR) {
        arrive_at_peer(shared_address(&shared.empty[stage]), threadIdx.x % 32, PAIR);
    }
}

// Passes the stages of a tile that has no outputs for this warpgroup.
__device__ __forceinline__ void pass_tile(unsigned panels, Ring& shared, RingCursor& cursor) {
#pragma unroll 1
    for (unsigned panel = 0; panel < panels; panel++) {
        wait_barrier(shared_address(&shared.full[cursor.stage]), cursor.parity);
        release(shared, cursor.stage);
        cursor.next();
    }
}
