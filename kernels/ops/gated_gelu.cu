// out[r][i] = gelu(x[r][i]) * x[r][width + i], with the gelu of gelu.cuh.
//
// Shapes: out ELEMENT [R, width], x ELEMENT [R, 2 * width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 3 * sizeof(ELEMENT) bytes per output.
// Definition: `Backend::gated`; on the CPU, `gated` of crates/cpu/src/activation.rs.
#include "lanes.cuh"
#include "ops/gelu.cuh"

template <int N>
__device__ __forceinline__ void gated_gelu_row(ELEMENT* out, const ELEMENT* x, unsigned width) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> gate = load<N>(x + i), up = load<N>(x + width + i);
        for (int lane = 0; lane < N; ++lane) {
            gate.at[lane] = gelu_of(gate.at[lane]) * up.at[lane];
        }
        store<N>(out + i, gate);
    }
}

extern "C" __global__ void gated_gelu(ELEMENT* __restrict__ out, const ELEMENT* __restrict__ x, unsigned width) {
    unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        gated_gelu_row<LANES>(out + at, x + 2 * at, width);
    } else {
        gated_gelu_row<1>(out + at, x + 2 * at, width);
    }
}
