// The state (o, m, l) of a softmax computed in parts. For scores s (in log2 units: q.k * scale * log2 e) and values v:
// l = sum 2^(s - m), o = sum 2^(s - m) v, not divided by l. m is max s, or less: in wide tiles it may lag behind as
// long as weights stay below MAX_WEIGHT (attention/rows.cuh), which keeps l between 1 and 2^80, well within f32. The
// empty state has l = 0, o = 0 and m = -inf (which must never be subtracted from itself) or LOWEST.
#pragma once

#define NO_SCORE __int_as_float(0xff800000)  // -inf; NVRTC has no constant for it

// m of rows without a score, where weights are taken before m is known: any real score exceeds MAX_WEIGHT against it,
// and the weight of NO_SCORE is 0.
constexpr float LOWEST = -1e30f;

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// `m`, or 0 if it is NO_SCORE: the reference for exponents.
__device__ __forceinline__ float finite_max(float m) {
    return m == NO_SCORE ? 0.0f : m;
}

// m is raised only when the largest score exceeds it by this many powers of two, so that results are rescaled rarely
// and weights stay small.
constexpr float RESCALE_THRESHOLD = 8.0f;

// The new m, given the old m and the largest score so far.
__device__ __forceinline__ float lazy_max(float m, float top) {
    return top > m + RESCALE_THRESHOLD ? top : m;
}

// 2^(s - m) for a score or another state's `m`; 0 for NO_SCORE. `against` = finite_max(m).
__device__ __forceinline__ float weight(float s, float against) {
    return exp2_fast(s - against);
}

// Error at most 1 ulp.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Factor for o: 1 / l, or 0 for the empty state.
__device__ __forceinline__ float normaliser(float l) {
    return l == 0.0f ? 0.0f : 1.0f / l;
}

// The same within 1 ulp, with fewer instructions. In tree_attention, where registers are scarce, it would cause spills.
__device__ __forceinline__ float normaliser_fast(float l) {
    return l == 0.0f ? 0.0f : reciprocal_fast(l);
}

// A sink is one more score of a row and head, without a value. It enters once, where a result is final.

// The sink of a query head, in log2 units; NO_SCORE if there are none.
__device__ __forceinline__ float sink_of(const float* sinks, unsigned q_head) {
    return sinks ? sinks[q_head] * 1.44269504088896f : NO_SCORE;
}

// Factor for the final o of all scores and the sink: 2^(m - top) / (2^(m - top) l + 2^(sink - top)) with top the larger
// of m and sink. Without a sink it is 1 / l, or 0 for the empty state.
__device__ __forceinline__ float final_factor(float m, float l, float sink) {
    const float top = finite_max(fmaxf(m, sink)), factor = weight(m, top);
    return factor * normaliser(factor * l + weight(sink, top));
}

__device__ __forceinline__ float final_factor_fast(float m, float l, float sink) {
    const float top = finite_max(fmaxf(m, sink)), factor = weight(m, top);
    return factor * normaliser_fast(factor * l + weight(sink, top));
}

__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The natural logarithm of the sum of e^score over all scores and the sink; NO_SCORE if there are none.
__device__ __forceinline__ float log_sum(float m, float l, float sink) {
    const float top = finite_max(fmaxf(m, sink)), ln_2 = 0.693147180559945f;
    const float sum = weight(m, top) * l + weight(sink, top);
    return sum == 0.0f ? NO_SCORE : (top + log2_fast(sum)) * ln_2;
}

// tanh of a score (q.k) times its factor: `rate` is twice that factor times log2 e. Multiplied by the kernel's scale,
// cap * log2 e, it is the capped score in log2 units. Exact to some units of 2^-24, absolutely.
__device__ __forceinline__ float capped(float score, float rate) {
    return 1.0f - 2.0f * reciprocal_fast(exp2_fast(score * rate) + 1.0f);
}

// Index of element `column` of o in a state of the kernels for Hopper: two neighbouring groups of 8 are interleaved. So
// what a lane holds of matrix results is contiguous, four or two elements, except in narrow tiles of 8-bit values,
// whose lanes hold other elements.
__device__ __forceinline__ unsigned state_place(unsigned column) {
    return column / 16 * 16 + column % 8 * 2 + column / 8 % 2;
}

// The column of the element at `place`, the inverse.
__device__ __forceinline__ unsigned state_column(unsigned place) {
    return place / 16 * 16 + place % 2 * 8 + place % 16 / 2;
}

// m and l of a partial state.
struct Extent {
    float m, l;
};
