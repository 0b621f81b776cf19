// x[r][i] += bias[i], for matrix products whose cuBLASLt algorithm cannot add the bias itself.
//
// Shapes: x OUT [R, width], bias f32 [width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 2 * sizeof(OUT) bytes per element.
// Definition: the bias of `Backend::linear`, adding or not; on the CPU, crates/cpu/src/gemm/clear.rs.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void add_bias_row(OUT* row, const float* bias, unsigned width) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> x = load<N>(row + i), biases = load<N>(bias + i);
        for (int lane = 0; lane < N; ++lane) {
            x.at[lane] += biases.at[lane];
        }
        store<N>(row + i, x);
    }
}

extern "C" __global__ void add_bias(OUT* x, const float* __restrict__ bias, unsigned width) {
    OUT* row = x + static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        add_bias_row<LANES>(row, bias, width);
    } else {
        add_bias_row<1>(row, bias, width);
    }
}
