// Matrices of e4m3 as panels, the form in which tensor-core kernels copy them: rows of 128 inputs (128 bytes), swizzled as
// attention/wgmma.cuh describes, missing inputs zero. Eight rows are an atom of 1024 bytes.
//
// Weights are [ceil(outputs / 64)][ceil(inner / 128)][64 rows], missing outputs zero; activations [ceil(inner /
// 128)][ceil(rows / 8)][8 rows], missing rows unspecified. So both parts of a product are contiguous.
#pragma once

constexpr unsigned PANEL_INPUTS = 128;
constexpr unsigned PANEL_OUTPUTS = 64;
constexpr unsigned PANEL_BYTES = PANEL_OUTPUTS * PANEL_INPUTS;

__device__ __forceinline__ unsigned panels_of(unsigned inner) {
    return (inner + PANEL_INPUTS - 1) / PANEL_INPUTS;
}

// Byte of input `k` in row `row` of activations of `atoms` atoms.
__device__ __forceinline__ unsigned long long activation_at(unsigned row, unsigned k, unsigned atoms) {
    const unsigned long long atom = static_cast<unsigned long long>(k / PANEL_INPUTS) * atoms + row / 8;
    return atom * 1024 + row % 8 * 128 + (k % PANEL_INPUTS / 16 ^ row % 8) * 16 + k % 16;
}
