// The norm of each of `heads` consecutive heads of a row, in place: x = head, or head - mean(head) if `centred`, and
// head[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i].
//
// Shapes: qkv ELEMENT [R, width]; `qkv` points at the first normalised head of the first row. weight f32 [head_dim], or
// one such for each head, `apart` elements from one to the next.
// Grid: x = row, y = blocks over heads; one warp per head. The later passes over a head hit the L1 cache.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::head_norm`; on the CPU, `head_norm` of crates/cpu/src/norm.rs.
#include "lanes.cuh"
#include "reduce.cuh"

template <int N>
__device__ __forceinline__ void head_norm_head(ELEMENT* head, const float* weight, unsigned head_dim, bool centred,
                                               float eps) {
    unsigned first = threadIdx.x % 32 * N;
    float mean = 0.0f;
    if (centred) {
        float sum = 0.0f;
        for (unsigned i = first; i < head_dim; i += 32 * N) {
            for (float value : load<N>(head + i).at) {
                sum += value;
            }
        }
        mean = warp_sum(sum) / head_dim;
    }
    float squares = 0.0f;
    for (unsigned i = first; i < head_dim; i += 32 * N) {
        for (float value : load<N>(head + i).at) {
            squares += (value - mean) * (value - mean);
        }
    }
    float scale = 1.0f / sqrtf(warp_sum(squares) / head_dim + eps);
    for (unsigned i = first; i < head_dim; i += 32 * N) {
        Lanes<float, N> lanes = load<N>(head + i);
        Lanes<float, N> weights = load<N>(weight + i);
        for (int lane = 0; lane < N; ++lane) {
            lanes.at[lane] = (lanes.at[lane] - mean) * (scale * weights.at[lane]);
        }
        store<N>(head + i, lanes);
    }
}

extern "C" __global__ void head_norm(ELEMENT* qkv, const float* __restrict__ weight, unsigned width, unsigned heads,
                                     unsigned head_dim, unsigned apart, unsigned centred, float eps) {
    unsigned head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    if (head >= heads) {
        return;  // the whole warp returns
    }
    ELEMENT* at = qkv + static_cast<unsigned long long>(blockIdx.x) * width + head * head_dim;
    weight += static_cast<unsigned long long>(head) * apart;
    if (head_dim % 4 == 0) {
        head_norm_head<4>(at, weight, head_dim, centred, eps);
    } else {
        head_norm_head<1>(at, weight, head_dim, centred, eps);
    }
}
