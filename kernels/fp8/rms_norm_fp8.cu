// rms_norm whose results are also rounded to e4m3, as round_rows would round them: the next product need not.
//
// out[r][i] = x[r][i] / sqrt(mean(x[r]^2) + eps) * weight[i]; codes and scales of out[r] (fp8/rounding.cuh).
//
// Shapes: as those of ops/rms_norm.cu and fp8/round_rows.cu.
// Grid: one block of THREADS threads per row, with shared memory for `width` floats.
// Limit: bandwidth, 5 + sizeof(ELEMENT) bytes per element.
// Definition: `Backend::rms_norm`, and `round_row` of src/backend/quantised/rounding.rs.
//
// Defines: ELEMENT, BLOCKS (0 or 1).
#include "fp8/rounding.cuh"
#include "ops/rms_norm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm_fp8(ELEMENT* out, e4m3* __restrict__ to, float* __restrict__ scales, const float* __restrict__ x, const float* __restrict__ weight,
                 unsigned width, float eps, unsigned stride, unsigned apart, unsigned fixed, float bound) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    float* row = reinterpret_cast<float*>(dynamic);
    const unsigned long long index = blockIdx.x, at = index * width;
    if (width % LANES == 0) {
        rms_norm_row<LANES>(out + at, x + at, weight, width, eps, row);
    } else {
        rms_norm_row<1>(out + at, x + at, weight, width, eps, row);
    }
    __syncthreads();
    round_row(to + index * stride, scales + index, apart, out + at, width, {fixed, bound});
}
