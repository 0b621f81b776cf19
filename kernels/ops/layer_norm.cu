// out[r][i] = (x[r][i] - mean(x[r])) / sqrt(var(x[r]) + eps) * weight[i] + bias[i], population variance.
//
// Shapes: out ELEMENT [R, width], x f32 [R, width], weight and bias f32 [width].
// Grid: one block of THREADS threads per row. The row is kept in shared memory (width floats), so the variance is
// summed around the mean; each thread reads back only what it wrote.
// Limit: bandwidth, 4 + sizeof(ELEMENT) bytes per element.
// Definition: `Backend::layer_norm`; on the CPU, `layer_norm` of crates/cpu/src/norm.rs.
#include "lanes.cuh"
#include "reduce.cuh"

template <int N>
__device__ __forceinline__ void layer_norm_row(ELEMENT* out, const float* x, const float* weight, const float* bias,
                                               unsigned width, float eps, float* row) {
    float sum = 0.0f;
    for (unsigned i = threadIdx.x * N; i < width; i += THREADS * N) {
        Lanes<float, N> lanes = load<N>(x + i);
        store<N>(row + i, lanes);
        for (float value : lanes.at) {
            sum += value;
        }
    }
    float mean = block_sum(sum) / width;
    float squares = 0.0f;
    for (unsigned i = threadIdx.x * N; i < width; i += THREADS * N) {
        for (float value : load<N>(row + i).at) {
            squares += (value - mean) * (value - mean);
        }
    }
    float scale = 1.0f / sqrtf(block_sum(squares) / width + eps);
    for (unsigned i = threadIdx.x * N; i < width; i += THREADS * N) {
        Lanes<float, N> lanes = load<N>(row + i);
        Lanes<float, N> weights = load<N>(weight + i);
        Lanes<float, N> biases = load<N>(bias + i);
        for (int lane = 0; lane < N; ++lane) {
            lanes.at[lane] = (lanes.at[lane] - mean) * scale * weights.at[lane] + biases.at[lane];
        }
        store<N>(out + i, lanes);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm(ELEMENT* __restrict__ out, const float* __restrict__ x, const float* __restrict__ weight,
               const float* __restrict__ bias, unsigned width, float eps) {
    extern __shared__ __align__(16) float row[];
    unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        layer_norm_row<LANES>(out + at, x + at, weight, bias, width, eps, row);
    } else {
        layer_norm_row<1>(out + at, x + at, weight, bias, width, eps, row);
    }
}
