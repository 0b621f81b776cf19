// x[r][i], in place, or the nearer of -most and most where it is beyond these; NaN stays.
//
// Shapes: x ELEMENT [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::clamp`; on the CPU, `clamp` of crates/cpu/src/activation.rs.
#include "ops/in_place.cuh"

extern "C" __global__ void clamp(ELEMENT* x, unsigned width, float most) {
    replace_row(x, width, [most](float value) { return value < -most ? -most : value > most ? most : value; });
}
