// The 64 rows that one warpgroup multiplies in a wide tile, as its threads hold them: masks, products with keys and
// values, and a softmax whose maximum m is raised only when the weights grow too large. attention/wide_wgmma.cuh sets
// the order of the calls.
#pragma once

#include "attention/fp8.cuh"
#include "attention/ring.cuh"
#include "attention/wgmma.cuh"

// What this thread's two rows see of a step's two KV blocks.
struct StepMask {
    unsigned seen[2][2];  // [KV block][row]: first slot | count << 6, packed to save registers

    __device__ __forceinline__ StepMask(const unsigned (&kv_blocks)[2], unsigned highest, const unsigned (&at)[2], unsigned window) {
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const KvBlock kv_block = kv_block_of({0, kv_blocks[half]}, highest);
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
                const Slots slots = seen_slots(kv_block, at[r], window);
                seen[half][r] = slots.count == 0 ? 0 : slots.from | slots.count << 6;
            }
        }
    }

    // Sets scores of the n-th 8 tokens that a row does not see to NO_SCORE.
    __device__ __forceinline__ void mask(float (&s)[4], int n) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned slots = n < 4 ? seen[0][i / 2] : seen[1][i / 2];
            s[i] = n % 4 * 8 + threadIdx.x % 4 * 2 + i % 2 - slots % 64 < slots / 64 ? s[i] : NO_SCORE;
        }
    }
};

// Limit on a lane's sum of weights in a step. Above it m is raised, which makes the step at least twice as long. Large
// weights are no less precise. For f16 it is what f16 can hold; for bf16 it leaves room in f32 for 2^30 products with
// values assumed to be below 2^30.
template <class Element>
constexpr float MAX_WEIGHT = 0x1p60f;
template <>
constexpr float MAX_WEIGHT<f16> = 0x1p15f;

