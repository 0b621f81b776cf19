// expert_linear for every element type and shape: out[place] = matrix[expert] x[input of the place] (+ bias[expert]).
// Takes f32 weights, and those whose width no tensor-core kernel takes.
//
// Shapes: x ELEMENT [rows or places, inner]; weights ELEMENT [experts, outputs, inner]; bias f32 [experts, outputs];
// firsts [experts + 1], rows [places]; out OUT [places, outputs]. An output is one chain of f32 multiply-adds over the
// inputs in rising order.
// Grid: x = tiles of TILE outputs, y = any number of blocks that share the tiles of places. A block has TILE x TILE
// threads, one output each; operands are staged in shared memory as f32.
// Limit: shared memory, two reads per multiplication.
// Definition: `Backend::expert_linear`; on the CPU, crates/cpu/src/gemm/grouped.rs.
//
// Defines: ELEMENT, OUT.
#include "experts/tile.cuh"

constexpr unsigned TILE = 16;

extern "C" __global__ void __launch_bounds__(TILE * TILE)
    expert_linear_any(OUT* __restrict__ out, const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ weights,
                      const float* __restrict__ bias, const unsigned* __restrict__ firsts,
                      const unsigned* __restrict__ rows, unsigned experts, unsigned outputs, unsigned inner,
                      unsigned gathers, unsigned biased) {
    // One extra column, so that a warp reading one column hits different banks.
    __shared__ float x_tile[TILE][TILE + 1], w_tile[TILE][TILE + 1];
    __shared__ TileEnds ends;
    const Operands operands = {firsts, rows, experts, outputs, inner, gathers};
    count_tiles(ends, operands, TILE);
    __syncthreads();
    const unsigned column = threadIdx.x % TILE, tile_row = threadIdx.x / TILE;
    const unsigned output = blockIdx.x * TILE + column, weight_row = blockIdx.x * TILE + tile_row;
    for (unsigned tile = blockIdx.y; tile < ends.of[experts - 1]; tile += gridDim.y) {
        const Rows places = rows_of(ends, operands, tile, TILE);
        const bool has_row = tile_row < places.count, has_weights = weight_row < outputs;
        const unsigned place = places.first + tile_row;
        const ELEMENT* input = x + static_cast<unsigned long long>(has_row ? input_of(operands, place) : 0) * inner;
        const ELEMENT* weight =
            weights +
            (static_cast<unsigned long long>(places.expert) * outputs + (has_weights ? weight_row : 0)) * inner;
        float sum = 0.0f;
        for (unsigned k = 0; k < inner; k += TILE) {
            const bool inside = k + column < inner;
            x_tile[tile_row][column] = has_row && inside ? to_f32(input[k + column]) : 0.0f;
            w_tile[tile_row][column] = has_weights && inside ? to_f32(weight[k + column]) : 0.0f;
            __syncthreads();
#pragma unroll
            for (unsigned i = 0; i < TILE; ++i) {
                sum += x_tile[tile_row][i] * w_tile[column][i];
            }
            __syncthreads();
        }
        if (has_row && output < outputs) {
            const float more = biased ? bias[static_cast<unsigned long long>(places.expert) * outputs + output] : 0.0f;
            out[static_cast<unsigned long long>(place) * outputs + output] = from_f32<OUT>(sum + more);
        }
    }
}
