// out[place of a choice] = weight of the choice * x[its row].
//
// Shapes: out ELEMENT [R * chosen, width], x ELEMENT [R, width]; places u32, weights f32 [R, chosen].
// Grid: x = row, y = blocks over the elements of the row; a thread writes its elements to all places of the row.
// Limit: bandwidth, (chosen + 1) * sizeof(ELEMENT) bytes per element of x.
// Definition: `Backend::weigh_places`; on the CPU, `weigh_places` of crates/cpu/src/experts.rs.
#include "lanes.cuh"

template <int N>
__device__ __forceinline__ void weigh_row(ELEMENT* out, const ELEMENT* x, const unsigned* places, const float* weights,
                                          unsigned chosen, unsigned width) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        const Lanes<float, N> lanes = load<N>(x + i);
        for (unsigned choice = 0; choice < chosen; choice++) {
            Lanes<float, N> weighed = lanes;
            for (int lane = 0; lane < N; ++lane) {
                weighed.at[lane] *= weights[choice];
            }
            store<N>(out + static_cast<unsigned long long>(places[choice]) * width + i, weighed);
        }
    }
}

extern "C" __global__ void weigh_places(ELEMENT* __restrict__ out, const ELEMENT* __restrict__ x,
                                        const unsigned* __restrict__ places, const float* __restrict__ weights,
                                        unsigned chosen, unsigned width) {
    const unsigned long long row = blockIdx.x;
    if (width % LANES == 0) {
        weigh_row<LANES>(out, x + row * width, places + row * chosen, weights + row * chosen, chosen, width);
    } else {
        weigh_row<1>(out, x + row * width, places + row * chosen, weights + row * chosen, chosen, width);
    }
}
