// Products with 4-bit weights for every element type and shape: what linear_4bit_wgmma.cu computes, with the same
// operands. Takes f32 inputs, and widths that are no multiple of 8.
//
// Shapes, definition: as in linear_4bit_wgmma.cu; out OUT [places, outputs]. An output is one chain of f32
// multiply-adds over the inputs in rising order, of numbers rounded to f32, which a factor of NVFP4 multiplies.
// Grid: x = tiles of TILE outputs, y = any number of blocks that share the tiles of places. A block has TILE x TILE
// threads, one output each; operands are staged in shared memory as f32.
// Limit: shared memory, two reads per multiplication.
//
// Defines: ELEMENT, OUT, FP4, GROUP.
#include "four_bit/decode.cuh"
#include "four_bit/tiles.cuh"

constexpr unsigned TILE = 16;

// Operands of a tile. One extra column, so that a warp reading one column hits different banks.
struct Staged {
    float x[TILE][TILE + 1], w[TILE][TILE + 1];
};

extern "C" __global__ void __launch_bounds__(TILE * TILE)
    linear_4bit_any(OUT* out, const ELEMENT* __restrict__ x, const unsigned char* __restrict__ weights,
                    const float* __restrict__ bias, const unsigned* __restrict__ firsts,
                    const unsigned* __restrict__ rows, unsigned experts, unsigned outputs, unsigned inner,
                    unsigned places, unsigned gathers, unsigned biased, unsigned accumulates) {
    __shared__ Staged staged;
    __shared__ TileEnds ends;
    const Operands operands = {firsts, rows, experts, outputs, inner, gathers};
    count_any_tiles(ends, operands, places, TILE);
    __syncthreads();
    const unsigned column = threadIdx.x % TILE, tile_row = threadIdx.x / TILE;
    const unsigned output = blockIdx.x * TILE + column, weight_row = blockIdx.x * TILE + tile_row;
    for (unsigned tile = blockIdx.y; tile < ends.of[experts - 1]; tile += gridDim.y) {
        const Rows own = rows_of(ends, operands, tile, TILE);
        const bool has_row = tile_row < own.count, has_weights = weight_row < outputs;
        const unsigned place = own.first + tile_row;
        const ELEMENT* input = x + static_cast<unsigned long long>(has_row ? input_of(operands, place) : 0) * inner;
        const unsigned char* panels =
            weights + panel_at(own.expert, weight_row / CODE_OUTPUTS * CODE_OUTPUTS, outputs, inner);
        float sum = 0.0f;
        for (unsigned k = 0; k < inner; k += TILE) {
            const unsigned at = k + column;
            const bool inside = at < inner;
            const unsigned char* panel = panels + static_cast<unsigned long long>(at / CODE_INPUTS) * CODE_PANEL_BYTES;
            staged.x[tile_row][column] = has_row && inside ? to_f32(input[at]) : 0.0f;
            staged.w[tile_row][column] =
                has_weights && inside ? number_at(panel, weight_row % CODE_OUTPUTS, at % CODE_INPUTS) : 0.0f;
            __syncthreads();
#pragma unroll
            for (unsigned i = 0; i < TILE; ++i) {
                sum += staged.x[tile_row][i] * staged.w[column][i];
            }
            __syncthreads();
        }
        if (has_row && output < outputs) {
            sum *= FACTORS ? panel_factor(weights, own.expert, output, outputs, inner) : 1.0f;
            OUT* to = out + static_cast<unsigned long long>(place) * outputs + output;
            const float more = biased ? bias[static_cast<unsigned long long>(own.expert) * outputs + output] : 0.0f;
            *to = from_f32<OUT>(sum + more + (accumulates ? to_f32(*to) : 0.0f));
        }
    }
}
