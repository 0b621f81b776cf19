// Tree attention without tensor cores, for f32 and for widths of heads that no other kernel takes. Formula, operands,
// plan and partial states are those of tree_attention.cu; all arithmetic is f32, all tiles are narrow: of 16 packed
// rows, or of 8 where keys have more than 512 elements. Values may lie in the keys, as their first elements. With
// a plan of undivided tiles (crates/kv/src/plan) a row's states do not depend on other rows, so deterministic steps use
// this kernel where the kernels for Hopper do not serve.
//
// Grid: blocks take (tile, key head) pairs by ticket. The four warps take ROWS rows each. The block loads each KV block
// into shared memory; lane `t` scores slot `t` and then accumulates the elements t, t + 32, .. of o.
// Limit: f32 multiplications and shared memory.
// Definition: `Backend::tree_attention`; on the CPU, crates/cpu/src/attention.
//
// Defines: ELEMENT, KV_ELEMENT (the same, or e4m3), KEY_DIM, VALUE_DIM, VALUES_IN_KEYS (0 or 1).
#include "attention/plan.cuh"
#include "attention/state.cuh"
#include "element.cuh"

using T = ELEMENT;

constexpr unsigned THREADS = 128;
constexpr unsigned ROWS = KEY_DIM > 512 ? 2 : 4;  // per warp
constexpr unsigned LANE_ELEMENTS = (VALUE_DIM + 31) / 32;
// Rows are padded, so that lanes reading one column of all keys hit different banks.
constexpr unsigned KEY_ROW = KEY_DIM + 1, VALUE_ROW = VALUES_IN_KEYS ? KEY_ROW : VALUE_DIM + 1;
// Keys and values of wider heads take turns in shared memory.
constexpr bool TAKES_TURNS = !VALUES_IN_KEYS && (KEY_DIM > 256 || VALUE_DIM > 256);
// Elements of shared memory before the queries.
constexpr unsigned KV_ELEMENTS = KV_BLOCK_TOKENS * (VALUES_IN_KEYS ? KEY_ROW
                                                    : !TAKES_TURNS ? KEY_ROW + VALUE_ROW
                                                    : KEY_DIM > VALUE_DIM ? KEY_ROW : VALUE_ROW);
