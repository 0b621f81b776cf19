// The gate of a row, by all threads of the blocks along y: out[i] = silu(x[i]) * x[width + i], where silu(x) = x / (1 +
// e^-x).
#pragma once

#include "lanes.cuh"
#include "sigmoid.cuh"

__device__ __forceinline__ float gate_silu(float gate, float up) {
    return gate * (sigmoid<ELEMENT>(gate) * up);
}

template <int N>
__device__ __forceinline__ void gated_silu_row(ELEMENT* out, const ELEMENT* x, unsigned width) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> gate = load<N>(x + i), up = load<N>(x + width + i);
        for (int lane = 0; lane < N; ++lane) {
            gate.at[lane] = gate_silu(gate.at[lane], up.at[lane]);
        }
        store<N>(out + i, gate);
    }
}
