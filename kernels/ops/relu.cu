// x[r][i] = max(x[r][i], 0), in place; NaN stays.
//
// Shapes: x ELEMENT [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::relu`; on the CPU, `relu` of crates/cpu/src/activation.rs.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void relu_row(ELEMENT* row, unsigned width) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> x = load<N>(row + i);
        for (float& value : x.at) {
            value = value < 0.0f ? 0.0f : value;
        }
        store<N>(row + i, x);
    }
}

extern "C" __global__ void relu(ELEMENT* x, unsigned width) {
    ELEMENT* row = x + static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        relu_row<LANES>(row, width);
    } else {
        relu_row<1>(row, width);
    }
}
