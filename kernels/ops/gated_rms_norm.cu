// head[i] = head[i] / sqrt(mean(head^2) + eps) * weight[i] * silu(gate[i]) for each head of a row, in place, where
// silu(g) = g / (1 + e^-g).
//
// Shapes: x, gate ELEMENT [R, heads * head_dim], weight f32 [head_dim].
// Grid: x = row, y = blocks over heads; one warp per head. The second pass over a head hits the L1 cache.
// Limit: bandwidth, 3 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::gated_rms_norm`; on the CPU, `gated_rms_norm` of crates/cpu/src/delta_rule.rs.
#include "lanes.cuh"
#include "reduce.cuh"
#include "sigmoid.cuh"

template <int N>
__device__ __forceinline__ void gated_norm_head(ELEMENT* head, const ELEMENT* gate, const float* weight,
                                                unsigned head_dim, float eps) {
    const unsigned first = threadIdx.x % 32 * N;
    float squares = 0.0f;
    for (unsigned i = first; i < head_dim; i += 32 * N) {
        for (float value : load<N>(head + i).at) {
            squares += value * value;
        }
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / head_dim + eps);
    for (unsigned i = first; i < head_dim; i += 32 * N) {
        Lanes<float, N> lanes = load<N>(head + i);
        const Lanes<float, N> weights = load<N>(weight + i), gates = load<N>(gate + i);
        for (int lane = 0; lane < N; ++lane) {
            const float gate = gates.at[lane];
            lanes.at[lane] *= scale * weights.at[lane] * (gate * sigmoid<ELEMENT>(gate));
        }
        store<N>(head + i, lanes);
    }
}

extern "C" __global__ void gated_rms_norm(ELEMENT* x, const ELEMENT* __restrict__ gate,
                                          const float* __restrict__ weight, unsigned heads, unsigned head_dim,
                                          float eps) {
    const unsigned head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    if (head >= heads) {
        return;  // the whole warp returns
    }
    const unsigned long long at = (static_cast<unsigned long long>(blockIdx.x) * heads + head) * head_dim;
    if (head_dim % 4 == 0) {
        gated_norm_head<4>(x + at, gate + at, weight, head_dim, eps);
    } else {
        gated_norm_head<1>(x + at, gate + at, weight, head_dim, eps);
    }
}
