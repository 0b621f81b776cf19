// The norm of a row, by all threads of a block: out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]. `row`:
// shared memory for `width` floats, in which each thread reads back only what it wrote.
#pragma once

#include "lanes.cuh"
#include "reduce.cuh"

// Vectors of the row that a thread has on their way at once.
constexpr unsigned NORM_TOGETHER = 4;

// What the row is multiplied by; the row is then in `row`.
template <int N>
__device__ __forceinline__ float rms_scale(const float* x, unsigned width, float eps, float* row) {
    const unsigned step = blockDim.x * N;
    float squares = 0.0f;
#pragma unroll 1
    for (unsigned first = threadIdx.x * N; first < width; first += NORM_TOGETHER * step) {
        Lanes<float, N> lanes[NORM_TOGETHER];
#pragma unroll
        for (unsigned k = 0; k < NORM_TOGETHER; ++k) {
            lanes[k] = load<N>(x + min(first + k * step, width - N));
        }
#pragma unroll
        for (unsigned k = 0; k < NORM_TOGETHER; ++k) {
            const unsigned i = first + k * step;
            // Behind the row's end its last numbers are stored again.
            store<N>(row + min(i, width - N), lanes[k]);
            for (float value : lanes[k].at) {
                squares += i < width ? value * value : 0.0f;
            }
        }
    }
    return 1.0f / sqrtf(block_sum(squares) / width + eps);
}

// N numbers of the row from `i` on.
template <int N>
__device__ __forceinline__ Lanes<float, N> rms_normed(const float* row, const float* weight, unsigned i, float scale) {
    Lanes<float, N> lanes = load<N>(row + i);
    Lanes<float, N> weights = load<N>(weight + i);
    for (int lane = 0; lane < N; ++lane) {
        lanes.at[lane] *= scale * weights.at[lane];
    }
    return lanes;
}

template <int N>
__device__ __forceinline__ void rms_norm_row(ELEMENT* out, const float* x, const float* weight, unsigned width,
                                             float eps, float* row) {
    const float scale = rms_scale<N>(x, width, eps, row);
    for (unsigned i = threadIdx.x * N; i < width; i += blockDim.x * N) {
        store<N>(out + i, rms_normed<N>(row, weight, i, scale));
    }
}
