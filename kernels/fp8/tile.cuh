// Tiles of products of e4m3 on Hopper: what linear_fp8 and expert_linear_fp8 share. One thread copies boxes of codes
// into a ring, GROUPS warpgroups multiply 64 outputs each. Tensor cores add up 128 inputs, whose sums are then added in
// f32: over all inputs, their own sums would lose 2 to 6 % of a mean result.
//
// Codes are row-major, weights [outputs of all matrices, inner] and activations [rows, inner]; their rows are a
// multiple of 16 bytes apart. A box has 128 inputs of OUTPUTS or COLUMNS rows, swizzled as attention/wgmma.cuh
// describes; what lies outside of the matrix is zero.
// Scales are f32: one for each output and each row, or (BLOCKS) one for each of them and each 128 inputs: [matrices,
// ceil(inner / 128), outputs] and [ceil(inner / 128), rows], the latter read by tensor map.
//
// Defines: OUT, COLUMNS (8, 16, 64 or 128), GROUPS (1 or 2), STAGES, BLOCKS (0 or 1).
#pragma once

#include "attention/barrier.cuh"
#include "attention/mma.cuh"
#include "fp8/products.cuh"
#include "registers.cuh"
#include "tensor_map.cuh"

constexpr unsigned GROUP_THREADS = 128, GROUP_OUTPUTS = 64, OUTPUTS = GROUPS * GROUP_OUTPUTS;  // outputs of a tile
constexpr unsigned WEIGHT_BYTES = OUTPUTS * 128, STAGE_BYTES = WEIGHT_BYTES + COLUMNS * 128;
constexpr unsigned COPIER_REGISTERS = 24, MULTIPLIER_REGISTERS = 240;
#include "fp8/layer.cuh"

struct Ring {
    unsigned long long full[STAGES], empty[STAGES];
};

using RingCursor = Cursor<STAGES>;

__device__ __forceinline__ void init_ring(Ring& shared) {
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            // `arrive_expecting` arrives for a warp.
            init_barrier(shared_address(&shared.full[i]), 32);
            init_barrier(shared_address(&shared.empty[i]), GROUPS * GROUP_THREADS / 32);
        }
        fence_proxies();
    }
}

// Runs the thread that copies the tiles of `work`.
template <class Work>
__device__ __forceinline__ void copy_tiles(const Layer& layer, const Maps& maps, Work work, const Space& space,
                                           Ring& shared) {
    const unsigned panels = layer.panels();
    RingCursor cursor;
#pragma unroll 1
    for (; work.more(); work.next()) {
        const Tile tile = work.tile();
#pragma unroll 1
        for (unsigned panel = 0; panel < panels; panel++) {
            const unsigned full = shared_address(&shared.full[cursor.stage]), to = space.stage(cursor.stage);
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
            arrive_expecting(full, STAGE_BYTES + (BLOCKS ? SCALES * 4 : 0));
            copy_box(to, maps.w, panel * PANEL_INPUTS, tile.matrix * layer.width + tile.output, full);
            copy_box(to + WEIGHT_BYTES, maps.x, panel * PANEL_INPUTS, tile.row, full);
            if (BLOCKS) {
                copy_box(shared_address(space.scales(cursor.stage)), maps.x_scales,
                         tile.row / SCALE_ALIGNMENT * SCALE_ALIGNMENT, panel, full);
            }
            cursor.next();
        }
    }
}

// A part of a tile's sums: those of one panel, and with BLOCKS the scales of this thread's two outputs.
struct Part {
    float sum[COLUMNS / 8][4];
    float w_scales[2];
    unsigned stage;
};

