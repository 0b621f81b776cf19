// For each `width` neighbours of a row, in place, with norm(x) = x / sqrt(mean(x^2) + eps):
//
//   norm(x)[i] * weight[i] * factor(gate[i]),  or, with GATES_FIRST,  norm(x * factor(gate))[i] * weight[i],
//
// where factor(g) = g / (1 + e^-g), or 1 / (1 + e^-g) without IS_SILU. Without weights there is no norm: x[i] *
// factor(gate[i]).
//
// Shapes: x, gate ELEMENT [R, norms * width]; weight f32 [width], [norms, width] with OWN_WEIGHTS, or null.
// Grid: x = row, y = blocks over norms; one warp for each norm, or the whole block where norms are wider than
// WARP_MOST. The second pass over a norm hits the L1 cache. Limit: bandwidth, 3 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::gated_norm`; on the CPU, `gated_norm` of crates/cpu/src/gated_norm.rs.
#include "lanes.cuh"
#include "reduce.cuh"
#include "sigmoid.cuh"

// As in crates/cuda/src/ops.rs.
constexpr unsigned WARP_MOST = 1024, WARPS = 4;
constexpr unsigned OWN_WEIGHTS = 1, IS_SILU = 2, GATES_FIRST = 4;

// Sum over the warps of a block, in each thread.
__device__ __forceinline__ float add_warps(float x) {
    __shared__ float warps[WARPS];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = x;
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (float warp : warps) {
        sum += warp;
    }
    return sum;
}

__device__ __forceinline__ float factor_of(float gate, unsigned how) {
    const float factor = sigmoid<ELEMENT>(gate);
    return how & IS_SILU ? gate * factor : factor;
}

// One norm by a warp, or by all of a block.
template <int N, bool BY_WARP>
__device__ __forceinline__ void gated_norm_of(ELEMENT* x, const ELEMENT* gate, const float* weight, unsigned width,
                                              float eps, unsigned how) {
    constexpr unsigned STEP = (BY_WARP ? 32 : 32 * WARPS) * N;
    const unsigned first = (BY_WARP ? threadIdx.x % 32 : threadIdx.x) * N;
    if (weight == nullptr) {
        for (unsigned i = first; i < width; i += STEP) {
            Lanes<float, N> lanes = load<N>(x + i);
            const Lanes<float, N> gates = load<N>(gate + i);
            for (int lane = 0; lane < N; ++lane) {
                lanes.at[lane] *= factor_of(gates.at[lane], how);
            }
            store<N>(x + i, lanes);
        }
        return;
    }
    float squares = 0.0f;
    for (unsigned i = first; i < width; i += STEP) {
        Lanes<float, N> lanes = load<N>(x + i);
        if (how & GATES_FIRST) {
            const Lanes<float, N> gates = load<N>(gate + i);
            for (int lane = 0; lane < N; ++lane) {
                lanes.at[lane] *= factor_of(gates.at[lane], how);
            }
        }
        for (float value : lanes.at) {
            squares += value * value;
        }
    }
    squares = BY_WARP ? warp_sum(squares) : add_warps(squares);
    const float scale = 1.0f / sqrtf(squares / width + eps);
    for (unsigned i = first; i < width; i += STEP) {
        Lanes<float, N> lanes = load<N>(x + i);
        const Lanes<float, N> weights = load<N>(weight + i), gates = load<N>(gate + i);
        for (int lane = 0; lane < N; ++lane) {
            lanes.at[lane] *= scale * weights.at[lane] * factor_of(gates.at[lane], how);
        }
        store<N>(x + i, lanes);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    gated_norm(ELEMENT* x, const ELEMENT* __restrict__ gate, const float* __restrict__ weight, unsigned norms,
               unsigned width, unsigned how, float eps) {
    const bool by_warp = width <= WARP_MOST;
    const unsigned number = by_warp ? blockIdx.y * WARPS + threadIdx.x / 32 : blockIdx.y;
    if (number >= norms) {
        return;  // the whole warp returns
    }
    const unsigned long long at = (static_cast<unsigned long long>(blockIdx.x) * norms + number) * width;
    weight += how & OWN_WEIGHTS ? number * static_cast<unsigned long long>(width) : 0;
    if (width % 4 != 0) {
        by_warp ? gated_norm_of<1, true>(x + at, gate + at, weight, width, eps, how)
                : gated_norm_of<1, false>(x + at, gate + at, weight, width, eps, how);
    } else {
        by_warp ? gated_norm_of<4, true>(x + at, gate + at, weight, width, eps, how)
                : gated_norm_of<4, false>(x + at, gate + at, weight, width, eps, how);
    }
}