// Elements of a key head in a page, with its values.
constexpr unsigned PAGE_HEAD = KV_BLOCK_TOKENS * (KEY_DIM + (VALUES_IN_KEYS ? 0 : VALUE_DIM));
constexpr unsigned ALL_LANES = 0xffffffffu;

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    tree_attention_any(T* out, const T* qkv, const KV_ELEMENT* kv, unsigned* words, const unsigned* positions,
                       float* partials, unsigned group, unsigned kv_heads, unsigned qkv_width, float scale_log2,
                       float cap_rate, const float* sinks, float* lse) {
    extern __shared__ float memory[];
    __shared__ unsigned next;
    float* keys = memory;
    float* values = TAKES_TURNS || VALUES_IN_KEYS ? keys : keys + KV_BLOCK_TOKENS * KEY_ROW;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, q_heads = group * kv_heads;
    float* queries = memory + KV_ELEMENTS + warp * ROWS * KEY_DIM;
    const Partials parts = partials_at(partials, words, q_heads, VALUE_DIM);
    const unsigned window = words[WINDOW];

    while (true) {
        __syncthreads();  // all have read `next` and finished the previous tile
        if (threadIdx.x == 0) {
            next = atomicAdd(words + NARROW_TICKET, 1);
        }
        __syncthreads();
        if (next >= words[NARROW_TILES] * kv_heads) {
            return;
        }
        const Tile tile = read_tile(words, words[NARROW_AT], next / kv_heads);
        const unsigned kv_head = next % kv_heads;
        unsigned at[ROWS], row[ROWS], head[ROWS];
        float m[ROWS], l[ROWS], o[ROWS][LANE_ELEMENTS] = {};
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            unsigned packed = tile.first_row + min(warp * ROWS + r, tile.rows - 1);
            row[r] = packed / group;
            head[r] = kv_head * group + packed % group;
            at[r] = positions[row[r]];
            m[r] = NO_SCORE;
            l[r] = 0.0f;
            const T* query = qkv + static_cast<size_t>(row[r]) * qkv_width + head[r] * KEY_DIM;
            for (unsigned d = lane; d < KEY_DIM; d += 32) {
                queries[r * KEY_DIM + d] = to_f32(query[d]);
            }
        }
        // Positions beyond the largest of the tile's rows may not be written yet.
        unsigned last = 0;
        for (unsigned i = lane; i < tile.rows; i += 32) {
            last = max(last, positions[(tile.first_row + i) / group]);
        }
        last = __reduce_max_sync(ALL_LANES, last);

        for (unsigned i = 0; i < tile.kv_blocks; i++) {
            const KvBlock kv_block = kv_block_of(kv_blocks_at(words)[tile.first_kv_block + i], last);
            auto page_at = [&](unsigned page) {
                return kv + (static_cast<size_t>(page) * kv_heads + kv_head) * PAGE_HEAD;
            };
            const KV_ELEMENT* whole = page_at(kv_block.page & ~SHARED_KV_BLOCK);
            // Loads the block's rows of `width` elements, which begin at `first` in a page.
            auto load = [&](float* to, unsigned row_length, unsigned width, unsigned first) {
#pragma unroll 4
                for (unsigned e = threadIdx.x; e < KV_BLOCK_TOKENS * width; e += THREADS) {
                    unsigned slot = e / width, d = e % width;
                    bool real = slot >= kv_block.from && slot < kv_block.to;
                    const KV_ELEMENT* from =
                        kv_block.page & SHARED_KV_BLOCK ? page_at(page_of(words, kv_block.page, slot)) : whole;
                    to[slot * row_length + d] = real ? to_f32(from[first + e]) : 0.0f;
                }
            };
            auto load_values = [&] { load(values, VALUE_ROW, VALUE_DIM, KV_BLOCK_TOKENS * KEY_DIM); };
            __syncthreads();
            load(keys, KEY_ROW, KEY_DIM, 0);
            if (!TAKES_TURNS && !VALUES_IN_KEYS) {
                load_values();
            }
            __syncthreads();
            float p[ROWS];
#pragma unroll
            for (unsigned r = 0; r < ROWS; r++) {
                float dot = 0.0f;
#pragma unroll 8
                for (unsigned d = 0; d < KEY_DIM; d++) {
                    dot += queries[r * KEY_DIM + d] * keys[lane * KEY_ROW + d];
                }
                if (cap_rate != 0.0f) {
                    dot = capped(dot, cap_rate);
                }
                bool seen = lane >= kv_block.from && lane < kv_block.to && sees(at[r], kv_block.base + lane, window);
                float s = seen ? dot * scale_log2 : NO_SCORE, top = s;
                for (unsigned other = 16; other > 0; other /= 2) {
                    top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, other));
                }
                top = fmaxf(top, m[r]);
                float factor = weight(m[r], finite_max(top));
                p[r] = weight(s, finite_max(top));
                float sum = p[r];
                for (unsigned other = 16; other > 0; other /= 2) {
                    sum += __shfl_xor_sync(ALL_LANES, sum, other);
                }
                m[r] = top;
                l[r] = l[r] * factor + sum;
#pragma unroll
                for (unsigned e = 0; e < LANE_ELEMENTS; e++) {
                    o[r][e] *= factor;
                }
            }
            if (TAKES_TURNS) {
                __syncthreads();
                load_values();
                __syncthreads();
            }
#pragma unroll
            for (unsigned r = 0; r < ROWS; r++) {
#pragma unroll(TAKES_TURNS ? 2 : 8)
                for (unsigned slot = 0; slot < KV_BLOCK_TOKENS; slot++) {
                    float share = __shfl_sync(ALL_LANES, p[r], slot);
#pragma unroll
                    for (unsigned e = 0; e < LANE_ELEMENTS; e++) {
                        unsigned d = min(e * 32 + lane, VALUE_DIM - 1);
                        o[r][e] += share * values[slot * VALUE_ROW + d];
                    }
                }
            }
        }
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            if (warp * ROWS + r >= tile.rows) {
                continue;
            }
            bool whole = has_one_state(words, tile.states, row[r]);
            size_t state = static_cast<size_t>(tile.slot + row[r] - tile.first_row / group) * q_heads + head[r];
            const size_t result = static_cast<size_t>(row[r]) * q_heads + head[r];
            const size_t place = (whole ? result : state) * VALUE_DIM;
            const float sink = sink_of(sinks, head[r]), scale = whole ? final_factor(m[r], l[r], sink) : 0.0f;
#pragma unroll
            for (unsigned e = 0; e < LANE_ELEMENTS; e++) {
                unsigned d = e * 32 + lane;
                if (d < VALUE_DIM && whole) {
                    out[place + d] = from_f32<T>(o[r][e] * scale);
                } else if (d < VALUE_DIM) {
                    parts.o[place + d] = o[r][e];
                }
            }
            if (!whole && lane == 0) {
                parts.extents[state] = {m[r], l[r]};
            } else if (whole && lse && lane == 0) {
                lse[result] = log_sum(m[r], l[r], sink);
            }
        }
    }
}
