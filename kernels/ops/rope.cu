// Rotates (a, b) to (a cos - b sin, b cos + a sin), in place: in each of the first `heads` heads of a row, by the
// angles of the row's position. Pair i < rotary / 2 of a head is elements i and i + rotary / 2 or, if `neighbours`, 2 i
// and 2 i + 1. The rest of a head is unchanged.
//
// Shapes: qkv ELEMENT [R, width], cosines and sines f32 [positions, rotary / 2], positions u32 [R].
// Grid: x = row, y = blocks over the pairs of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element; the tables' rows stay in cache.
// Definition: `Backend::rope`; on the CPU, `rope` of crates/cpu/src/rope.rs.
#include "ops/rotate.cuh"

template <int N>
__device__ __forceinline__ void rope_row(ELEMENT* row, const float* cosines, const float* sines, unsigned heads,
                                         unsigned head_dim, unsigned half, bool neighbours) {
    unsigned stride = gridDim.y * blockDim.x * N;
    for (unsigned pair = (blockIdx.y * blockDim.x + threadIdx.x) * N; pair < heads * half; pair += stride) {
        rotate_pairs<N>(row + pair / half * head_dim, cosines, sines, pair % half, half, neighbours);
    }
}

extern "C" __global__ void rope(ELEMENT* qkv, const float* __restrict__ cosines, const float* __restrict__ sines,
                                const unsigned* __restrict__ positions, unsigned width, unsigned heads,
                                unsigned head_dim, unsigned rotary, unsigned neighbours) {
    unsigned half = rotary / 2;
    ELEMENT* row = qkv + static_cast<unsigned long long>(blockIdx.x) * width;
    unsigned long long at = static_cast<unsigned long long>(positions[blockIdx.x]) * half;
    if (half % LANES == 0 && head_dim % LANES == 0 && width % LANES == 0) {
        rope_row<LANES>(row, cosines + at, sines + at, heads, head_dim, half, neighbours);
    } else {
        rope_row<1>(row, cosines + at, sines + at, heads, head_dim, half, neighbours);
    }
}
