// x[r][i] = x[r][i] * factor, in place.
//
// Shapes: x f32 [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 8 bytes per element.
// Definition: `Backend::scale`; on the CPU, `scale` of crates/cpu/src/sums.rs.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void scale_row(float* row, unsigned width, float factor) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> x = load<N>(row + i);
        for (float& value : x.at) {
            value *= factor;
        }
        store<N>(row + i, x);
    }
}

extern "C" __global__ void scale(float* x, unsigned width, float factor) {
    float* row = x + static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        scale_row<LANES>(row, width, factor);
    } else {
        scale_row<1>(row, width, factor);
    }
}
