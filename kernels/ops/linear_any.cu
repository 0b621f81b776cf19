// out[r][n] = sum over k of x[r][k] w[n][k], plus the old out[r][n] if ACCUMULATE is 1. Used for shapes without a
// cuBLASLt algorithm; cuBLASLt computes all others.
//
// Shapes: out OUT [R, N], x ELEMENT [R, K], w ELEMENT [N, K]; products and sums in f32.
// Grid: x = tiles of TILE rows of w (a vocabulary may exceed the limit of grid y), y = tiles of TILE rows of x. A block
// has TILE x TILE threads, one output each; operands are staged in shared memory as f32.
// Limit: shared memory, two reads per multiplication. It uses no tensor cores, since no large model should need it.
// Definition: `Backend::linear`; on the CPU, crates/cpu/src/gemm/clear.rs.
#include "element.cuh"

constexpr unsigned TILE = 16;

// Element (row, k) of a matrix [rows, inner], or 0 outside it.
__device__ __forceinline__ float element_at(const ELEMENT* matrix, unsigned row, unsigned rows, unsigned k,
                                            unsigned inner) {
    return row < rows && k < inner ? to_f32(matrix[static_cast<unsigned long long>(row) * inner + k]) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(TILE * TILE)
    linear_any(OUT* __restrict__ out, const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ w, unsigned rows,
               unsigned outputs, unsigned inner) {
    // One extra column, so that a warp reading one column hits different banks.
    __shared__ float x_tile[TILE][TILE + 1], w_tile[TILE][TILE + 1];
    unsigned column = threadIdx.x % TILE, tile_row = threadIdx.x / TILE;
    unsigned first_row = blockIdx.y * TILE, first_output = blockIdx.x * TILE;
    float sum = 0.0f;
    for (unsigned k = 0; k < inner; k += TILE) {
        x_tile[tile_row][column] = element_at(x, first_row + tile_row, rows, k + column, inner);
        w_tile[tile_row][column] = element_at(w, first_output + tile_row, outputs, k + column, inner);
        __syncthreads();
#pragma unroll
        for (unsigned i = 0; i < TILE; ++i) {
            sum += x_tile[tile_row][i] * w_tile[column][i];
        }
        __syncthreads();
    }
    unsigned row = first_row + tile_row, output = first_output + column;
    if (row < rows && output < outputs) {
        OUT* to = out + static_cast<unsigned long long>(row) * outputs + output;
        *to = from_f32<OUT>(ACCUMULATE ? to_f32(*to) + sum : sum);
    }
}
