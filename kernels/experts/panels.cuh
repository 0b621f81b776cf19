// Weights of experts as panels, the form in which the tensor-core kernels copy them: [expert][64 outputs][64 inputs], a
// panel of 64 rows of 128 bytes, swizzled as attention/wgmma.cuh describes; missing outputs and inputs are zeros. A
// tile of inputs, a row for each place, lies in shared memory in the same way.
//
// Where outputs are gates and, behind them, as many ups, the rows of panels are eight gates and their eight ups in
// turn: then a thread holds both of a result. Products and weights are counted in these rows; with GATED two of them
// make a result.
#pragma once

#include "experts/tile.cuh"

constexpr unsigned PANEL = 64;  // inputs, and rows of weights, of a panel
constexpr unsigned PANEL_ROW_BYTES = PANEL * sizeof(ELEMENT);
constexpr unsigned WEIGHT_PANEL_BYTES = PANEL * PANEL_ROW_BYTES;
static_assert(sizeof(ELEMENT) == 2, "panels hold 16-bit elements");

__device__ __forceinline__ unsigned panels_of(unsigned width) {
    return (width + PANEL - 1) / PANEL;
}

// Results of the op that `products` rows make, and its output width.
__device__ __forceinline__ unsigned results_of(unsigned products) {
    return GATED ? products / 2 : products;
}

__device__ __forceinline__ unsigned width_of(const Operands& operands) {
    return results_of(operands.outputs);
}

// The matrix row that row `row` of the panels holds.
__device__ __forceinline__ unsigned matrix_row(unsigned row, unsigned outputs, bool alternates) {
    return alternates ? row / 16 * 8 + row % 8 + row / 8 % 2 * (outputs / 2) : row;
}

// Offset in bytes of row `row` of an expert's panels, a multiple of 8, in panel 0.
__device__ __forceinline__ unsigned long long row_at(const Operands& operands, unsigned expert, unsigned row) {
    const unsigned long long group =
        static_cast<unsigned long long>(expert) * panels_of(operands.outputs) + row / PANEL;
    return group * panels_of(operands.inner) * WEIGHT_PANEL_BYTES + row % PANEL * PANEL_ROW_BYTES;
}
