// out[r][h][n] = sum over k of x[r][h][k] w[h][n][k]: a linear layer for each head, for which cuBLASLt has no
// algorithm, or whose result for a row must not depend on the number of rows.
//
// Shapes: x ELEMENT, rows x_row elements apart and their heads x_head; w ELEMENT, heads w_head apart, (n, k) at
// n * w_output + k * w_inner; out ELEMENT, as x; products and sums in f32, k rising.
// Grid: x = tiles of TILE outputs, head after head, y = tiles of TILE rows. A block has TILE x TILE threads, one output
// each; operands are staged in shared memory as f32. Limit: shared memory, two reads per multiplication. It uses no
// tensor cores. Definition: `Backend::absorb_queries` and `Backend::map_values`; on the CPU, crates/cpu/src/latent.rs.
#include "element.cuh"

constexpr unsigned TILE = 16, ROW = TILE + 1;

extern "C" __global__ void __launch_bounds__(TILE * TILE)
    linear_heads(ELEMENT* __restrict__ out, const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ w, unsigned rows,
                 unsigned outputs, unsigned inner, unsigned x_row, unsigned x_head, unsigned out_row, unsigned out_head,
                 unsigned w_head, unsigned w_output, unsigned w_inner) {
    // Rows of both tiles have one extra column, so that a warp reading one column hits different banks.
    __shared__ float x_tile[TILE * ROW];
    __shared__ float w_tile[TILE * ROW];
    const unsigned column = threadIdx.x % TILE, tile_row = threadIdx.x / TILE;
    const unsigned tiles = (outputs + TILE - 1) / TILE, head = blockIdx.x / tiles;
    const unsigned row = blockIdx.y * TILE + tile_row, first_output = blockIdx.x % tiles * TILE;
    const ELEMENT* from = x + static_cast<unsigned long long>(row) * x_row + head * x_head;
    const ELEMENT* weights = w + static_cast<unsigned long long>(head) * w_head;
    // Neighbouring threads read neighbouring weights.
    const unsigned w_k = w_inner == 1 ? column : tile_row, w_n = w_inner == 1 ? tile_row : column;
    float sum = 0.0f;
    for (unsigned k = 0; k < inner; k += TILE) {
        x_tile[tile_row * ROW + column] = row < rows && k + column < inner ? to_f32(from[k + column]) : 0.0f;
        const bool is_in = first_output + w_n < outputs && k + w_k < inner;
        w_tile[w_n * ROW + w_k] = is_in ? to_f32(weights[(first_output + w_n) * w_output + (k + w_k) * w_inner]) : 0.0f;
        __syncthreads();
#pragma unroll
        for (unsigned i = 0; i < TILE; ++i) {
            sum += x_tile[tile_row * ROW + i] * w_tile[column * ROW + i];
        }
        __syncthreads();
    }
    if (row < rows && first_output + column < outputs) {
        ELEMENT* to = out + static_cast<unsigned long long>(row) * out_row + head * out_head + first_output + column;
        *to = from_f32<ELEMENT>(sum);
    }
}
