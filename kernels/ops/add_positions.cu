// out[r] += table[positions[r]], widened to f32.
//
// Shapes: out f32 [R, width], table ELEMENT [longest sequence, width], positions u32 [R].
// Grid: one block per row.
// Limit: bandwidth, sizeof(ELEMENT) + 8 bytes per element.
// Definition: `Backend::add_positions`; on the CPU, `add_rows` of crates/cpu/src/gemm/stack.rs.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void add_row(float* out, const ELEMENT* from, unsigned width) {
    for (unsigned i = threadIdx.x * N; i < width; i += blockDim.x * N) {
        Lanes<float, N> sum = load<N>(out + i);
        const Lanes<float, N> more = load<N>(from + i);
        for (int lane = 0; lane < N; ++lane) {
            sum.at[lane] += more.at[lane];
        }
        store<N>(out + i, sum);
    }
}

extern "C" __global__ void add_positions(float* __restrict__ out, const ELEMENT* __restrict__ table,
                                         const unsigned* __restrict__ positions, unsigned width) {
    const unsigned long long row = blockIdx.x, position = positions[row];
    if (width % LANES == 0) {
        add_row<LANES>(out + row * width, table + position * width, width);
    } else {
        add_row<1>(out + row * width, table + position * width, width);
    }
}
