// Layers of e4m3 on Hopper: their operands, where a block has what in shared memory, and the end of a tile. Included
// behind constants of the tiles: GROUP_THREADS, GROUP_OUTPUTS, STAGE_BYTES.
//
// Defines: OUT, COLUMNS, GROUPS, STAGES, BLOCKS (0 or 1).
#pragma once

#include "attention/mma.cuh"
#include "lanes.cuh"
#include "tensor_map.cuh"

constexpr unsigned PANEL_INPUTS = 128;
// The copy engine reads f32 from multiples of four on only, so the scales of a stage's rows may begin up to three late.
constexpr unsigned SCALE_ALIGNMENT = 4, SCALES = COLUMNS + SCALE_ALIGNMENT,
                   SCALE_BYTES = (SCALES * 4 + 127) / 128 * 128;
// Results pass through shared memory so many rows at a time; its rows are padded, so that their writes touch all banks.
constexpr unsigned STAGED_ROWS = COLUMNS < 64 ? COLUMNS : 64, STAGED_WIDTH = GROUP_OUTPUTS + 4;

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

// The place of this thread's first output in its warpgroup's sums; the second is eight further.
__device__ __forceinline__ unsigned own_output() {
    return threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
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

// Stores a warpgroup's sums, from output `first_output` on, by way of shared memory, in rows of 64 outputs: a thread
// has four of them. `sum` is as attention/mma.cuh describes, for outputs down and rows across.
__device__ __forceinline__ void store_tile(const Layer& layer, const Tile& tile, unsigned first_output,
                                           const Space& space, const float (&sum)[COLUMNS / 8][4]) {
    const unsigned thread = threadIdx.x % GROUP_THREADS, group = threadIdx.x / GROUP_THREADS - 1;
    const unsigned down = own_output(), across = thread % 4 * 2, four = thread % 16 * 4;
    const unsigned output = first_output + four, w_row = tile.matrix * layer.width + output;
    // Four outputs lie on a boundary of four in `out` and in what is added.
    const bool aligned = (layer.width | tile.output | tile.end_output) % 4 == 0;
    float* staged = space.staged(group);
#pragma unroll
    for (unsigned first = 0; first < COLUMNS; first += STAGED_ROWS) {
        if (tile.row + first >= tile.end_row) {
            break;
        }
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
