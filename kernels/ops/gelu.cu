// x = 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), in place. Computed as the equivalent x / (1 +
// e^-2u).
//
// Shapes: x ELEMENT [R, width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::gelu`; on the CPU, `gelu` of crates/cpu/src/activation.rs.
#include "lanes.cuh"
#include "sigmoid.cuh"

template <int N>
__device__ __forceinline__ void gelu_row(ELEMENT* row, unsigned width) {
    constexpr float TWICE_SQRT_2_OVER_PI = 1.5957691f;
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> x = load<N>(row + i);
        for (float& value : x.at) {
            float twice_u = TWICE_SQRT_2_OVER_PI * (value + 0.044715f * value * value * value);
            value *= sigmoid<ELEMENT>(twice_u);
        }
        store<N>(row + i, x);
    }
}

extern "C" __global__ void gelu(ELEMENT* x, unsigned width) {
    ELEMENT* row = x + static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        gelu_row<LANES>(row, width);
    } else {
        gelu_row<1>(row, width);
    }
}
