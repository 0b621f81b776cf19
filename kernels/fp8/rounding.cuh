// Rounding of activations to e4m3 by a scale for each row, or for each 128 inputs of a row, by all threads of a block.
//
// What is rounded comes from `Inputs`, N neighbouring inputs at a time: `load(k)` reads what they are made of, so that
// a thread has several on their way; `value(loaded)` makes them, as ELEMENT holds them; `keep(k, value)` stores them
// where they are wanted as they are; `again(k)` is the value of a `k` that was made before. FEW and HELD: the vectors
// of a short row, and of any row, that are worth a thread's registers; the others are made again.
//
// Defines: ELEMENT, BLOCKS (0 or 1).
#pragma once

#include "e4m3.cuh"
#include "reduce.cuh"

constexpr unsigned SIGNLESS = 0x7fffffff, BLOCK_INPUTS = 128;
// 2^-126, the smallest normal number.
constexpr unsigned LEAST_NORMAL = 0x00800000;
// Vectors of a short and of a long row that a thread holds while the row's scale is found: 4 and 8, of f32 2.
constexpr unsigned FEW_HELD = 8 / sizeof(ELEMENT), MOST_HELD = 32 / (sizeof(ELEMENT) * sizeof(ELEMENT));
// Vectors that are on their way at once.
constexpr unsigned MOST_TOGETHER = 4;

// How scales are chosen: min(largest absolute value, bound) / 448, or 1 where that is not normal; or `bound` itself, if
// `fixed`.
struct Scaling {
    unsigned fixed;
    float bound;

    // Of the largest bits without sign; those of a NaN are larger than those of numbers.
    __device__ __forceinline__ float of(unsigned bits) const {
        const float largest = __uint_as_float(bits);
        const float scale = (largest > bound ? bound : largest) / 448.0f;
        return fixed ? bound : scale < __uint_as_float(LEAST_NORMAL) ? 1.0f : scale;
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
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
        bits = max(bits, most_of_warps[warp]);
    }
    return bits;
}

template <int N>
__device__ __forceinline__ unsigned most_of(const Lanes<ELEMENT, N>& lanes) {
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        bits = max(bits, __float_as_uint(to_f32(lanes.at[i])) & SIGNLESS);
    }
    return bits;
}

template <int N>
__device__ __forceinline__ void store_rounded(e4m3* to, const Lanes<ELEMENT, N>& lanes, float reciprocal) {
    Lanes<float, N> scaled;
#pragma unroll
    for (int i = 0; i < N; i++) {
        scaled.at[i] = to_f32(lanes.at[i]) * reciprocal;
    }
    store<N>(to, scaled);
}

// A row of `inner` inputs. Of rows of more than HELD * blockDim.x * N inputs, the rest is made twice.
template <int N, unsigned HELD, class Inputs>
__device__ __forceinline__ void round_by_row(e4m3* to, float* scale_of_row, unsigned inner, const Scaling& scaling,
                                             const Inputs& x) {
    const unsigned own = threadIdx.x * N, step = blockDim.x * N;
    constexpr unsigned TOGETHER = HELD < MOST_TOGETHER ? HELD : MOST_TOGETHER;
    static_assert(HELD % TOGETHER == 0, "whole groups");
    Lanes<ELEMENT, N> held[HELD];
    unsigned bits = 0;
#pragma unroll
    for (unsigned first = 0; first < HELD; first += TOGETHER) {
        typename Inputs::Loaded loaded[TOGETHER];
        // Behind the row's end its last inputs are read again, which leaves the largest as it is.
#pragma unroll
        for (unsigned i = 0; i < TOGETHER; i++) {
            loaded[i] = x.load(min(own + (first + i) * step, inner - N));
        }
#pragma unroll
        for (unsigned i = 0; i < TOGETHER; i++) {
            const unsigned k = own + (first + i) * step;
            held[first + i] = x.value(loaded[i]);
            bits = max(bits, most_of<N>(held[first + i]));
            if (k < inner) {
                x.keep(k, held[first + i]);
            }
        }
    }
#pragma unroll 1
    for (unsigned k = own + HELD * step; k < inner; k += step) {
        const Lanes<ELEMENT, N> made = x.value(x.load(k));
        bits = max(bits, most_of<N>(made));
        x.keep(k, made);
    }
    const float scale = scaling.of(block_most(bits)), reciprocal = 1.0f / scale;
    if (threadIdx.x == 0) {
        *scale_of_row = scale;
    }
#pragma unroll
    for (unsigned i = 0; i < HELD; i++) {
        if (own + i * step < inner) {
            store_rounded<N>(to + own + i * step, held[i], reciprocal);
        }
    }
#pragma unroll 1
    for (unsigned k = own + HELD * step; k < inner; k += step) {
        store_rounded<N>(to + k, x.again(k), reciprocal);
    }
}

