// x[r][i] = x[r][i] * Phi(x[r][i]), in place: 0.5 x erfc(-x / sqrt(2)).
//
// Shapes: x ELEMENT [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::gelu_erf`; on the CPU, `gelu_erf` of crates/cpu/src/activation.rs.
#include "ops/in_place.cuh"

extern "C" __global__ void gelu_erf(ELEMENT* x, unsigned width) {
    constexpr float FRAC_1_SQRT_2 = 0.70710678f;
    replace_row(x, width, [](float value) { return 0.5f * value * erfcf(-FRAC_1_SQRT_2 * value); });
}
