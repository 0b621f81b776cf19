// In place, with numbers [p, n, b, e]: p x^2 + b x where x > 0, else n (expm1(min(x, e)) - x) + b x.
//
// Shapes: x ELEMENT [R, width], numbers f32 [4].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::xielu`; on the CPU, `xielu` of crates/cpu/src/activation.rs.
#include "ops/in_place.cuh"

extern "C" __global__ void xielu(ELEMENT* x, const float* __restrict__ numbers, unsigned width) {
    const float positive = numbers[0], negative = numbers[1], slope = numbers[2], most = numbers[3];
    replace_row(x, width, [=](float value) {
        const float curved =
            value > 0.0f ? positive * value * value : negative * (expm1f(fminf(value, most)) - value);
        return curved + slope * value;
    });
}
