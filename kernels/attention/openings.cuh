// How tiles go on from openings: the first steps of a deterministic plan's tile, computed once for all rows that see
// the same keys there. A row's operations are those of one tile, in the same order, so its bits are, too. A multiplying
// warp waits for states and loads them when it begins a tile; the copying warps fetch the tile's keys meanwhile.
// crates/cuda/src/attention/openings.rs chooses openings, attention/wide_wgmma.cuh computes tiles.
#pragma once

#include "attention/merge.cuh"
#include "attention/rows.cuh"

// Bypasses L1, which is not coherent with other blocks' writes.
__device__ __forceinline__ float4 load_written(const float* from) {
    float4 to;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to.x), "=f"(to.y), "=f"(to.z), "=f"(to.w)
                 : "l"(from)
                 : "memory");
    return to;
}

// Called by a warp that has written its rows' states of an opening: lets the tiles that go on from them begin.
__device__ __forceinline__ void publish_opening(const Job& job, unsigned rows) {
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        atomicAdd(job.words + OPENED_ROWS, rows);
    }
}

// Called by a warp: waits for the states of all openings. They come first in every block, and wait for nothing.
__device__ __forceinline__ void wait_for_openings(const Job& job) {
    if (threadIdx.x % 32 == 0) {
        while (load_acquire(job.words + OPENED_ROWS) < job.words[OPENING_ROWS] * job.kv_heads) {
        }
    }
    __syncwarp();
}

// Loads the states of an opening, as store_wide has written them. Rows past the end repeat the last one, as their
// queries do; warps without rows load nothing.
__device__ __forceinline__ void load_wide(const Job& job, const Tile& tile, unsigned head, unsigned first,
                                          SoftmaxRows& rows) {
    if (first >= tile.rows) {
        return;
    }
    const unsigned lane = threadIdx.x % 32, q_heads = job.group * job.kv_heads;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned packed = packed_row(tile, first + lane / 4 + r * 8), row = job.by_group.quotient(packed);
        const unsigned q_head = head * job.group + job.by_group.remainder(packed);
        const size_t state =
            static_cast<size_t>(tile.slot + row - job.by_group.quotient(tile.first_row)) * q_heads + q_head;
        const float* o = job.partials.o + state * VALUE_DIM + state_place(lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < static_cast<int>(COLUMNS / 8); n += 2) {
            const float4 pairs = load_written(o + n * 8);
            rows.o[n][2 * r] = pairs.x;
            rows.o[n + 1][2 * r] = pairs.y;
            rows.o[n][2 * r + 1] = pairs.z;
            rows.o[n + 1][2 * r + 1] = pairs.w;
        }
        const Extent extent = load_extent(job.partials.extents + state);
        rows.m[r] = extent.m;
        rows.l[r] = extent.l;
    }
}
