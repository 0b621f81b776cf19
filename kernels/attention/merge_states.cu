// Combines the partial states of each row, in the order of its list:
//   m = max m_i,  out = sum_i 2^(m_i - m) o_i / sum_i 2^(m_i - m) l_i,  with the sink, if there are any, as one more
// term of the divisor.
// Rows with one state were written by tree_attention and are skipped; rows without any (padding) are zeroed. lse is the
// natural logarithm of the divisor.
//
// Shapes: out [R, q_heads * VALUE_DIM]; sinks f32 [q_heads] or null; lse f32 [R, q_heads] or null; partial
// states as in attention/plan.cuh.
// Grid: (R, ceil(q_heads * split / 8)). `split` warps (1, 2, 4 or 8) take a row and head, so that few rows with many
// states still have many loads in flight: each warp combines a run of the list, the first warp then combines the runs.
// Limit: bandwidth, the bytes of the partial states.
// Definition: `Backend::tree_attention`; on the CPU, crates/cpu/src/attention.
//
// Defines: ELEMENT, VALUE_DIM.
#include "attention/states.cuh"
#include "element.cuh"

using T = ELEMENT;

constexpr unsigned WARPS = 8;

// Minimum blocks per multiprocessor, for head widths at which the compiler would otherwise spill; 0: no bound.
constexpr unsigned BLOCKS = VALUE_DIM > 128 || VALUE_DIM == 96 ? 2 : VALUE_DIM == 128 ? 3 : VALUE_DIM < 64 ? 4 : 0;

// What the warps of a row and head have found, each in its own run of the list.
struct Runs {
    Vector<float> of[WARPS][VECTORS][32];
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
merge_states(T* out, unsigned* words, float* partials, unsigned q_heads, unsigned split, const float* sinks,
             float* lse) {
    __shared__ Extent extents[WARPS];
    __shared__ Runs runs;
    const unsigned row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned head = (blockIdx.y * WARPS + warp) / split, run = warp % split;
    // All tiles are done: reset the tickets for the next layer.
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        words[WIDE_TICKET] = 0;
        words[NARROW_TICKET] = 0;
    }
    if (has_one_state(words, row)) {
        return;
    }
    const unsigned first = words[words[MERGE_AT] + row], states = words[words[MERGE_AT] + row + 1] - first;
    State sum = {NO_SCORE, 0.0f, {}};
    if (head < q_heads) {
        Partials parts = partials_at(partials, words, q_heads, VALUE_DIM);
        sum = combine(parts, words + words[STATES_AT], first + states * run / split, first + states * (run + 1) / split,
                      q_heads, head);
    }
    if (split > 1) {
        if (lane == 0) {
            extents[warp] = {sum.m, sum.l};
        }
#pragma unroll
        for (unsigned v = 0; v < VECTORS; v++) {
            runs.of[warp][v][lane] = sum.o[v];
        }
        __syncthreads();
        if (run > 0) {
            return;
        }
        float m = NO_SCORE;
        for (unsigned w = warp; w < warp + split; w++) {
            m = fmaxf(m, extents[w].m);
        }
        sum = {m, 0.0f, {}};
        for (unsigned w = warp; w < warp + split; w++) {
            float factor = weight(extents[w].m, finite_max(m));
            Vector<float> part[VECTORS];
#pragma unroll
            for (unsigned v = 0; v < VECTORS; v++) {
                part[v] = runs.of[w][v][lane];
            }
            sum.l += factor * extents[w].l;
            sum.add(factor, part);
        }
    }
    if (head >= q_heads) {
        return;
    }
    const float sink = sink_of(sinks, head), scale = final_factor(sum.m, sum.l, sink);
    if (lse && lane == 0) {
        lse[static_cast<size_t>(row) * q_heads + head] = log_sum(sum.m, sum.l, sink);
    }
#pragma unroll
    for (unsigned v = 0; v < VECTORS; v++) {
        if (column(v) < VALUE_DIM) {
            Vector<T> result;
#pragma unroll
            for (unsigned e = 0; e < VECTOR; e++) {
                result.x[e] = from_f32<T>(sum.o[v].x[e] * scale);
            }
            *reinterpret_cast<Vector<T>*>(out + (static_cast<size_t>(row) * q_heads + head) * VALUE_DIM + column(v)) =
                result;
        }
    }
}
