// Rounding of activations to e4m3 by a scale for each row, or for each 128 inputs of a row.
//
// Defines: ELEMENT, BLOCKS (0 or 1).
#pragma once

#include "lanes.cuh"
#include "reduce.cuh"

constexpr unsigned SIGNLESS = 0x7fffffff, BLOCK_INPUTS = 128;

// How scales are chosen: min(largest absolute value, bound) / 448, or 1 where that is zero; or `bound` itself, if `fixed`.
struct Scaling {
    unsigned fixed;
    float bound;

    // Of the largest bits without sign; those of a NaN are larger than those of numbers.
    __device__ __forceinline__ float of(unsigned bits) const {
        const float largest = __uint_as_float(bits);
        const float scale = (largest > bound ? bound : largest) / 448.0f;
        return fixed ? bound : scale == 0.0f ? 1.0f : scale;
    }
};

__device__ __forceinline__ unsigned warp_most(unsigned bits) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        bits = max(bits, __shfl_xor_sync(0xffffffff, bits, distance));
    }
    return bits;
}

// The largest over the block, returned in every thread.
__device__ __forceinline__ unsigned block_most(unsigned bits) {
    __shared__ unsigned most_of_warps[THREADS / 32];
    bits = warp_most(bits);
    if (threadIdx.x % 32 == 0) {
        most_of_warps[threadIdx.x / 32] = bits;
    }
    __syncthreads();
    for (unsigned warp = 0; warp < THREADS / 32; ++warp) {
        bits = max(bits, most_of_warps[warp]);
    }
    return bits;
}

template <int N>
__device__ __forceinline__ unsigned most_of(const Lanes<float, N>& lanes) {
    unsigned bits = 0;
#pragma unroll
    for (float value : lanes.at) {
        bits = max(bits, __float_as_uint(value) & SIGNLESS);
    }
    return bits;
}

template <int N>
__device__ __forceinline__ void store_rounded(e4m3* to, Lanes<float, N> lanes, float scale) {
#pragma unroll
    for (float& value : lanes.at) {
        value = value / scale;
    }
    store<N>(to, lanes);
}

// A row of `inner` inputs, by all threads of a block. `x(k)` gives N neighbouring inputs from k on; it is called twice.
template <int N, class Inputs>
__device__ __forceinline__ void round_by_row(e4m3* to, float* scale_of_row, unsigned inner, const Scaling& scaling, const Inputs& x) {
    unsigned bits = 0;
    for (unsigned k = threadIdx.x * N; k < inner; k += THREADS * N) {
        bits = max(bits, most_of<N>(x(k)));
    }
    const float scale = scaling.of(block_most(bits));
    if (threadIdx.x == 0) {
        *scale_of_row = scale;
    }
    for (unsigned k = threadIdx.x * N; k < inner; k += THREADS * N) {
        store_rounded<N>(to + k, x(k), scale);
    }
}

// The same by blocks of 128 inputs, a warp for each, four inputs a lane. `scales_of_row` are `apart` from each other.
template <int N, class Inputs>
__device__ __forceinline__ void round_by_blocks(e4m3* to, float* scales_of_row, unsigned apart, unsigned inner, const Scaling& scaling, const Inputs& x) {
    constexpr unsigned EACH = BLOCK_INPUTS / 32;
    static_assert(EACH % N == 0, "whole loads");
    for (unsigned block = threadIdx.x / 32; block * BLOCK_INPUTS < inner; block += THREADS / 32) {
        const unsigned first = block * BLOCK_INPUTS + threadIdx.x % 32 * EACH;
        unsigned bits = 0;
        Lanes<float, N> own[EACH / N];
#pragma unroll
        for (unsigned i = 0; i < EACH / N; i++) {
            if (first + i * N < inner) {
                own[i] = x(first + i * N);
                bits = max(bits, most_of<N>(own[i]));
            }
        }
        const float scale = scaling.of(warp_most(bits));
        if (threadIdx.x % 32 == 0) {
            scales_of_row[static_cast<unsigned long long>(block) * apart] = scale;
        }
#pragma unroll
        for (unsigned i = 0; i < EACH / N; i++) {
            if (first + i * N < inner) {
                store_rounded<N>(to + first + i * N, own[i], scale);
            }
        }
    }
}

// N inputs of a row in memory.
template <int N>
struct Row {
    const ELEMENT* x;

    __device__ __forceinline__ Lanes<float, N> operator()(unsigned k) const {
        return load<N>(x + k);
    }
};

// A row `x`, by all threads of a block, as BLOCKS says.
__device__ __forceinline__ void round_row(e4m3* to, float* scales_of_row, unsigned apart, const ELEMENT* x, unsigned inner, const Scaling& scaling) {
#if BLOCKS
    if (inner % 4 == 0) {
        round_by_blocks<4>(to, scales_of_row, apart, inner, scaling, Row<4>{x});
    } else {
        round_by_blocks<1>(to, scales_of_row, apart, inner, scaling, Row<1>{x});
    }
#else
    if (inner % LANES == 0) {
        round_by_row<LANES>(to, scales_of_row, inner, scaling, Row<LANES>{x});
    } else {
        round_by_row<1>(to, scales_of_row, inner, scaling, Row<1>{x});
    }
#endif
}
