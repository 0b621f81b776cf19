// Combines each row's partial states, as many as its list names and in that order:
//   m = max m_i,  out = sum_i 2^(m_i - m) o_i / sum_i 2^(m_i - m) l_i.
// Rows with one state were written by tree_attention and are left alone; rows without any (padding) become zeros.
//
// out [R, q_heads * HEAD_DIM]; partial states as in attention_plan.cuh. Grid (R, ceil(q_heads / 8)), a warp a row and head.
// Limited by the bytes of the partial states. The CPU definition is src/backend/cpu/attention.
//
// Defines: ELEMENT, HEAD_DIM.
#include "attention_plan.cuh"
#include "attention_state.cuh"
#include "element.cuh"

using T = ELEMENT;

constexpr unsigned HEADS = 8;
constexpr unsigned LANE_ELEMENTS = (HEAD_DIM + 31) / 32;
constexpr unsigned AHEAD = 8;

// Stays where it is written: the compiler would load each value just before its use, and wait for each.
__device__ __forceinline__ float load(const float* from) {
    float x;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}

extern "C" __global__ void __launch_bounds__(32 * HEADS)
merge_states(T* out, unsigned* words, float* partials, unsigned q_heads) {
    unsigned row = blockIdx.x, head = blockIdx.y * HEADS + threadIdx.x / 32, lane = threadIdx.x % 32;
    // All tiles are done: tickets start anew in the next layer.
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        words[WIDE_TICKET] = 0;
        words[NARROW_TICKET] = 0;
    }
    if (head >= q_heads || has_one_state(words, row)) {
        return;
    }
    const unsigned* merge = words + words[MERGE_AT] + row;
    const unsigned* slots = words + words[STATES_AT];
    Partials parts = partials_at(partials, words, q_heads, HEAD_DIM);

    float m = NO_SCORE;
    for (unsigned i = merge[0] + lane; i < merge[1]; i += 32) {
        m = fmaxf(m, parts.extents[static_cast<size_t>(slots[i]) * q_heads + head].m);
    }
    for (unsigned other = 16; other > 0; other /= 2) {
        m = fmaxf(m, __shfl_xor_sync(~0u, m, other));
    }
    // A lane looks up one state of 32, so that nothing but `o` is waited for one state after the other.
    float l = 0.0f, o[LANE_ELEMENTS] = {};
    for (unsigned first = merge[0]; first < merge[1]; first += 32) {
        unsigned count = min(32u, merge[1] - first);
        unsigned slot = lane < count ? slots[first + lane] : 0;
        Extent extent = {NO_SCORE, 0.0f};
        if (lane < count) {
            extent = parts.extents[static_cast<size_t>(slot) * q_heads + head];
        }
        float factor = weight(extent.m, anchor(m));
        l += factor * extent.l;
        // AHEAD states are under way at a time; behind the last one, weights are 0 and the last one is read again.
        for (unsigned i = 0; i < count; i += AHEAD) {
            float part[AHEAD][LANE_ELEMENTS];
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++) {
                size_t state = static_cast<size_t>(__shfl_sync(~0u, slot, min(i + a, count - 1))) * q_heads + head;
#pragma unroll
                for (unsigned e = 0; e < LANE_ELEMENTS; e++) {
                    part[a][e] = load(parts.o + state * HEAD_DIM + min(e * 32 + lane, HEAD_DIM - 1));
                }
            }
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++) {
                float share = __shfl_sync(~0u, factor, i + a);
#pragma unroll
                for (unsigned e = 0; e < LANE_ELEMENTS; e++) {
                    o[e] += share * part[a][e];
                }
            }
        }
    }
    for (unsigned other = 16; other > 0; other /= 2) {
        l += __shfl_xor_sync(~0u, l, other);
    }
    float scale = normaliser(l);
#pragma unroll
    for (unsigned e = 0; e < LANE_ELEMENTS; e++) {
        unsigned d = e * 32 + lane;
        if (d < HEAD_DIM) {
            out[(static_cast<size_t>(row) * q_heads + head) * HEAD_DIM + d] = from_f32<T>(o[e] * scale);
        }
    }
}
