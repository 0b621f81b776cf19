// Attention attribution: for each attributed row, query head and level of the row's context, over the positions p of
// the level that the row sees, with scores s_p as in tree_attention.cu:
//   lse = log sum_p exp(s_p),  -inf if there are none. Sinks belong to no level.
// Level l of row i ends where the next begins, at `bounds[i][l]`; the last level has no end.
//
// Shapes: out f32 [requests, q_heads, MOST_LEVELS]; qkv T [R, qkv_width], which begins with the queries; kv KV_ELEMENT
// [page][kv_head][keys, values beside them] of one layer, laid out as in kv_page.cuh; words as in
// attention/level_words.cuh; positions u32 [R]; rows u32 [requests]; bounds u32 [requests, MOST_LEVELS - 1].
// Grid: requests * kv_heads * ceil(group / HEADS). A block takes one row and up to HEADS query heads of a key head. Its
// warps take pages in turn, lane t slot t of each page. A lane's sum runs over fixed positions in rising order, and the
// sums are combined in a fixed order: the bits depend on the row alone, not on how the plan divides its context.
// Limit: presumably the shuffles of its sums; not profiled. Every row reads its keys separately.
// Definition: `AttentionLevels::level_lse`; on the CPU, crates/cpu/src/levels.rs.
//
// Defines: ELEMENT, KV_ELEMENT (the same, or e4m3), KEY_DIM, VALUE_DIM, VALUES_IN_KEYS (0 or 1), LAYOUT
// (of kv_page.cuh).
#include "attention/state.cuh"
#include "element.cuh"
#include "kv_page.cuh"
#include "attention/level_words.cuh"

using T = ELEMENT;

constexpr unsigned WARPS = 8;
constexpr unsigned HEADS = KEY_DIM > 256 ? 4 : 8;
constexpr unsigned LANE_ELEMENTS = (KEY_DIM + 31) / 32;  // lane t has elements t, t + 32, ..
constexpr unsigned ALL_LANES = 0xffffffffu;
// Elements of a key head in a page, with its values.
constexpr unsigned PAGE_HEAD = PAGE_TOKENS * (KEY_DIM + (VALUES_IN_KEYS ? 0 : VALUE_DIM));

// m and l of each head and level, as found by one warp.
struct LevelStates {
    Extent at[HEADS][MOST_LEVELS];
};

// Adds one score to a lane's state.
__device__ __forceinline__ void add_score(Extent& state, float score) {
    float m = fmaxf(state.m, score);
    state.l = state.l * weight(state.m, finite_max(m)) + weight(score, finite_max(m));
    state.m = m;
}

// Combines the states of all lanes, returned in every lane.
__device__ __forceinline__ Extent reduce_lanes(Extent state) {
    float m = state.m;
    for (unsigned other = 16; other > 0; other /= 2) {
        m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, other));
    }
    float l = state.l * weight(state.m, finite_max(m));
    for (unsigned other = 16; other > 0; other /= 2) {
        l += __shfl_xor_sync(ALL_LANES, l, other);
    }
    return {m, l};
}

// A warp's pass over its pages: queries, the states of the current level, and the destination of finished levels.
struct PageWalk {
    float query[HEADS][LANE_ELEMENTS];
    Extent state[HEADS];
    unsigned level;
    LevelStates* states;

    __device__ __forceinline__ void end_level() {
#pragma unroll
        for (unsigned h = 0; h < HEADS; h++) {
            Extent all = reduce_lanes(state[h]);
            if (threadIdx.x % 32 == 0) {
                states->at[h][level] = all;
            }
            state[h] = {NO_SCORE, 0.0f};
        }
        level++;
    }

