// x[r][i] = gelu(x[r][i]) * y[r][from + i], in place, with the gelu of gelu.cuh.
//
// Shapes: x ELEMENT [R, width], y f32 [R, y_width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 4 + 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::gelu_times`; on the CPU, `gelu_times` of crates/cpu/src/activation.rs.
#include "lanes.cuh"
#include "ops/gelu.cuh"

template <int N>
__device__ __forceinline__ void gelu_times_row(ELEMENT* x, const float* y, unsigned width) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> lanes = load<N>(x + i), factors = load<N>(y + i);
        for (int lane = 0; lane < N; ++lane) {
            lanes.at[lane] = gelu_of(lanes.at[lane]) * factors.at[lane];
        }
        store<N>(x + i, lanes);
    }
}

extern "C" __global__ void gelu_times(ELEMENT* __restrict__ x, const float* __restrict__ y, unsigned width,
                                      unsigned y_width, unsigned from) {
    unsigned long long row = blockIdx.x;
    y += row * y_width + from;
    if (width % LANES == 0 && y_width % LANES == 0 && from % LANES == 0) {
        gelu_times_row<LANES>(x + row * width, y, width);
    } else {
        gelu_times_row<1>(x + row * width, y, width);
    }
}