// The same by blocks of 128 inputs, a warp for each, four inputs a lane; a warp reads AHEAD blocks at once.
// `scales_of_row` are `apart` from each other.
template <int N, unsigned AHEAD, class Inputs>
__device__ __forceinline__ void round_by_blocks(e4m3* to, float* scales_of_row, unsigned apart, unsigned inner,
                                                const Scaling& scaling, const Inputs& x) {
    constexpr unsigned EACH = BLOCK_INPUTS / 32;
    static_assert(EACH % N == 0, "whole loads");
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll 1
    for (unsigned begin = threadIdx.x / 32; begin * BLOCK_INPUTS < inner; begin += AHEAD * warps) {
        typename Inputs::Loaded loaded[AHEAD][EACH / N];
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) {
            const unsigned first = (begin + i * warps) * BLOCK_INPUTS + lane * EACH;
#pragma unroll
            for (unsigned v = 0; v < EACH / N; v++) {
                loaded[i][v] = x.load(min(first + v * N, inner - N));
            }
        }
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) {
            const unsigned block = begin + i * warps, first = block * BLOCK_INPUTS + lane * EACH;
            unsigned bits = 0;
            Lanes<ELEMENT, N> made[EACH / N];
#pragma unroll
            for (unsigned v = 0; v < EACH / N; v++) {
                made[v] = x.value(loaded[i][v]);
                if (first + v * N < inner) {
                    bits = max(bits, most_of<N>(made[v]));
                    x.keep(first + v * N, made[v]);
                }
            }
            const float scale = scaling.of(warp_most(bits)), reciprocal = 1.0f / scale;
            if (lane == 0 && block * BLOCK_INPUTS < inner) {
                scales_of_row[static_cast<unsigned long long>(block) * apart] = scale;
            }
#pragma unroll
            for (unsigned v = 0; v < EACH / N; v++) {
                if (first + v * N < inner) {
                    store_rounded<N>(to + first + v * N, made[v], reciprocal);
                }
            }
        }
    }
}

// A row of inputs, as BLOCKS says. `Inputs<N>` is made from `given`.
template <template <int> class Inputs, class Given>
__device__ __forceinline__ void round_row(e4m3* to, float* scales_of_row, unsigned apart, unsigned inner,
                                          const Scaling& scaling, const Given& given) {
#if BLOCKS
    if (inner % 4 == 0) {
        round_by_blocks<4, 4>(to, scales_of_row, apart, inner, scaling, Inputs<4>{given});
    } else {
        round_by_blocks<1, 1>(to, scales_of_row, apart, inner, scaling, Inputs<1>{given});
    }
#else
    if (inner % LANES != 0) {
        round_by_row<1, Inputs<1>::HELD>(to, scales_of_row, inner, scaling, Inputs<1>{given});
    } else if (inner <= Inputs<LANES>::FEW * blockDim.x * LANES) {
        round_by_row<LANES, Inputs<LANES>::FEW>(to, scales_of_row, inner, scaling, Inputs<LANES>{given});
    } else {
        round_by_row<LANES, Inputs<LANES>::HELD>(to, scales_of_row, inner, scaling, Inputs<LANES>{given});
    }
#endif
}

// N elements as they lie in memory.
template <int N>
__device__ __forceinline__ Lanes<ELEMENT, N> read(const ELEMENT* from) {
    return *reinterpret_cast<const Lanes<ELEMENT, N>*>(from);
}

template <int N>
__device__ __forceinline__ Lanes<ELEMENT, N> as_elements(const Lanes<float, N>& x) {
    Lanes<ELEMENT, N> elements;
#pragma unroll
    for (int i = 0; i < N; i++) {
        elements.at[i] = from_f32<ELEMENT>(x.at[i]);
    }
    return elements;
}
