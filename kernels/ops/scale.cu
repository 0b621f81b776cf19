// x[r][i] = x[r][i] * factor, in place.
//
// Shapes: x f32 [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 8 bytes per element.
// Definition: `Backend::scale`; on the CPU, `scale` of crates/cpu/src/sums.rs.
#include "ops/in_place.cuh"

extern "C" __global__ void scale(float* x, unsigned width, float factor) {
    replace_row(x, width, [factor](float value) { return value * factor; });
}
