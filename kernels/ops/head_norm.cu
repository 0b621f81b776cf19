// head[i] = head[i] / sqrt(mean(head^2) + eps) * weight[i] for each of `heads` consecutive heads of a row, in place.
//
// Shapes: qkv ELEMENT [R, width], weight f32 [head_dim]; `qkv` points at the first normalised head of the first row.
// Grid: x = row, y = blocks over heads; one warp per head. The second pass over a head hits the L1 cache.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::head_norm`; on the CPU, `head_norm` of crates/cpu/src/norm.rs.
#include "lanes.cuh"
#include "reduce.cuh"

template <int N>
__device__ __forceinline__ void head_norm_head(ELEMENT* head, const float* weight, unsigned head_dim, float eps) {
    unsigned first = threadIdx.x % 32 * N;
    float squares = 0.0f;
    for (unsigned i = first; i < head_dim; i += 32 * N) {
        for (float value : load<N>(head + i).at) {
            squares += value * value;
        }
    }
    float scale = 1.0f / sqrtf(warp_sum(squares) / head_dim + eps);
    for (unsigned i = first; i < head_dim; i += 32 * N) {
        Lanes<float, N> lanes = load<N>(head + i);
        Lanes<float, N> weights = load<N>(weight + i);
        for (int lane = 0; lane < N; ++lane) {
            lanes.at[lane] *= scale * weights.at[lane];
        }
        store<N>(head + i, lanes);
    }
}

extern "C" __global__ void head_norm(ELEMENT* qkv, const float* __restrict__ weight, unsigned width, unsigned heads,
                                     unsigned head_dim, float eps) {
    unsigned head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    if (head >= heads) {
        return;  // the whole warp returns
    }
    ELEMENT* at = qkv + static_cast<unsigned long long>(blockIdx.x) * width + head * head_dim;
    if (head_dim % 4 == 0) {
        head_norm_head<4>(at, weight, head_dim, eps);
    } else {
        head_norm_head<1>(at, weight, head_dim, eps);
    }
}
