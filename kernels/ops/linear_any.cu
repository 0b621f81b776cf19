// out[r][n] = sum over k of x[r][k] w[n][k], plus out[r][n] itself where ACCUMULATE is 1. For the shapes that cuBLASLt
// has no algorithm for; every other product is the library's.
//
// Shapes: out OUT [R, N], x ELEMENT [R, K], w ELEMENT [N, K]; f32 products and sums.
// Grid: x = TILE rows of w (a vocabulary may have more than y counts), y = TILE rows of x; one output a thread of TILE
// x TILE. Operands go through shared memory as f32. Limit: shared memory, two reads a multiplication; no tensor cores,
// for no large model should come here.
// Definition: `Backend::linear`; on the CPU, src/backend/cpu/gemm/clear.rs.
#include "element.cuh"

constexpr unsigned TILE = 16;

// Element (row, k) of a matrix [rows, inner], zero outside it.
__device__ __forceinline__ float element_at(const ELEMENT* matrix, unsigned row, unsigned rows, unsigned k, unsigned inner) {
    return row < rows && k < inner ? to_f32(matrix[static_cast<unsigned long long>(row) * inner + k]) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(TILE * TILE)
    linear_any(OUT* __restrict__ out, const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ w, unsigned rows,
               unsigned outputs, unsigned inner) {
    // A column more than the tile, so that a warp's reads of one column meet different banks.
    __shared__ float x_tile[TILE][TILE + 1], w_tile[TILE][TILE + 1];
    unsigned column = threadIdx.x % TILE, line = threadIdx.x / TILE;
    unsigned first_row = blockIdx.y * TILE, first_output = blockIdx.x * TILE;
    float sum = 0.0f;
    for (unsigned k = 0; k < inner; k += TILE) {
        x_tile[line][column] = element_at(x, first_row + line, rows, k + column, inner);
        w_tile[line][column] = element_at(w, first_output + line, outputs, k + column, inner);
        __syncthreads();
#pragma unroll
        for (unsigned i = 0; i < TILE; ++i) {
            sum += x_tile[line][i] * w_tile[column][i];
        }
        __syncthreads();
    }
    unsigned row = first_row + line, output = first_output + column;
    if (row < rows && output < outputs) {
        OUT* to = out + static_cast<unsigned long long>(row) * outputs + output;
        *to = from_f32<OUT>(ACCUMULATE ? to_f32(*to) + sum : sum);
    }
}
