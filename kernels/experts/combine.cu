// out[r][i] = sum over the row's experts, in the order of its choices, of weight * x[place][i], or of x[place][i]
// without weights; if `adds`, out[r][i] += that sum. Places from `*multiplied` on are of identities: they give
// input[r][i], or nothing if there is no input.
//
// Shapes: out f32 [R, width], x ELEMENT [places, width], input ELEMENT [R, width] or null; places [R, chosen], weights
// [R, chosen] or null.
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, chosen * sizeof(ELEMENT) + 4 bytes per output, or 8.
// Definition: `Backend::combine`, adding or not; on the CPU, `combine_rows` of crates/cpu/src/experts.rs.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void combine_row(float* out, const ELEMENT* x, const ELEMENT* input, const unsigned* places,
                                            const float* weights, unsigned multiplied, unsigned chosen, unsigned width,
                                            bool adds) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> sum = {};
#pragma unroll 4
        for (unsigned choice = 0; choice < chosen; choice++) {
            const unsigned place = places[choice];
            const ELEMENT* row = place < multiplied ? x + static_cast<unsigned long long>(place) * width : input;
            const Lanes<float, N> lanes = row ? load<N>(row + i) : Lanes<float, N>{};
            const float weight = weights ? weights[choice] : 1.0f;
            for (int lane = 0; lane < N; ++lane) {
                sum.at[lane] += weight * lanes.at[lane];
            }
        }
        if (adds) {
            const Lanes<float, N> before = load<N>(out + i);
            for (int lane = 0; lane < N; ++lane) {
                sum.at[lane] = before.at[lane] + sum.at[lane];
            }
        }
        store<N>(out + i, sum);
    }
}

extern "C" __global__ void combine(float* __restrict__ out, const ELEMENT* __restrict__ x,
                                   const ELEMENT* __restrict__ input, const unsigned* __restrict__ places,
                                   const float* __restrict__ weights, const unsigned* __restrict__ multiplied,
                                   unsigned chosen, unsigned width, unsigned adds) {
    unsigned long long row = blockIdx.x;
    places += row * chosen;
    weights = weights ? weights + row * chosen : nullptr;
    input = input ? input + row * width : nullptr;
    if (width % LANES == 0) {
        combine_row<LANES>(out + row * width, x, input, places, weights, *multiplied, chosen, width, adds);
    } else {
        combine_row<1>(out + row * width, x, input, places, weights, *multiplied, chosen, width, adds);
    }
}
