// gated_silu whose results are also rounded to e4m3, as round_rows would round them: the next product need not.
//
// out[r][i] = silu(x[r][i]) * x[r][width + i]; codes and scales of out[r] (fp8/rounding.cuh).
//
// Shapes: as those of ops/gated_silu.cu and fp8/round_rows.cu.
// Grid: one block of THREADS threads per row.
// Limit: bandwidth, 3 * sizeof(ELEMENT) + 1 bytes per output.
// Definition: `Backend::gated`, and `round_row` of src/backend/quantised/rounding.rs.
//
// Defines: ELEMENT, BLOCKS (0 or 1).
#include "fp8/rounding.cuh"
#include "ops/gated_silu.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gated_silu_fp8(ELEMENT* out, e4m3* __restrict__ to, float* __restrict__ scales, const ELEMENT* __restrict__ x, unsigned width,
                   unsigned stride, unsigned apart, unsigned fixed, float bound) {
    const unsigned long long index = blockIdx.x, at = index * width;
    if (width % LANES == 0) {
        gated_silu_row<LANES>(out + at, x + 2 * at, width);
    } else {
        gated_silu_row<1>(out + at, x + 2 * at, width);
    }
    __syncthreads();
    round_row(to + index * stride, scales + index, apart, out + at, width, {fixed, bound});
}
