// x[r][i] = gelu(x[r][i]), in place, with the gelu of gelu.cuh.
//
// Shapes: x ELEMENT [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::gelu`; on the CPU, `gelu` of crates/cpu/src/activation.rs.
#include "ops/gelu.cuh"
#include "ops/in_place.cuh"

extern "C" __global__ void gelu(ELEMENT* x, unsigned width) {
    replace_row(x, width, [](float value) { return gelu_of(value); });
}
