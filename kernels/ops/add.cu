// out[r][i] += x[r][i].
//
// Shapes: out f32 [R, width], x f32 [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 12 bytes per element.
// Definition: `Backend::add`; on the CPU, `add` of crates/cpu/src/sums.rs.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void add_row(float* out, const float* x, unsigned width) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> sums = load<N>(out + i), lanes = load<N>(x + i);
        for (int lane = 0; lane < N; ++lane) {
            sums.at[lane] += lanes.at[lane];
        }
        store<N>(out + i, sums);
    }
}

extern "C" __global__ void add_sums(float* __restrict__ out, const float* __restrict__ x, unsigned width) {
    unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        add_row<LANES>(out + at, x + at, width);
    } else {
        add_row<1>(out + at, x + at, width);
    }
}
