// Sums of a warpgroup over panels of 4-bit codes: 64 outputs times COLUMNS rows (sm_90a). While the tensor cores
// multiply some inputs, the codes of the next ones become operands. Where scales come in:
//
//   SCALED    powers of two in bf16, and NVFP4: in the operands, exactly. One sum over all inputs.
//   RESCALES  the sum is kept in units of the scale of its last group. One sum.
//   else      each group has a sum of its own, which is multiplied by its scale and added in f32. Two are on their way.
//
// Factors of NVFP4 multiply a sum once it is complete (`multiply_by_factors`).
//
// Defines: RESCALES (0 or 1), MOST_STEPS (2 or 4: products of a batch).
#pragma once

#include "attention/barrier.cuh"
#include "four_bit/decode.cuh"
#include "four_bit/products.cuh"

constexpr unsigned GROUP_THREADS = 128, GROUP_STEPS = GROUP / 16;  // products of 16 inputs of a group
constexpr bool SCALED = FP4 && HOLDS_SCALES<ELEMENT>;
static_assert(!(SCALED && RESCALES), "scales come in once");

// Products of a batch of so many columns. More hide more of the decoding, and take more registers.
constexpr unsigned steps_of(unsigned columns) {
    return columns >= 128 || GROUP_STEPS < 4 ? 2 : MOST_STEPS;
}

// The first of the two outputs of a thread; the other one is 8 behind it.
__device__ __forceinline__ unsigned own_output() {
    const unsigned thread = threadIdx.x % GROUP_THREADS;
    return thread / 32 * 16 + thread % 32 / 4;
}

// Codes of STEPS products, and as their left operands.
template <unsigned STEPS>
struct Batch {
    static constexpr unsigned MARKS = STEPS > GROUP_STEPS ? STEPS / GROUP_STEPS : 1;  // groups
    unsigned own[STEPS];
    unsigned marks[MARKS][2];
    unsigned w[STEPS][4];

    // Of batch `index` of `panel`.
    __device__ __forceinline__ void load(const unsigned char* panel, unsigned index) {
        const unsigned thread = threadIdx.x % GROUP_THREADS, first = index * STEPS, group = first / GROUP_STEPS;
        if (FACTORS) {
            // One word has the scales of two groups and the thread's two outputs.
            static_assert(!FACTORS || STEPS == 2, "as many groups as a word has");
            const unsigned word = *reinterpret_cast<const unsigned*>(panel + scale_byte(group, own_output()));
#pragma unroll
            for (unsigned i = 0; i < MARKS * 2; i++) {
                marks[i / 2][i % 2] = word >> 8 * i & 0xff;
            }
        } else {
            marks[0][0] = code_mark(panel, group, own_output());
            marks[0][1] = code_mark(panel, group, own_output() + 8);
        }
        const unsigned* words =
            reinterpret_cast<const unsigned*>(panel) + (first / 4 * GROUP_THREADS + thread) * 4 + first % 4;
        if (STEPS == 2) {
            const uint2 all = *reinterpret_cast<const uint2*>(words);
            own[0] = all.x, own[1] = all.y;
        } else {
#pragma unroll
            for (unsigned i = 0; i < STEPS; i += 4) {
                const uint4 all = *reinterpret_cast<const uint4*>(words + i / 4 * GROUP_THREADS * 4);
                own[i] = all.x, own[(i + 1) % STEPS] = all.y, own[(i + 2) % STEPS] = all.z,
                own[(i + 3) % STEPS] = all.w;
            }
        }
    }
    __device__ __forceinline__ void decode_all() {
        unsigned pairs[MARKS][2];
#pragma unroll
        for (unsigned i = 0; i < MARKS * 2; i++) {
            pairs[i / 2][i % 2] = code_pair<ELEMENT, SCALED>(marks[i / 2][i % 2]);
        }
#pragma unroll
        for (unsigned step = 0; step < STEPS; step++) {
            decode<ELEMENT>(w[step], own[step], pairs[step / GROUP_STEPS % MARKS]);
            decoded(w[step]);
        }
    }
};

// Starts the products of batch `index` of a panel, whose inputs are at `x` in two panels of 64, `x_panel` bytes apart.
// `more`: whether the first one is added to what is there.
template <unsigned COLUMNS, unsigned STEPS>
__device__ __forceinline__ void start_batch(float (&part)[COLUMNS / 8][4], const Batch<STEPS>& batch, unsigned index,
                                            unsigned x, unsigned x_panel, bool more) {
    begin_products();
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++) {
        const unsigned k = index * STEPS + step;
        multiply_codes<ELEMENT, COLUMNS>(part, batch.w[step], descriptor(x + k / 4 * x_panel) + k % 4 * 2,
                                         step > 0 || more);
    }
    products_issued();
}

