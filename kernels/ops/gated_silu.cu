// out[r][i] = silu(x[r][i]) * x[r][width + i], where silu(x) = x / (1 + e^-x).
//
// Shapes: out ELEMENT [R, width], x ELEMENT [R, 2 * width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 3 * sizeof(ELEMENT) bytes per output.
// Definition: `Backend::gated`; on the CPU, `gated` of crates/cpu/src/activation.rs.
#include "ops/gated_silu.cuh"

extern "C" __global__ void gated_silu(ELEMENT* __restrict__ out, const ELEMENT* __restrict__ x, unsigned width) {
    unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        gated_silu_row<LANES>(out + at, x + 2 * at, width);
    } else {
        gated_silu_row<1>(out + at, x + 2 * at, width);
    }
}
