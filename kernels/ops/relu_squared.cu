// x[r][i] = max(x[r][i], 0)^2, in place; NaN stays.
//
// Shapes: x ELEMENT [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::relu_squared`; on the CPU, `relu_squared` of crates/cpu/src/activation.rs.
#include "ops/in_place.cuh"

extern "C" __global__ void relu_squared(ELEMENT* x, unsigned width) {
    replace_row(x, width, [](float value) { return value < 0.0f ? 0.0f : value * value; });
}
