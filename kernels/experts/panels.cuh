// Weights of experts as panels, the form in which the tensor-core kernels copy them: [expert][64 outputs][64 inputs], a
// panel of 64 rows of 128 bytes, swizzled as attention/wgmma.cuh describes; missing outputs and inputs are zeros. An
// atom is eight rows, 1024 bytes without a gap. A tile of inputs, a row for each place, lies in shared memory in the
// same way.
//
// With GATED the outputs of a matrix are gates and, behind them, as many ups. The rows of a product are then eight
// gates and their eight ups in turn, so that a thread holds both of an output.
#pragma once

#include "experts/tile.cuh"

constexpr unsigned PANEL = 64;  // inputs, and rows of weights, of a panel
constexpr unsigned PANEL_ROW_BYTES = PANEL * sizeof(ELEMENT), WEIGHT_ATOM_BYTES = 8 * PANEL_ROW_BYTES;
constexpr unsigned WEIGHT_PANEL_BYTES = PANEL * PANEL_ROW_BYTES;
static_assert(sizeof(ELEMENT) == 2, "panels hold 16-bit elements");

__device__ __forceinline__ unsigned panels_of(unsigned width) {
    return (width + PANEL - 1) / PANEL;
}

// Outputs of the op, and rows of the product, of `products` rows of a tile.
__device__ __forceinline__ unsigned results_of(unsigned products) {
    return GATED ? products / 2 : products;
}

// Output width of the op.
__device__ __forceinline__ unsigned width_of(const Operands& operands) {
    return results_of(operands.outputs);
}

// The matrix row in which atom `atom` of a tile begins whose first result is `result`; past the last row where the tile
// is cut off.
__device__ __forceinline__ unsigned row_of_atom(const Operands& operands, unsigned result, unsigned atom) {
    if (!GATED) {
        return result + atom * 8;
    }
    const unsigned gate = result + atom / 2 * 8, width = operands.outputs / 2;
    return gate >= width ? operands.outputs : gate + atom % 2 * width;
}

// Offset in bytes of the atom that begins with matrix row `row`, in panel 0.
__device__ __forceinline__ unsigned long long atom_at(const Operands& operands, unsigned expert, unsigned row) {
    const unsigned panels = panels_of(operands.inner);
    const unsigned long long group = static_cast<unsigned long long>(expert) * panels_of(operands.outputs) + row / PANEL;
    return group * panels * WEIGHT_PANEL_BYTES + row % PANEL / 8 * WEIGHT_ATOM_BYTES;
}
