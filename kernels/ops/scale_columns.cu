// x[r][i] *= factors[i], in place.
//
// Shapes: x ELEMENT [R, width], factors f32 [width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::scale_columns`; on the CPU, `scale_columns` of crates/cpu/src/activation.rs.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void scale_row(ELEMENT* row, const float* factors, unsigned width) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> x = load<N>(row + i);
        const Lanes<float, N> by = load<N>(factors + i);
        for (int lane = 0; lane < N; ++lane) {
            x.at[lane] *= by.at[lane];
        }
        store<N>(row + i, x);
    }
}

extern "C" __global__ void scale_columns(ELEMENT* x, const float* __restrict__ factors, unsigned width) {
    ELEMENT* row = x + static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        scale_row<LANES>(row, factors, width);
    } else {
        scale_row<1>(row, factors, width);
    }
}
