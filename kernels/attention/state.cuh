// The state (o, m, l) of a softmax that is computed piece by piece, and how states combine. For scores s (in units of
// log2: q.k * scale * log2 e) and values v: l = sum 2^(s - m), o = sum 2^(s - m) v, not divided by l. m is max s, or
// less: so much, of a wide tile, that weights stay below MOST_WEIGHT (attention/rows.cuh), l then between 1 and 2^80,
// far from both ends of f32. The state of no scores at all is m = -inf, which must never be subtracted from itself, or
// LOWEST; l = 0, o = 0.
#pragma once

#define NO_SCORE __int_as_float(0xff800000)  // -inf; NVRTC has no constant for it

// m of rows that have seen no score, where weights are taken before m is known: any score's weight against it is too
// large, and the weight of no score is 0.
constexpr float LOWEST = -1e30f;

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What exponents are taken against when the largest score is `m`: `m`, and any number where there is no score.
__device__ __forceinline__ float anchor(float m) {
    return m == NO_SCORE ? 0.0f : m;
}

// The m of a row whose largest score was `m` so far and is `top` now. It may stay behind by so much that weights stay
// small numbers: results need not be brought to a new one each time.
constexpr float LEEWAY = 8.0f;

__device__ __forceinline__ float anchored(float m, float top) {
    return top > m + LEEWAY ? top : m;
}

// 2^(s - m) for a score or another state's `m`; 0 where there is none. `against` = anchor(m).
__device__ __forceinline__ float weight(float s, float against) {
    return exp2_fast(s - against);
}

// To a unit of the last place.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What `o` is multiplied by at last.
__device__ __forceinline__ float normaliser(float l) {
    return l == 0.0f ? 0.0f : 1.0f / l;
}

// To a unit of the last place, by fewer instructions; in tree_attention, where registers are short, it would cost
// spills.
__device__ __forceinline__ float normaliser_fast(float l) {
    return l == 0.0f ? 0.0f : reciprocal_fast(l);
}

// Where element `column` of o lies in a state of tree_attention_wgmma: two neighbouring 8s take turns. So what a lane
// holds of matrix instructions' results are four neighbours, or two; not in narrow tiles of eight-bit values, whose
// lanes hold others.
__device__ __forceinline__ unsigned state_place(unsigned column) {
    return column / 16 * 16 + column % 8 * 2 + column / 8 % 2;
}

// `m` and `l` as partial states are stored.
struct Extent {
    float m, l;
};
