// Merges two results of attention over different positions: with m the larger of their log-sum-exps, out is the mean of
// out and other with weights exp(lse - m) and exp(other_lse - m), and lse becomes that of both. Where both are -inf,
// out stays as it is.
//
// Shapes: out and other ELEMENT [R, heads * width]; lse and other_lse f32 [R, heads].
// Grid: x = row, y = blocks of HEADS heads, of 128 threads each.
// Limit: bandwidth, 3 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::merge_attended`; on the CPU, crates/cpu/src/latent.rs.
#include "lanes.cuh"

// Heads of a block, which alone reads and writes their log-sum-exps.
constexpr unsigned HEADS = 8;

// The log-sum-exp of no positions.
#define NOTHING __uint_as_float(0xff800000u)

template <int N>
__device__ __forceinline__ void merge_block(ELEMENT* out, const ELEMENT* other, const float* lse,
                                            const float* other_lse, unsigned heads, unsigned width) {
    for (unsigned i = threadIdx.x * N; i < heads * width; i += blockDim.x * N) {
        const float own = lse[i / width], others = other_lse[i / width], most = fmaxf(own, others);
        if (most == NOTHING) {
            continue;
        }
        const float own_weight = expf(own - most), weight = expf(others - most);
        const float scale = 1.0f / (own_weight + weight);
        Lanes<float, N> x = load<N>(out + i);
        const Lanes<float, N> y = load<N>(other + i);
#pragma unroll
        for (int lane = 0; lane < N; ++lane) {
            x.at[lane] = (x.at[lane] * own_weight + y.at[lane] * weight) * scale;
        }
        store<N>(out + i, x);
    }
}

extern "C" __global__ void merge_attended(ELEMENT* __restrict__ out, float* lse, const ELEMENT* __restrict__ other,
                                          const float* __restrict__ other_lse, unsigned heads, unsigned width) {
    const unsigned first = blockIdx.y * HEADS, count = min(heads - first, HEADS);
    const unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * heads + first;
    if (width % LANES == 0) {
        merge_block<LANES>(out + at * width, other + at * width, lse + at, other_lse + at, count, width);
    } else {
        merge_block<1>(out + at * width, other + at * width, lse + at, other_lse + at, count, width);
    }
    __syncthreads();
    if (threadIdx.x < count) {
        const float own = lse[at + threadIdx.x], others = other_lse[at + threadIdx.x], most = fmaxf(own, others);
        if (most != NOTHING) {
            const float ln_2 = 0.693147180559945f;
            lse[at + threadIdx.x] = most + log2f(expf(own - most) + expf(others - most)) * ln_2;
        }
    }
}