struct WideRows {
    unsigned query[STEPS][4];
    float o[2 * STEPS][4];
    float s[STEP_TOKENS / 8][4];
    unsigned p[STEP_TOKENS / 16][4];
    float m[2], l[2];  // `l` is this lane's share of the sum over the quad that holds the row

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int n = 0; n < 2 * STEPS; n++) {
            o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
        }
        m[0] = m[1] = LOWEST;
        l[0] = l[1] = 0.0f;
    }

    __device__ __forceinline__ void load_queries(unsigned queries, unsigned group) {
        const unsigned lane = threadIdx.x % 32, row = group * 64 + threadIdx.x % GROUP_THREADS / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
        for (unsigned k = 0; k < STEPS; k++) {
            load_matrices(query[k], queries + k / 4 * 2 * PANEL_BYTES + row * 128 + ((k % 4 * 2 + lane / 16) ^ row % 8) * 16);
            if constexpr (FP8) {
#pragma unroll
                for (unsigned i = 0; i < 4; i++) {
                    query[k][i] = as_f16<T>(query[k][i]);
                }
            }
        }
    }

    __device__ __forceinline__ void issue_keys(unsigned keys) {
#pragma unroll
        for (unsigned k = 0; k < STEPS; k++) {
            multiply_keys<Operand>(s, query[k], descriptor(keys) + (k / 4 * PANEL_BYTES + k % 4 * 32) / 16, k > 0);
        }
        products_issued();
    }

    __device__ __forceinline__ void issue_values(unsigned values) {
#pragma unroll
        for (int k = 0; k < STEP_TOKENS / 16; k++) {
            multiply_values<Operand>(o, p[k], descriptor(values, PANEL_BYTES) + k * 2 * ATOM_BYTES / 16);
        }
        products_issued();
    }

    // Turns scores (q.k) into weights against the current m. Returns this lane's sum for each row.
    __device__ __forceinline__ float2 scores_to_weights(float scale) {
#pragma unroll
        for (int n = 0; n < STEP_TOKENS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[n][i] = weight(s[n][i] * scale, m[i / 2]);
            }
        }
        return sum_weights();
    }

    __device__ __forceinline__ float2 sum_weights() const {
        float sums[2][2] = {};
#pragma unroll
        for (int n = 0; n < STEP_TOKENS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums[i / 2][i % 2] += s[n][i];
            }
        }
        return {sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]};
    }

    // A flag for each of this lane's rows.
    struct Rows {
        bool of[2];
    };
    // Raises m to `top`, this lane's largest score of each row, in rows for which any lane of the quad sets `wanted`,
    // so that the result depends on the row alone. Rescales l and o. Returns the rows raised.
    __device__ __forceinline__ Rows raise_max(const float (&top)[2], const Rows& wanted, float scale) {
        Rows risen;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            unsigned any = wanted.of[r];
            any |= __shfl_xor_sync(ALL_LANES, any, 1);
            any |= __shfl_xor_sync(ALL_LANES, any, 2);
            risen.of[r] = any != 0;
            float most = fmaxf(top[r], __shfl_xor_sync(ALL_LANES, top[r], 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            const float raised = risen.of[r] ? fmaxf(m[r], most * scale) : m[r], factor = weight(m[r], raised);
            m[r] = raised;
            l[r] *= factor;
#pragma unroll
            for (int n = 0; n < 2 * STEPS; n++) {
                o[n][2 * r] *= factor;
                o[n][2 * r + 1] *= factor;
            }
        }
        return risen;
    }

    // Updates a lane's largest score of each row.
    __device__ __forceinline__ static void update_top(float (&top)[2], const float (&scores)[4]) {
        top[0] = fmaxf(top[0], fmaxf(scores[0], scores[1]));
        top[1] = fmaxf(top[1], fmaxf(scores[2], scores[3]));
    }

    // Recomputes the scores of the n-th 8 tokens of `keys` with warp-level instructions, since other warps of the
    // warpgroup may not take this branch.
    __device__ __forceinline__ void recompute_scores(float (&scores)[4], unsigned keys, int n) const {
        const unsigned lane = threadIdx.x % 32, token = n * 8 + lane % 8;
        scores[0] = scores[1] = scores[2] = scores[3] = 0.0f;
#pragma unroll
        for (unsigned k = 0; k < STEPS; k += 2) {
            unsigned b[4];
            load_matrices(b, keys + k / 4 * PANEL_BYTES + token * 128 + ((k % 4 * 2 + lane / 8) ^ token % 8) * 16);
            multiply<Operand>(scores, query[k], b[0], b[1]);
            multiply<Operand>(scores, query[k + 1], b[2], b[3]);
        }
    }

    // Handles weights that became too large: raises m of those rows and recomputes their weights against it. The loops
    // are not unrolled, to save registers.
    __device__ __forceinline__ float2 recompute_weights(unsigned keys, const StepMask& step_mask, const Rows& wanted, float scale) {
        float scores[4], top[2] = {NO_SCORE, NO_SCORE};
#pragma unroll 1
        for (int n = 0; n < STEP_TOKENS / 8; n++) {
            recompute_scores(scores, keys, n);
            step_mask.mask(scores, n);
            update_top(top, scores);
        }
        const Rows risen = raise_max(top, wanted, scale);
#pragma unroll 1
        for (int n = 0; n < STEP_TOKENS / 8; n++) {
            recompute_scores(scores, keys, n);
            step_mask.mask(scores, n);
            // Registers cannot be indexed: rotate s, so that the n-th 8 tokens come first and go to the end.
            float first[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                first[i] = risen.of[i / 2] ? weight(scores[i] * scale, m[i / 2]) : s[0][i];
#pragma unroll
                for (int next = 1; next < STEP_TOKENS / 8; next++) {
                    s[next - 1][i] = s[next][i];
                }
                s[STEP_TOKENS / 8 - 1][i] = first[i];
            }
        }
        return sum_weights();
    }

    __device__ __forceinline__ void pack_weights() {
#pragma unroll
        for (int k = 0; k < STEP_TOKENS / 16; k++) {
            p[k][0] = pack<Operand>(s[2 * k][0], s[2 * k][1]);
            p[k][1] = pack<Operand>(s[2 * k][2], s[2 * k][3]);
            p[k][2] = pack<Operand>(s[2 * k + 1][0], s[2 * k + 1][1]);
            p[k][3] = pack<Operand>(s[2 * k + 1][2], s[2 * k + 1][3]);
        }
    }
};
