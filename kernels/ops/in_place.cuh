// Replaces each element of a row by a function of it.
#pragma once

#include "lanes.cuh"

template <int N, class T, class Function>
__device__ __forceinline__ void replace_lanes(T* row, unsigned width, Function function) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> x = load<N>(row + i);
        for (float& value : x.at) {
            value = function(value);
        }
        store<N>(row + i, x);
    }
}

// Of row blockIdx.x of x [R, width]; the blocks of y share it. `function`: from float to float.
template <class T, class Function>
__device__ __forceinline__ void replace_row(T* x, unsigned width, Function function) {
    T* row = x + static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        replace_lanes<LANES>(row, width, function);
    } else {
        replace_lanes<1>(row, width, function);
    }
}
