// x[r][i] = cap * tanh(x[r][i] / cap), in place.
//
// Shapes: x f32 [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 8 bytes per element.
// Definition: `Backend::softcap`; on the CPU, `softcap` of crates/cpu/src/sums.rs.
#include "ops/in_place.cuh"

extern "C" __global__ void softcap(float* x, unsigned width, float cap) {
    replace_row(x, width, [cap](float value) { return cap * tanhf(value / cap); });
}
