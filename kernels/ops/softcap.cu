// x[r][i] = cap * tanh(x[r][i] / cap), in place.
//
// Shapes: x f32 [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 8 bytes per element.
// Definition: `Backend::softcap`; on the CPU, `softcap` of crates/cpu/src/sums.rs.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void softcap_row(float* row, unsigned width, float cap) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> x = load<N>(row + i);
        for (float& value : x.at) {
            value = cap * tanhf(value / cap);
        }
        store<N>(row + i, x);
    }
}

extern "C" __global__ void softcap(float* x, unsigned width, float cap) {
    float* row = x + static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        softcap_row<LANES>(row, width, cap);
    } else {
        softcap_row<1>(row, width, cap);
    }
}
