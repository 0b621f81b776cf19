// out[r][i] = x[r][i] / sqrt(mean(x[r]^2) + eps) * weight[i].
//
// Shapes: out ELEMENT [R, width], x f32 [R, width], weight f32 [width].
// Grid: one block of THREADS threads per row. The row is kept in shared memory (width floats) until its sum is known;
// each thread reads back only what it wrote.
// Limit: bandwidth, 4 + sizeof(ELEMENT) bytes per element.
// Definition: `Backend::rms_norm`; on the CPU, `rms_norm` of crates/cpu/src/norm.rs.
#include "ops/rms_norm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm(ELEMENT* __restrict__ out, const float* __restrict__ x, const float* __restrict__ weight, unsigned width,
             float eps) {
    extern __shared__ __align__(16) float row[];
    unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        rms_norm_row<LANES>(out + at, x + at, weight, width, eps, row);
    } else {
        rms_norm_row<1>(out + at, x + at, weight, width, eps, row);
    }
}
