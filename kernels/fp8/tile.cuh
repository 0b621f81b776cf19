// Tiles of products of layers of e4m3 on Hopper (linear_fp8). One thread copies boxes of codes into a ring, GROUPS
// warpgroups multiply 64 outputs each. Tensor cores add up 128 inputs, whose sums are then added in f32: over all
// inputs, their own sums would lose 2 to 6 % of a mean result.
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
#include "lanes.cuh"
#include "registers.cuh"
#include "tensor_map.cuh"

constexpr unsigned PANEL_INPUTS = 128, GROUP_OUTPUTS = 64;
constexpr unsigned GROUP_THREADS = 128, OUTPUTS = GROUPS * GROUP_OUTPUTS;  // outputs of a tile
constexpr unsigned WEIGHT_BYTES = OUTPUTS * PANEL_INPUTS, STAGE_BYTES = WEIGHT_BYTES + COLUMNS * PANEL_INPUTS;
// The copy engine reads f32 from multiples of four on only, so the scales of a stage's rows may begin up to three late.
constexpr unsigned SCALE_ALIGNMENT = 4, SCALES = COLUMNS + SCALE_ALIGNMENT,
                   SCALE_BYTES = (SCALES * 4 + 127) / 128 * 128;
constexpr unsigned COPIER_REGISTERS = 24, MULTIPLIER_REGISTERS = 240;
// Results pass through shared memory so many rows at a time; its rows are padded, so that their writes touch all banks.
constexpr unsigned STAGED_ROWS = COLUMNS < 64 ? COLUMNS : 64, STAGED_WIDTH = GROUP_OUTPUTS + 4;

struct Ring {
    unsigned long long full[STAGES], empty[STAGES];
};

using RingCursor = Cursor<STAGES>;

// Where everything lies in dynamic shared memory: stages, the scales of their rows, results on their way.
struct Space {
    unsigned char* stages;  // aligned to 1024

    __device__ __forceinline__ explicit Space(unsigned char* dynamic) {
        const unsigned begin = shared_address(dynamic);
        stages = dynamic + ((begin + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES - begin);
    }
    __device__ __forceinline__ unsigned stage(unsigned index) const {
        return shared_address(stages) + index * STAGE_BYTES;
    }
    __device__ __forceinline__ float* scales(unsigned index) const {
        return reinterpret_cast<float*>(stages + STAGES * STAGE_BYTES + index * SCALE_BYTES);
    }
    __device__ __forceinline__ float* staged(unsigned group) const {
        return reinterpret_cast<float*>(stages + STAGES * (STAGE_BYTES + SCALE_BYTES)) +
               group * STAGED_ROWS * STAGED_WIDTH;
    }
};

struct Layer {
    OUT* out;  // [rows, width]
    const float* w_scales;
    const float* x_scales;  // without BLOCKS
    const float* bias;  // [outputs of all matrices]
    unsigned width, inner;  // outputs and inputs of a matrix
    unsigned biased, accumulates;

    __device__ __forceinline__ unsigned panels() const {
        return (inner + PANEL_INPUTS - 1) / PANEL_INPUTS;
    }
};

// The rows of codes, and with BLOCKS the scales of activations.
struct Maps {
    const TensorMap& w;
    const TensorMap& x;
    const TensorMap& x_scales;
};

// OUTPUTS outputs of COLUMNS rows, by one of the matrices; those from the ends on are not stored.
struct Tile {
    unsigned matrix;
    unsigned output, end_output;
    unsigned row, end_row;
};

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

// The place of this thread's first output in its warpgroup's sums; the second is eight further.
__device__ __forceinline__ unsigned own_output() {
    return threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
}

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

// N neighbouring results of a row: scaled, with what is added to them. `w_row`: the first output among those of all
// matrices.
template <int N>
__device__ __forceinline__ void finish(const Layer& layer, const float* sums, unsigned row, unsigned output,
                                       unsigned w_row) {
    OUT* out = layer.out + static_cast<unsigned long long>(row) * layer.width + output;
    Lanes<float, N> result = load<N>(sums);
    Lanes<float, N> added = {};
    if (layer.biased) {
        added = load<N>(layer.bias + w_row);
    }
    if (layer.accumulates) {
        const Lanes<float, N> old = load<N>(out);
#pragma unroll
        for (int i = 0; i < N; i++) {
            added.at[i] += old.at[i];
        }
    }
    if (!BLOCKS) {
        const Lanes<float, N> scales = load<N>(layer.w_scales + w_row);
        const float scale = layer.x_scales[row];
#pragma unroll
        for (int i = 0; i < N; i++) {
            result.at[i] = result.at[i] * scale * scales.at[i];
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        result.at[i] += added.at[i];
    }
    store<N>(out, result);
}

// Stores a warpgroup's sums by way of shared memory, in rows of 64 outputs: a thread has four of them. `sum` is as
// attention/mma.cuh describes, for outputs down and rows across.
__device__ __forceinline__ void store_tile(const Layer& layer, const Tile& tile, const Space& space,
                                           const float (&sum)[COLUMNS / 8][4]) {
    const unsigned thread = threadIdx.x % GROUP_THREADS, group = threadIdx.x / GROUP_THREADS - 1;
    const unsigned down = own_output(), across = thread % 4 * 2, four = thread % 16 * 4;
    const unsigned output = tile.output + group * GROUP_OUTPUTS + four, w_row = tile.matrix * layer.width + output;
    // Four outputs lie on a boundary of four in `out` and in what is added.
    const bool aligned = (layer.width | tile.output | tile.end_output) % 4 == 0;
    float* staged = space.staged(group);
#pragma unroll
    for (unsigned first = 0; first < COLUMNS; first += STAGED_ROWS) {
#pragma unroll
        for (unsigned n = 0; n < STAGED_ROWS / 8; n++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                staged[(n * 8 + across + i % 2) * STAGED_WIDTH + down + i / 2 * 8] = sum[first / 8 + n][i];
            }
        }
        meet(1 + group, GROUP_THREADS);
#pragma unroll
        for (unsigned n = 0; n < STAGED_ROWS; n += 8) {
            const unsigned in = n + thread / 16, row = tile.row + first + in;
            const float* sums = staged + in * STAGED_WIDTH + four;
            if (row < tile.end_row && aligned && output < tile.end_output) {
                finish<4>(layer, sums, row, output, w_row);
            } else if (row < tile.end_row) {
                for (unsigned i = 0; i < 4 && output + i < tile.end_output; i++) {
                    finish<1>(layer, sums + i, row, output + i, w_row + i);
                }
            }
        }
        meet(1 + group, GROUP_THREADS);
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
            store_tile(layer, tile, space, sum);
        }
    }
}
