// Adds one layer to the share of attention that falls on each level of an attributed row's context:
//   mass[i][l] += share * sum_h exp(lse[i][h][l]) / sum_l exp(lse[i][h][l]),  share = 1 / (q_heads * layers).
// The first layer overwrites the sums.
//
// Shapes: mass f32 [requests, MOST_LEVELS]; lse f32 [requests, q_heads, MOST_LEVELS], -inf for empty levels. If all
// levels of a row are empty, its masses are 0.
// Grid: one warp per request; lane t takes heads t, t + 32, ..
// Limit: launch latency.
// Definition: `AttentionLevels::add_level_mass`; on the CPU, crates/cpu/src/levels.rs.
#include "attention/state.cuh"
#include "attention/level_words.cuh"

extern "C" __global__ void __launch_bounds__(32) level_mass(float* __restrict__ mass, const float* __restrict__ lse,
                                                            unsigned q_heads, float share, unsigned is_first) {
    const float log2_e = 1.44269504088896f;
    const unsigned index = blockIdx.x, lane = threadIdx.x;
    float sums[MOST_LEVELS] = {};
    for (unsigned head = lane; head < q_heads; head += 32) {
        const float* of_head = lse + (static_cast<size_t>(index) * q_heads + head) * MOST_LEVELS;
        float s[MOST_LEVELS], m = NO_SCORE, l = 0.0f;
#pragma unroll
        for (unsigned level = 0; level < MOST_LEVELS; level++) {
            s[level] = of_head[level] * log2_e;
            m = fmaxf(m, s[level]);
        }
#pragma unroll
        for (unsigned level = 0; level < MOST_LEVELS; level++) {
            s[level] = weight(s[level], finite_max(m));
            l += s[level];
        }
#pragma unroll
        for (unsigned level = 0; level < MOST_LEVELS; level++) {
            sums[level] += s[level] * normaliser(l);
        }
    }
#pragma unroll
    for (unsigned level = 0; level < MOST_LEVELS; level++) {
        for (unsigned other = 16; other > 0; other /= 2) {
            sums[level] += __shfl_xor_sync(~0u, sums[level], other);
        }
        if (lane == level) {
            float before = is_first ? 0.0f : mass[index * MOST_LEVELS + level];
            mass[index * MOST_LEVELS + level] = before + sums[level] * share;
        }
    }
}
