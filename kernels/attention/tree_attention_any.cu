// Tree attention without tensor cores, for f32 and for head widths that are no multiple of 16. Formula, operands, plan
// and partial states are those of tree_attention.cu; all arithmetic is f32, all tiles are narrow (16 packed rows). With
// a plan of undivided tiles (crates/kv/src/plan) a row's states do not depend on other rows, so deterministic steps use
// this kernel where the kernels for Hopper do not serve.
//
// Grid: blocks take (tile, key head) pairs by ticket. The four warps take four rows each. The block loads each KV block
// into shared memory; lane `t` scores slot `t` and then accumulates the elements t, t + 32, .. of o.
// Limit: f32 multiplications and shared memory.
// Definition: `Backend::tree_attention`; on the CPU, crates/cpu/src/attention.
//
// Defines: ELEMENT, HEAD_DIM (at most 512).
#include "attention/plan.cuh"
#include "attention/state.cuh"
#include "element.cuh"

using T = ELEMENT;

constexpr unsigned THREADS = 128;
constexpr unsigned ROWS = 4;  // per warp
constexpr unsigned LANE_ELEMENTS = (HEAD_DIM + 31) / 32;
constexpr unsigned KEY_ROW = HEAD_DIM + 1;  // padded, so that lanes reading one column of all keys hit different banks
// Keys and values of wider heads take turns in shared memory.
constexpr bool TAKES_TURNS = HEAD_DIM > 256;
constexpr unsigned ALL_LANES = 0xffffffffu;

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    tree_attention_any(T* out, const T* qkv, const T* kv, unsigned* words, const unsigned* positions, float* partials,
                       unsigned group, unsigned kv_heads, unsigned qkv_width, float scale_log2, float cap_rate,
                       const float* sinks) {
    extern __shared__ float memory[];
    __shared__ unsigned next;
    float* keys = memory;
    float* values = TAKES_TURNS ? keys : keys + KV_BLOCK_TOKENS * KEY_ROW;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, q_heads = group * kv_heads;
    float* queries = values + KV_BLOCK_TOKENS * KEY_ROW + warp * ROWS * HEAD_DIM;
    const Partials parts = partials_at(partials, words, q_heads, HEAD_DIM);
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
            const T* query = qkv + static_cast<size_t>(row[r]) * qkv_width + head[r] * HEAD_DIM;
            for (unsigned d = lane; d < HEAD_DIM; d += 32) {
                queries[r * HEAD_DIM + d] = to_f32(query[d]);
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
                return kv + (static_cast<size_t>(page) * kv_heads + kv_head) * (2 * KV_BLOCK_TOKENS * HEAD_DIM);
            };
            const T* whole = page_at(kv_block.page & ~SHARED_KV_BLOCK);
            __syncthreads();
#pragma unroll 4
            for (unsigned e = threadIdx.x; e < KV_BLOCK_TOKENS * HEAD_DIM; e += THREADS) {
                unsigned slot = e / HEAD_DIM, d = e % HEAD_DIM;
                bool real = slot >= kv_block.from && slot < kv_block.to;
                const T* from = kv_block.page & SHARED_KV_BLOCK ? page_at(page_of(words, kv_block.page, slot)) : whole;
                keys[slot * KEY_ROW + d] = real ? to_f32(from[e]) : 0.0f;
                if (!TAKES_TURNS) {
                    values[slot * KEY_ROW + d] = real ? to_f32(from[KV_BLOCK_TOKENS * HEAD_DIM + e]) : 0.0f;
                }
            }
            __syncthreads();
            float p[ROWS];
#pragma unroll
            for (unsigned r = 0; r < ROWS; r++) {
                float dot = 0.0f;
#pragma unroll 8
                for (unsigned d = 0; d < HEAD_DIM; d++) {
                    dot += queries[r * HEAD_DIM + d] * keys[lane * KEY_ROW + d];
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
#pragma unroll 4
                for (unsigned e = threadIdx.x; e < KV_BLOCK_TOKENS * HEAD_DIM; e += THREADS) {
                    unsigned slot = e / HEAD_DIM, d = e % HEAD_DIM;
                    bool real = slot >= kv_block.from && slot < kv_block.to;
                    const T* from =
                        kv_block.page & SHARED_KV_BLOCK ? page_at(page_of(words, kv_block.page, slot)) : whole;
                    values[slot * KEY_ROW + d] = real ? to_f32(from[KV_BLOCK_TOKENS * HEAD_DIM + e]) : 0.0f;
                }
                __syncthreads();
            }
#pragma unroll
            for (unsigned r = 0; r < ROWS; r++) {
#pragma unroll(TAKES_TURNS ? 2 : 8)
                for (unsigned slot = 0; slot < KV_BLOCK_TOKENS; slot++) {
                    float share = __shfl_sync(ALL_LANES, p[r], slot);
#pragma unroll
                    for (unsigned e = 0; e < LANE_ELEMENTS; e++) {
                        unsigned d = min(e * 32 + lane, HEAD_DIM - 1);
                        o[r][e] += share * values[slot * KEY_ROW + d];
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
            size_t place = (whole ? static_cast<size_t>(row[r]) * q_heads + head[r] : state) * HEAD_DIM;
            float scale = whole ? final_factor(m[r], l[r], sink_of(sinks, head[r])) : 0.0f;
#pragma unroll
            for (unsigned e = 0; e < LANE_ELEMENTS; e++) {
                unsigned d = e * 32 + lane;
                if (d < HEAD_DIM && whole) {
                    out[place + d] = from_f32<T>(o[r][e] * scale);
                } else if (d < HEAD_DIM) {
                    parts.o[place + d] = o[r][e];
                }
            }
            if (!whole && lane == 0) {
                parts.extents[state] = {m[r], l[r]};
            }
        }
    }
}