// Multiplies sums by what belongs to their two outputs.
template <unsigned COLUMNS>
__device__ __forceinline__ void multiply_sums(float (&sum)[COLUMNS / 8][4], const float (&by)[2]) {
    settled(sum);
#pragma unroll
    for (unsigned n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            sum[n][i] *= by[i / 2];
        }
    }
}

// Multiplies the sums of outputs from `first` on of matrix `matrix` by their factors, where there are any.
template <unsigned COLUMNS>
__device__ __forceinline__ void multiply_by_factors(float (&sum)[COLUMNS / 8][4], const unsigned char* weights,
                                                    unsigned matrix, unsigned first, unsigned outputs, unsigned inner) {
    if (FACTORS) {
        const unsigned output = first + own_output();
        const float by[2] = {panel_factor(weights, matrix, output, outputs, inner),
                             panel_factor(weights, matrix, output + 8, outputs, inner)};
        multiply_sums<COLUMNS>(sum, by);
    }
}

// One sum on its way. Its products read a batch while the other one is decoded.
template <unsigned COLUMNS, unsigned STEPS>
struct SumPipeline {
    Batch<STEPS> batches[2];

    // Multiplies the panel of `stage`, whose first batch is decoded, and decodes the first one of `next`. `before`: the
    // stage that may still be read when it begins.
    template <class Stages>
    __device__ __forceinline__ void multiply(float (&sum)[COLUMNS / 8][4], const Stages& stages, unsigned stage,
                                             unsigned next, unsigned next_parity, bool is_first, bool is_last,
                                             unsigned before, unsigned x_panel) {
        constexpr unsigned BATCHES = CODE_INPUTS / 16 / STEPS;
        const unsigned x = stages.x(stage);
        const unsigned char* panel = stages.codes(stage);
#pragma unroll
        for (unsigned i = 0; i < BATCHES; i++) {
            const unsigned group = i * STEPS / GROUP_STEPS;
            if (RESCALES && i * STEPS % GROUP_STEPS == 0 && (i > 0 || !is_first)) {
                const unsigned char* last = i > 0 ? panel : stages.codes(before);
                const unsigned last_group = (group + CODE_GROUPS - 1) % CODE_GROUPS;
                float by[2];
#pragma unroll
                for (unsigned half = 0; half < 2; half++) {
                    const unsigned output = own_output() + half * 8;
                    by[half] = panel_scale(last, last_group, output) / panel_scale(panel, group, output);
                }
                wait_products<0>();
                if (i == 0) {
                    stages.release(before);
                }
                multiply_sums<COLUMNS>(sum, by);
            }
            start_batch<COLUMNS, STEPS>(sum, batches[i % 2], i, x, x_panel, true);
            if (i + 1 == BATCHES && !is_last) {
                stages.wait(next, next_parity);
            }
            // Behind the last panel, any codes will do.
            batches[(i + 1) % 2].load(i + 1 < BATCHES ? panel : stages.codes(next), (i + 1) % BATCHES);
            wait_products<1>();
            if (!RESCALES && i == 0 && !is_first) {
                stages.release(before);
            }
            batches[(i + 1) % 2].decode_all();
        }
    }
};

// Adds the products of `count` panels, at least one, to `sum`.
template <unsigned COLUMNS, class Cursor, class Stages>
__device__ __forceinline__ void add_panels(float (&sum)[COLUMNS / 8][4], Cursor& cursor, unsigned count,
                                           const Stages& stages, unsigned x_panel) {
    SumPipeline<COLUMNS, steps_of(COLUMNS)> pipeline;
    stages.wait(cursor.stage, cursor.parity);
    pipeline.batches[0].load(stages.codes(cursor.stage), 0);
    pipeline.batches[0].decode_all();
    unsigned before = 0;
#pragma unroll 1
    for (unsigned at = 0; at < count; at++) {
        const unsigned stage = cursor.stage;
        cursor.next();
        pipeline.multiply(sum, stages, stage, cursor.stage, cursor.parity, at == 0, at + 1 == count, before, x_panel);
        before = stage;
    }
    wait_products<0>();
    settled(sum);
    if (RESCALES) {
        const unsigned char* panel = stages.codes(before);
        const float by[2] = {panel_scale(panel, CODE_GROUPS - 1, own_output()),
                             panel_scale(panel, CODE_GROUPS - 1, own_output() + 8)};
        multiply_sums<COLUMNS>(sum, by);
    }
    stages.release(before);
}

// Adds a group's products, times its scales.
template <unsigned COLUMNS>
__device__ __forceinline__ void add_group(float (&sum)[COLUMNS / 8][4], float (&part)[COLUMNS / 8][4],
                                          const float (&scales)[2]) {
    settled(part);
#pragma unroll
    for (unsigned n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            sum[n][i] += part[n][i] * scales[i / 2];
        }
    }
}

