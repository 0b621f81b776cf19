// out[r][i] = g sigmoid(1.702 g) (u + 1), with g = min(x[r][i], 7) and u = x[r][width + i], at most 7 away from 0.
//
// Shapes: out ELEMENT [R, width], x ELEMENT [R, 2 * width].
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 3 * sizeof(ELEMENT) bytes per output.
// Definition: `Backend::gated`, `Gate::Clamped`; on the CPU, `gated` of crates/cpu/src/activation.rs.
#include "lanes.cuh"
#include "sigmoid.cuh"

template <int N>
__device__ __forceinline__ void gated_clamped_row(ELEMENT* out, const ELEMENT* x, unsigned width) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> gate = load<N>(x + i), up = load<N>(x + width + i);
        for (int lane = 0; lane < N; ++lane) {
            float g = fminf(gate.at[lane], 7.0f), u = fminf(fmaxf(up.at[lane], -7.0f), 7.0f);
            gate.at[lane] = g * sigmoid<ELEMENT>(1.702f * g) * (u + 1.0f);
        }
        store<N>(out + i, gate);
    }
}

extern "C" __global__ void gated_clamped(ELEMENT* __restrict__ out, const ELEMENT* __restrict__ x, unsigned width) {
    unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * width;
    if (width % LANES == 0) {
        gated_clamped_row<LANES>(out + at, x + 2 * at, width);
    } else {
        gated_clamped_row<1>(out + at, x + 2 * at, width);
    }
}
