// Rotates (a, b) to (a cos - b sin, b cos + a sin) for a = head[i], b = head[i + rotary / 2], i < rotary / 2, in place:
// in each of the first `heads` heads of a row, by the angle of the row's position. The rest of a head is unchanged.
//
// Shapes: qkv ELEMENT [R, width], cosines and sines f32 [positions, rotary / 2], positions u32 [R].
// Grid: x = row, y = blocks over the pairs of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element; the tables' rows stay in cache.
// Definition: `Backend::rope`; on the CPU, `rope` of crates/cpu/src/rope.rs.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void rope_row(ELEMENT* row, const float* cosines, const float* sines, unsigned heads,
                                         unsigned head_dim, unsigned half) {
    unsigned stride = gridDim.y * blockDim.x * N;
    for (unsigned pair = (blockIdx.y * blockDim.x + threadIdx.x) * N; pair < heads * half; pair += stride) {
        unsigned i = pair % half;
        ELEMENT* low = row + pair / half * head_dim + i;
        ELEMENT* high = low + half;
        Lanes<float, N> a = load<N>(low), b = load<N>(high);
        Lanes<float, N> cosine = load<N>(cosines + i), sine = load<N>(sines + i);
        Lanes<float, N> rotated_a, rotated_b;
        for (int lane = 0; lane < N; ++lane) {
            rotated_a.at[lane] = a.at[lane] * cosine.at[lane] - b.at[lane] * sine.at[lane];
            rotated_b.at[lane] = b.at[lane] * cosine.at[lane] + a.at[lane] * sine.at[lane];
        }
        store<N>(low, rotated_a);
        store<N>(high, rotated_b);
    }
}

extern "C" __global__ void rope(ELEMENT* qkv, const float* __restrict__ cosines, const float* __restrict__ sines,
                                const unsigned* __restrict__ positions, unsigned width, unsigned heads,
                                unsigned head_dim, unsigned rotary) {
    unsigned half = rotary / 2;
    ELEMENT* row = qkv + static_cast<unsigned long long>(blockIdx.x) * width;
    unsigned long long at = static_cast<unsigned long long>(positions[blockIdx.x]) * half;
    if (half % LANES == 0 && head_dim % LANES == 0 && width % LANES == 0) {
        rope_row<LANES>(row, cosines + at, sines + at, heads, head_dim, half);
    } else {
        rope_row<1>(row, cosines + at, sines + at, heads, head_dim, half);
    }
}
