// The 64 rows that one warpgroup multiplies in a wide tile, as its threads hold them: masks, products with values, a
// softmax whose maximum m is raised only when the weights grow too large, and the results. attention/wide_wgmma.cuh and
// attention/large.cuh set the order of the calls and multiply queries with keys.
#pragma once

#include "attention/wgmma.cuh"
#include "attention/wide_tiles.cuh"

// Elements of a value that a warpgroup multiplies: all of them, 256, or half a latent.
constexpr unsigned COLUMNS = VALUES_IN_KEYS ? VALUE_DIM / 2 : VALUE_DIM <= 128 ? VALUE_DIM : 256;

// `x`, unknown to the compiler, which would otherwise keep what depends on it in registers.
__device__ __forceinline__ unsigned recomputed(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}

// What this thread's two rows see of a step's two KV blocks.
struct StepMask {
    unsigned seen[2][2];  // [KV block][row]: first slot | count << 6, packed to save registers

    __device__ __forceinline__ StepMask(const unsigned (&kv_blocks)[2], unsigned highest, const unsigned (&at)[2],
                                        unsigned window) {
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

    // Of a step BY_READER. `which`: the rows' numbers in the tile, from 1 on.
    __device__ __forceinline__ StepMask(const unsigned (&kv_blocks)[2], const unsigned (&which)[2]) {
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const unsigned reader = kv_blocks[half] >> 12;
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
                seen[half][r] = reader == 0 || reader == which[r] ? kv_blocks[half] & 0xfff : 0;
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

struct SoftmaxRows {
    float o[COLUMNS / 8][4];
    float s[STEP_TOKENS / 8][4];
    unsigned p[STEP_TOKENS / 16][4];
    // `l` is this lane's share of the sum over the quad that holds the row; where tiles go on from openings the sum
    // itself, which another tile can go on from.
    float m[2], l[2];

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int n = 0; n < static_cast<int>(COLUMNS / 8); n++) {
            o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
        }
        m[0] = m[1] = LOWEST;
        l[0] = l[1] = 0.0f;
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
            for (int n = 0; n < static_cast<int>(COLUMNS / 8); n++) {
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

    // Handles weights that became too large: raises m of those rows and recomputes their weights against it. The loops
    // are not unrolled, to save registers. `recompute` computes the products of the n-th 8 tokens once more, with
    // warp-level instructions, since other warps of the warpgroup may not take this branch.
    template <class Recompute>
    __device__ __forceinline__ float2 recompute_weights(const Job& job, const Recompute& recompute,
                                                        const StepMask& step_mask, const Rows& wanted) {
        float scores[1][4], top[2] = {NO_SCORE, NO_SCORE};
        auto masked_scores = [&](int n) {
            recompute(scores[0], n);
            job.cap(scores);
            step_mask.mask(scores[0], n);
        };
#pragma unroll 1
        for (int n = 0; n < STEP_TOKENS / 8; n++) {
            masked_scores(n);
            update_top(top, scores[0]);
        }
        const Rows risen = raise_max(top, wanted, job.scale);
#pragma unroll 1
        for (int n = 0; n < STEP_TOKENS / 8; n++) {
            masked_scores(n);
            // Registers cannot be indexed: rotate s, so that the n-th 8 tokens come first and go to the end.
            float first[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                first[i] = risen.of[i / 2] ? weight(scores[0][i] * job.scale, m[i / 2]) : s[0][i];
#pragma unroll
                for (int next = 1; next < STEP_TOKENS / 8; next++) {
                    s[next - 1][i] = s[next][i];
                }
                s[STEP_TOKENS / 8 - 1][i] = first[i];
            }
        }
        return sum_weights();
    }

    // Makes scores of products that are waited for. `step_mask()` says what rows see of the step, unless it is `whole`.
    template <class Mask>
    __device__ __forceinline__ void products_to_scores(const Job& job, unsigned whole, const Mask& step_mask) {
        settled(s);
        job.cap(s);
        if (__builtin_expect(whole == 0, 0)) {
            mask(step_mask());
        }
    }

    __device__ __forceinline__ void mask(const StepMask& seen) {
#pragma unroll
        for (int n = 0; n < STEP_TOKENS / 8; n++) {
            seen.mask(s[n], n);
        }
    }

    // Sets m of rows without a score so far.
    __device__ __forceinline__ void init_max(float scale) {
        float top[2] = {NO_SCORE, NO_SCORE};
#pragma unroll
        for (int n = 0; n < STEP_TOKENS / 8; n++) {
            update_top(top, s[n]);
        }
        raise_max(top, {m[0] == LOWEST, m[1] == LOWEST}, scale);
    }

    // The softmax of a tile's first step.
    template <class Mask>
    __device__ __forceinline__ void first_softmax(const Job& job, unsigned whole, const Mask& step_mask) {
        products_to_scores(job, whole, step_mask);
        init_max(job.scale);
        const float2 sums = scores_to_weights(job.scale);
        l[0] = share_of_sum(sums.x);
        l[1] = share_of_sum(sums.y);
    }

    __device__ __forceinline__ static float share_of_sum(float of_lane) {
        return PREFERS_SHORT ? quad_sum(of_lane) : of_lane;
    }

    // Turns products with keys into weights and waits for all other products. Weights rarely require another m.
    template <class Mask, class Recompute>
    __device__ __forceinline__ void softmax(const Job& job, unsigned whole, const Mask& step_mask,
                                            const Recompute& recompute) {
        products_to_scores(job, whole, step_mask);
        if constexpr (DETERMINISTIC) {
            // A row whose first visible token comes after other rows' first one: m is set from the same products as
            // when it is alone.
            if (__any_sync(ALL_LANES, m[0] == LOWEST || m[1] == LOWEST)) {
                wait_products<0>();
                settled(o);
                init_max(job.scale);
            }
        }
        float2 sums = scores_to_weights(job.scale);
        const Rows wanted = {!(sums.x <= MAX_WEIGHT<Operand>), !(sums.y <= MAX_WEIGHT<Operand>)};
        if (__builtin_expect(__any_sync(ALL_LANES, wanted.of[0] || wanted.of[1]), 0)) {
            wait_products<0>();
            settled(o);
            sums = recompute_weights(job, recompute, step_mask(), wanted);
        } else {
            wait_products<0>();
            settled(o);
        }
        l[0] += share_of_sum(sums.x);
        l[1] += share_of_sum(sums.y);
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

// Transposes 4 x 4 words, of which each lane of a quad holds a row.
__device__ __forceinline__ void transpose_quad(unsigned (&words)[4]) {
#pragma unroll
    for (unsigned by = 1; by <= 2; by *= 2) {
        const bool upper = threadIdx.x & by;
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            unsigned &low = words[by == 1 ? 2 * i : i], &high = words[by == 1 ? 2 * i + 1 : i + 2];
            const unsigned other = __shfl_xor_sync(ALL_LANES, upper ? low : high, by);
            (upper ? low : high) = other;
        }
    }
}

// Which results a lane's r-th row makes.
struct StoredRow {
    unsigned row, q_head;
    bool is_real;  // false past the end of the tile
    bool is_result;  // its only state
    size_t state;  // its number among all slots and query heads, unless it is the only one

    // The i-th row of the tile.
    __device__ __forceinline__ StoredRow(const Job& job, const Tile& tile, unsigned head, unsigned i) {
        const unsigned packed = tile.first_row + i;
        row = job.by_group.quotient(packed);
        q_head = head * job.group + job.by_group.remainder(packed);
        is_real = i < tile.rows;
        is_result = is_real && !(tile.states & OPENS) && has_one_state(job.words, tile.row_states(), row);
        state = static_cast<size_t>(tile.slot + row - job.by_group.quotient(tile.first_row)) *
                    (job.group * job.kv_heads) + q_head;
    }
};

// Writes the elements of the result of this lane's r-th row from `from` on to `out`, if it is one. `m` and `l`: of the
// row. Called by all lanes of a warp. A lane stores 16 bytes at a time where it can: with four, as it holds them,
// stores take as long as the products of several steps.
template <int N>
__device__ __forceinline__ void store_result(const Job& job, const StoredRow& stored, const float (&o)[N][4], int r,
                                             float m, float l, unsigned from) {
    if (!__any_sync(ALL_LANES, stored.is_result)) {
        return;
    }
    const unsigned lane = threadIdx.x % 32;
    const size_t place = static_cast<size_t>(stored.row) * job.group * job.kv_heads + stored.q_head;
    const float sink = sink_of(job.sinks, stored.q_head), scale = final_factor_fast(m, l, sink);
    if (job.lse && stored.is_result && lane % 4 == 0 && from == 0) {
        job.lse[place] = log_sum(m, l, sink);
    }
    T* out = job.out + place * VALUE_DIM + from;
    auto pair = [&](int n) { return pack<T>(o[n][2 * r] * scale, o[n][2 * r + 1] * scale); };
    constexpr int IN_FOURS = N / 4 * 4;
#pragma unroll
    for (int n = 0; n < IN_FOURS; n += 4) {
        unsigned columns[4] = {pair(n), pair(n + 1), pair(n + 2), pair(n + 3)};
        transpose_quad(columns);
        if (stored.is_result) {
            *reinterpret_cast<uint4*>(out + (n + lane % 4) * 8) = {columns[0], columns[1], columns[2], columns[3]};
        }
    }
#pragma unroll
    for (int n = IN_FOURS; n < N; n++) {
        if (stored.is_result) {
            *reinterpret_cast<unsigned*>(out + n * 8 + lane % 4 * 2) = pair(n);
        }
    }
}

// Writes them as partial state number `state` of all slots and query heads.
template <int N>
__device__ __forceinline__ void store_state(const Job& job, size_t state, const float (&o)[N][4], int r, float m,
                                            float l, unsigned from) {
    const unsigned lane = threadIdx.x % 32;
    float* to = job.partials.o + state * VALUE_DIM + from + state_place(lane % 4 * 2);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        *reinterpret_cast<float4*>(to + n * 8) = {o[n][2 * r], o[n + 1][2 * r], o[n][2 * r + 1], o[n + 1][2 * r + 1]};
    }
    if (lane % 4 == 0 && from == 0) {
        job.partials.extents[state] = {m, l};
    }
}

// Writes the elements `from` .. `from` + COLUMNS of each row's result to `out` if this is its only state, else as a
// partial state. `first`: first row of this warp in the tile.
__device__ __forceinline__ void store_wide(const Job& job, const Tile& tile, unsigned head, unsigned first,
                                           const SoftmaxRows& rows, unsigned from) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float l = PREFERS_SHORT ? rows.l[r] : quad_sum(rows.l[r]);
        const StoredRow stored(job, tile, head, first + threadIdx.x % 32 / 4 + r * 8);
        store_result(job, stored, rows.o, r, rows.m[r], l, from);
        if (stored.is_real && !stored.is_result) {
            store_state(job, stored.state, rows.o, r, rows.m[r], l, from);
        }
    }
}