// Sums of groups on their way: two of them, so that one is added while the tensor cores make the other.
template <unsigned COLUMNS, unsigned STEPS>
struct GroupPipeline {
    Batch<STEPS> batches[2];
    float parts[2][COLUMNS / 8][4];
    float scales[2];  // of the part that is to be added

    // Multiplies the panel of `stage`, whose first batch is decoded, and decodes the first one of `next`. PARITY: whose
    // part its first group is.
    template <unsigned PARITY, class Stages>
    __device__ __forceinline__ void multiply(float (&sum)[COLUMNS / 8][4], const Stages& stages, unsigned stage,
                                             unsigned next, unsigned next_parity, bool is_first, bool is_last,
                                             unsigned before, unsigned x_panel) {
        constexpr unsigned BATCHES = 8 / STEPS;
        constexpr bool EARLY = COLUMNS < 128 || FP4;
        const unsigned x = stages.x(stage), output = own_output();
        const unsigned char* panel = stages.codes(stage);
#pragma unroll
        for (unsigned i = 0; i < BATCHES; i++) {
            const unsigned group = i * STEPS / GROUP_STEPS;
            const bool begins = i * STEPS % GROUP_STEPS == 0;
            start_batch<COLUMNS, STEPS>(parts[(PARITY + group) % 2], batches[i % 2], i, x, x_panel, !begins);
            if (i + 1 == BATCHES && !is_last) {
                stages.wait(next, next_parity);
            }
            // Behind the last panel, any codes will do. With many columns there are no registers for words that wait.
            const unsigned char* behind = i + 1 < BATCHES ? panel : stages.codes(next);
            if (EARLY) {
                batches[(i + 1) % 2].load(behind, (i + 1) % BATCHES);
            }
            wait_products<1>();
            if (begins) {
                add_group<COLUMNS>(sum, parts[(PARITY + group + 1) % 2], scales);
                scales[0] = panel_scale(panel, group, output);
                scales[1] = panel_scale(panel, group, output + 8);
                if (i == 0 && !is_first) {
                    stages.release(before);
                }
            }
            if (!EARLY) {
                batches[(i + 1) % 2].load(behind, (i + 1) % BATCHES);
            }
            batches[(i + 1) % 2].decode_all();
        }
    }
};

// Adds the products of `count` panels, at least one, to `sum`, group by group.
template <unsigned COLUMNS, class Cursor, class Stages>
__device__ __forceinline__ void add_groups(float (&sum)[COLUMNS / 8][4], Cursor& cursor, unsigned count,
                                           const Stages& stages, unsigned x_panel) {
    constexpr unsigned STEPS = steps_of(COLUMNS), GROUPS_OF_PANEL = 8 / GROUP_STEPS;
    GroupPipeline<COLUMNS, STEPS> pipeline;
#pragma unroll
    for (unsigned n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            pipeline.parts[0][n][i] = 0.0f;
            pipeline.parts[1][n][i] = 0.0f;
        }
    }
    pipeline.scales[0] = 0.0f, pipeline.scales[1] = 0.0f;
    stages.wait(cursor.stage, cursor.parity);
    pipeline.batches[0].load(stages.codes(cursor.stage), 0);
    pipeline.batches[0].decode_all();
    unsigned before = 0;
    unsigned at = 0;
#pragma unroll 1
    for (; at + 1 < count; at += 2) {
        unsigned stage = cursor.stage;
        cursor.next();
        pipeline.template multiply<0>(sum, stages, stage, cursor.stage, cursor.parity, at == 0, false, before, x_panel);
        before = stage, stage = cursor.stage;
        cursor.next();
        pipeline.template multiply<GROUPS_OF_PANEL % 2>(sum, stages, stage, cursor.stage, cursor.parity, false,
                                                        at + 2 == count, before, x_panel);
        before = stage;
    }
    if (at < count) {
        const unsigned stage = cursor.stage;
        cursor.next();
        pipeline.template multiply<0>(sum, stages, stage, cursor.stage, cursor.parity, at == 0, true, before, x_panel);
        before = stage;
        wait_products<0>();
        add_group<COLUMNS>(sum, pipeline.parts[(GROUPS_OF_PANEL - 1) % 2], pipeline.scales);
    } else {
        wait_products<0>();
        add_group<COLUMNS>(sum, pipeline.parts[1], pipeline.scales);
    }
    stages.release(before);
}

// Makes the products of `count` panels, at least one. `cursor`: the stage of the first; it moves on to the one behind
// the last.
template <unsigned COLUMNS, class Cursor, class Stages>
__device__ __forceinline__ void sum_panels(float (&sum)[COLUMNS / 8][4], Cursor& cursor, unsigned count,
                                           const Stages& stages, unsigned x_panel) {
    if constexpr (SCALED || RESCALES) {
        add_panels<COLUMNS>(sum, cursor, count, stages, x_panel);
    } else {
        add_groups<COLUMNS>(sum, cursor, count, stages, x_panel);
    }
}
