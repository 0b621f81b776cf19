// The norm of a row, by all THREADS threads of a block: out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]. `row`:
// shared memory for `width` floats, in which each thread reads back only what it wrote.
#pragma once

#include "lanes.cuh"
#include "reduce.cuh"

// What the row is multiplied by; the row is then in `row`.
template <int N>
__device__ __forceinline__ float rms_scale(const float* x, unsigned width, float eps, float* row) {
    float squares = 0.0f;
    for (unsigned i = threadIdx.x * N; i < width; i += THREADS * N) {
        Lanes<float, N> lanes = load<N>(x + i);
        store<N>(row + i, lanes);
        for (float value : lanes.at) {
            squares += value * value;
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
    for (unsigned i = threadIdx.x * N; i < width; i += THREADS * N) {
        store<N>(out + i, rms_normed<N>(row, weight, i, scale));
    }
}