// Starts the products of panel `panel` of a tile.
__device__ __forceinline__ void start_part(Part& part, const Layer& layer, const Tile& tile, unsigned panel,
                                           const Space& space, Ring& shared, RingCursor& cursor) {
    const unsigned group = threadIdx.x / GROUP_THREADS - 1;
    if (BLOCKS) {
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            // A tile may reach behind the last output.
            const unsigned output = min(tile.output + group * GROUP_OUTPUTS + own_output() + i * 8, layer.width - 1);
            part.w_scales[i] = layer.w_scales[(tile.matrix * layer.panels() + panel) * layer.width + output];
        }
    }
    wait_barrier(shared_address(&shared.full[cursor.stage]), cursor.parity);
    part.stage = cursor.stage;
    const unsigned at = space.stage(cursor.stage);
    const unsigned long long w = descriptor(at + group * GROUP_OUTPUTS * PANEL_INPUTS),
                             x = descriptor(at + WEIGHT_BYTES);
    begin_products();
#pragma unroll
    for (unsigned k = 0; k < PANEL_INPUTS / 32; k++) {
        multiply_fp8<COLUMNS>(part.sum, w + k * 2, x + k * 2, k > 0);
    }
    products_issued();
    cursor.next();
}

// Adds a part whose products are done.
__device__ __forceinline__ void add_part(float (&sum)[COLUMNS / 8][4], Part& part, const Tile& tile, const Space& space,
                                         Ring& shared) {
    settled(part.sum);
    if (BLOCKS) {
        const float* scales = space.scales(part.stage) + tile.row % SCALE_ALIGNMENT + threadIdx.x % 4 * 2;
#pragma unroll
        for (unsigned n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                sum[n][i] += part.sum[n][i] * (scales[n * 8 + i % 2] * part.w_scales[i / 2]);
            }
        }
        // All lanes have read the scales.
        __syncwarp();
    }
    if (threadIdx.x % 32 == 0) {
        arrive(shared_address(&shared.empty[part.stage]));
    }
    if (!BLOCKS) {
#pragma unroll
        for (unsigned n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                sum[n][i] += part.sum[n][i];
            }
        }
    }
}

// Sums the panels of a tile, two parts in turn: while one is added, the tensor cores make the other.
__device__ __forceinline__ void sum_panels(float (&sum)[COLUMNS / 8][4], const Layer& layer, const Tile& tile,
                                           const Space& space, Ring& shared, RingCursor& cursor) {
    const unsigned panels = layer.panels();
    Part one, other;
    start_part(one, layer, tile, 0, space, shared, cursor);
#pragma unroll 1
    for (unsigned panel = 1; panel + 1 < panels; panel += 2) {
        start_part(other, layer, tile, panel, space, shared, cursor);
        wait_products<1>();
        add_part(sum, one, tile, space, shared);
        start_part(one, layer, tile, panel + 1, space, shared, cursor);
        wait_products<1>();
        add_part(sum, other, tile, space, shared);
    }
    if (panels % 2 == 0) {
        start_part(other, layer, tile, panels - 1, space, shared, cursor);
        wait_products<1>();
        add_part(sum, one, tile, space, shared);
        wait_products<0>();
        add_part(sum, other, tile, space, shared);
    } else {
        wait_products<0>();
        add_part(sum, one, tile, space, shared);
    }
}

// What a block does once the ring is initialised: the first warpgroup copies, the others multiply.
template <class Work>
__device__ __forceinline__ void run_tiles(const Layer& layer, const Maps& maps, Work work, const Space& space,
                                          Ring& shared) {
    const unsigned warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // uniform for the compiler
    if (warp < GROUP_THREADS / 32) {
        fewer_registers<COPIER_REGISTERS>();
        if (threadIdx.x == 0) {
            copy_tiles(layer, maps, work, space, shared);
        }
    } else {
        more_registers<MULTIPLIER_REGISTERS>();
        RingCursor cursor;
#pragma unroll 1
        for (; work.more(); work.next()) {
            const Tile tile = work.tile();
            float sum[COLUMNS / 8][4] = {};
            sum_panels(sum, layer, tile, space, shared, cursor);
            store_tile(layer, tile, tile.output + (warp / 4 - 1) * GROUP_OUTPUTS, space, sum);
        }
    }
}
