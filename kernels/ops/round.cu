// out[r][i] = x[r][i], rounded to ELEMENT.
//
// Shapes: out ELEMENT [R, width], x f32 [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 4 + sizeof(ELEMENT) bytes per element.
// Definition: `Backend::round`.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void round_row(ELEMENT* out, const float* x, unsigned width) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        store<N>(out + i, load<N>(x + i));
    }
}

extern "C" __global__ void round_sums(ELEMENT* __restrict__ out, const float* __restrict__ x, unsigned width) {
    unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        round_row<LANES>(out + at, x + at, width);
    } else {
        round_row<1>(out + at, x + at, width);
    }
}
