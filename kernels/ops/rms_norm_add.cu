// out[r][i] += x[r][i] / sqrt(mean(x[r]^2) + eps) * weight[i].
//
// Shapes: out f32 [R, width], x f32 [R, width], weight f32 [width].
// Grid: one block of THREADS threads per row. The row is kept in shared memory (width floats) until its sum is known;
// each thread reads back only what it wrote.
// Limit: bandwidth, 12 bytes per element.
// Definition: `Backend::rms_norm_add`; on the CPU, `rms_norm_add` of crates/cpu/src/norm.rs.
#include "lanes.cuh"
#include "reduce.cuh"

template <int N>
__device__ __forceinline__ void rms_norm_add_row(float* out, const float* x, const float* weight, unsigned width,
                                                 float eps, float* row) {
    float squares = 0.0f;
    for (unsigned i = threadIdx.x * N; i < width; i += THREADS * N) {
        Lanes<float, N> lanes = load<N>(x + i);
        store<N>(row + i, lanes);
        for (float value : lanes.at) {
            squares += value * value;
        }
    }
    float scale = 1.0f / sqrtf(block_sum(squares) / width + eps);
    for (unsigned i = threadIdx.x * N; i < width; i += THREADS * N) {
        Lanes<float, N> lanes = load<N>(row + i), weights = load<N>(weight + i), sums = load<N>(out + i);
        for (int lane = 0; lane < N; ++lane) {
            sums.at[lane] += lanes.at[lane] * scale * weights.at[lane];
        }
        store<N>(out + i, sums);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm_add(float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ weight, unsigned width,
                 float eps) {
    extern __shared__ __align__(16) float row[];
    unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        rms_norm_add_row<LANES>(out + at, x + at, weight, width, eps, row);
    } else {
        rms_norm_add_row<1>(out + at, x + at, weight, width, eps, row);
    }
}