    // Adds slots [from, to) of a page of keys that holds the positions base + slot.
    __device__ __forceinline__ void add_page(const KV_ELEMENT* keys, unsigned base, unsigned from, unsigned to,
                                             const unsigned* bounds, unsigned heads, float scale_log2, float cap_rate) {
        const unsigned lane = threadIdx.x % 32;
        float score[HEADS] = {};
#pragma unroll 4
        for (unsigned slot = from; slot < to; slot++) {
            float dot[HEADS] = {};
#pragma unroll
            for (unsigned e = 0; e < LANE_ELEMENTS; e++) {
                unsigned d = e * 32 + lane;
                constexpr unsigned BYTES = sizeof(KV_ELEMENT);
                unsigned place = page_place<LAYOUT, BYTES>(slot, d * BYTES, KEY_DIM * BYTES);
                float key = d < KEY_DIM ? to_f32(keys[place / BYTES]) : 0.0f;
#pragma unroll
                for (unsigned h = 0; h < HEADS; h++) {
                    dot[h] += query[h][e] * key;
                }
            }
#pragma unroll
            for (unsigned h = 0; h < HEADS; h++) {
                if (h < heads) {
                    for (unsigned other = 16; other > 0; other /= 2) {
                        dot[h] += __shfl_xor_sync(ALL_LANES, dot[h], other);
                    }
                    if (lane == slot) {
                        score[h] = (cap_rate != 0.0f ? capped(dot[h], cap_rate) : dot[h]) * scale_log2;
                    }
                }
            }
        }
        const unsigned position = base + lane, end = base + to;
        unsigned done = base + from;
        while (true) {
            unsigned level_end = level + 1 < MOST_LEVELS ? bounds[level] : ~0u;
            bool is_here = position >= done && position < end && position < level_end;
#pragma unroll
            for (unsigned h = 0; h < HEADS; h++) {
                if (h < heads) {
                    add_score(state[h], is_here ? score[h] : NO_SCORE);
                }
            }
            if (end <= level_end) {
                return;
            }
            done = max(done, level_end);
            end_level();
        }
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    level_lse(float* __restrict__ out, const T* __restrict__ qkv, const KV_ELEMENT* __restrict__ kv,
              const unsigned* __restrict__ words, const unsigned* __restrict__ positions,
              const unsigned* __restrict__ rows, const unsigned* __restrict__ bounds, unsigned group, unsigned kv_heads,
              unsigned qkv_width, float scale_log2, float cap_rate) {
    __shared__ LevelStates states[WARPS];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, q_heads = group * kv_heads;
    const unsigned head_groups = (group + HEADS - 1) / HEADS, blocks = kv_heads * head_groups;
    const unsigned index = blockIdx.x / blocks, kv_head = blockIdx.x % blocks / head_groups,
                   first = blockIdx.x % head_groups * HEADS;
    const unsigned head = kv_head * group + first, heads = min(HEADS, group - first);
    const unsigned row = rows[index], at = positions[row], window = words[WINDOW];
    bounds += index * (MOST_LEVELS - 1);

    PageWalk walk;
    walk.level = 0;
    walk.states = states + warp;
    const T* queries = qkv + static_cast<size_t>(row) * qkv_width + head * KEY_DIM;
#pragma unroll
    for (unsigned h = 0; h < HEADS; h++) {
        walk.state[h] = {NO_SCORE, 0.0f};
#pragma unroll
        for (unsigned e = 0; e < LANE_ELEMENTS; e++) {
            unsigned d = e * 32 + lane;
            walk.query[h][e] = h < heads && d < KEY_DIM ? to_f32(queries[h * KEY_DIM + d]) : 0.0f;
        }
    }

    // The row sees the positions [seen, at].
    const unsigned seen = at < window ? 0 : at + 1 - window;
    const unsigned* lists = words + words[LISTS_AT] + row;
    for (unsigned i = lists[0]; i < lists[1]; i++) {
        const unsigned* item = words + words[ITEMS_AT] + 2 * words[words[LISTED_AT] + i];
        for (unsigned s = item[0]; s < item[1]; s++) {
            const unsigned* span = words + words[SPANS_AT] + s * SPAN_WORDS;
            const unsigned from = max(span[0], seen), to = min(span[1], at + 1);
            if (from >= to) {
                continue;
            }
            const unsigned* pages = words + words[PAGES_AT] + span[2];
            const unsigned first_page = span[0] / PAGE_TOKENS;
            // This warp's first page among those that hold positions [from, to).
            unsigned page = from / PAGE_TOKENS;
            page += (warp + WARPS - page % WARPS) % WARPS;
            for (; page * PAGE_TOKENS < to; page += WARPS) {
                const unsigned base = page * PAGE_TOKENS;
                const KV_ELEMENT* keys = kv + (static_cast<size_t>(pages[page - first_page]) * kv_heads + kv_head) *
                                                  PAGE_HEAD;
                walk.add_page(keys, base, from > base ? from - base : 0, min(to - base, PAGE_TOKENS), bounds, heads,
                              scale_log2, cap_rate);
            }
        }
    }
    while (walk.level < MOST_LEVELS) {
        walk.end_level();
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < heads * MOST_LEVELS; i += 32 * WARPS) {
        const unsigned h = i / MOST_LEVELS, level = i % MOST_LEVELS;
        float m = NO_SCORE, l = 0.0f;
        for (unsigned w = 0; w < WARPS; w++) {
            m = fmaxf(m, states[w].at[h][level].m);
        }
        for (unsigned w = 0; w < WARPS; w++) {
            const Extent part = states[w].at[h][level];
            l += part.l * weight(part.m, finite_max(m));
        }
        const float ln_2 = 0.693147180559945f;
        out[(static_cast<size_t>(index) * q_heads + head + h) * MOST_LEVELS + level] =
            m == NO_SCORE ? NO_SCORE : (m + log2_fast(l)) * ln_2;
    }
}
