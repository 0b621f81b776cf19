// Tree attention on tensor cores for f16 and bf16 where values lie in the keys: latents, which all heads share.
// Formula, operands, plan and partial states are those of tree_attention.cu; all tiles are narrow, of 16 * GROUPS
// packed rows.
//
// A KV block is read once, as keys and as values. The queries of a tile stay in shared memory, the KV blocks pass
// through a ring of STAGES slots, where those of 8 bits are widened to f16 once they have arrived. PARTS warps share 16
// packed rows: each scores a part of the block's tokens, tops and weights are exchanged through shared memory, and each
// holds a part of the results' columns.
//
// Grid: as many blocks as are resident at a time, of 128 * GROUPS threads. They take (tile, key head) pairs by ticket.
// Limit: the tensor cores where many rows share tokens, else the bandwidth of keys.
// Definition: `Backend::tree_attention`; on the CPU, crates/cpu/src/attention.
//
// Defines: ELEMENT, KV_ELEMENT (the same, or e4m3), KEY_DIM (a multiple of 32), VALUE_DIM (a multiple of 64),
// VALUES_IN_KEYS (1), GROUPS (1 or 2).
#include "attention/fp8.cuh"
#include "attention/tile.cuh"

constexpr unsigned PARTS = 4;
constexpr unsigned BLOCK_THREADS = 32 * PARTS * GROUPS;
constexpr unsigned TILE_ROWS = 16 * GROUPS;
constexpr unsigned STAGES = GROUPS + 1;
constexpr unsigned STAGE_BYTES = KV_BLOCK_TOKENS * ROW_BYTES, QUERY_BYTES = TILE_ROWS * ROW_BYTES;
constexpr unsigned PART_TOKENS = KV_BLOCK_TOKENS / PARTS;  // that a warp scores
constexpr unsigned PART_COLUMNS = VALUE_DIM / PARTS;  // of a result that a warp holds
constexpr unsigned PART_STEPS = PART_COLUMNS / 16;
constexpr unsigned WEIGHT_ROW_BYTES = KV_BLOCK_TOKENS * 2 + 16;  // an odd number of 16-byte units
constexpr unsigned COPIERS = 128;  // threads that copy, as many as have equally much of a KV block
static_assert(VALUES_IN_KEYS && KEY_DIM % 32 == 0 && PART_COLUMNS % 16 == 0 && TILE_ROWS <= MAX_WIDE_ROWS, "shapes");

// What the warps exchange.
struct LatentShared {
    unsigned kv_block_words[STAGES];  // second word of the KV block in each slot
    float tops[TILE_ROWS][PARTS];  // of a row's scores in each part of the tokens
    float sums[TILE_ROWS][PARTS];  // of its weights, behind the last KV block
    __align__(16) unsigned char weights[TILE_ROWS * WEIGHT_ROW_BYTES];
};

// Offset of lane t's row of four 8 x 8 matrices within 16 queries, or keys as values: (rows 0-7, columns 0-7), (8-15,
// 0-7), (0-7, 8-15), (8-15, 8-15).
__device__ __forceinline__ unsigned row_lane() {
    const unsigned lane = threadIdx.x % 32;
    return lane % 16 * ROW_BYTES + lane / 16 * 16;
}

// The scores of 16 packed rows and PART_TOKENS tokens, of which lane t has rows t / 4 and t / 4 + 8.
__device__ __forceinline__ void score(float (&s)[1][4], unsigned queries, unsigned keys) {
    const unsigned lane = threadIdx.x % 32, token = keys + lane % 8 * ROW_BYTES + lane / 8 * 16;
#pragma unroll 4
    for (unsigned k = 0; k < STEPS; k += 2) {
        unsigned a[4], b[4];
        load_matrices(b, token + k * 32);
        load_matrices(a, queries + k * 32 + row_lane());
        multiply<Operand>(s[0], a, b[0], b[1]);
        load_matrices(a, queries + (k + 1) * 32 + row_lane());
        multiply<Operand>(s[0], a, b[2], b[3]);
    }
}

// Bytes of a row of a KV block in memory, and where they are copied to in a row of a stage: the last ones.
constexpr unsigned STORED_ROW_BYTES = KEY_DIM * sizeof(KvElement), STORED_AT = KEY_DIM * 2 - STORED_ROW_BYTES;

// Copies a KV block to a stage, by COPIERS threads.
template <class K>
__device__ __forceinline__ void copy_kv_block(unsigned stage, const K* keys, const KvBlock& kv_block) {
    if constexpr (sizeof(K) == sizeof(T)) {
        copy_rows<KV_BLOCK_TOKENS, COPIERS, KEY_DIM>(stage, keys, threadIdx.x, 0, kv_block);
    } else {
        constexpr unsigned ROW_CHUNKS = STORED_ROW_BYTES / 16;
        for (unsigned i = threadIdx.x; i < KV_BLOCK_TOKENS * ROW_CHUNKS; i += COPIERS) {
            const unsigned row = i / ROW_CHUNKS;
            copy_16(stage + row * ROW_BYTES + STORED_AT + i % ROW_CHUNKS * 16, keys + i * 16,
                    row >= kv_block.from && row < kv_block.to);
        }
    }
}

// Widens a stage's rows of 8 bits, by all threads of the block, which meet between reading all and writing any.
__device__ __forceinline__ void widen_stage(unsigned stage) {
    constexpr unsigned ROW_CHUNKS = KEY_DIM / 16, ALL = KV_BLOCK_TOKENS * ROW_CHUNKS,
                       EACH = (ALL + BLOCK_THREADS - 1) / BLOCK_THREADS;
    unsigned bytes[EACH][4];
#pragma unroll
    for (unsigned n = 0; n < EACH; n++) {
        if (const unsigned i = n * BLOCK_THREADS + threadIdx.x; i < ALL) {
            load_16(bytes[n], stage + i / ROW_CHUNKS * ROW_BYTES + STORED_AT + i % ROW_CHUNKS * 16);
        }
    }
    __syncthreads();
#pragma unroll
    for (unsigned n = 0; n < EACH; n++) {
        if (const unsigned i = n * BLOCK_THREADS + threadIdx.x; i < ALL) {
            unsigned wide[4][2];
#pragma unroll
            for (unsigned word = 0; word < 4; word++) {
                widen(wide[word], bytes[n][word]);
            }
            const unsigned to = stage + i / ROW_CHUNKS * ROW_BYTES + i % ROW_CHUNKS * 32;
            store_16(to, wide[0][0], wide[0][1], wide[1][0], wide[1][1]);
            store_16(to + 16, wide[2][0], wide[2][1], wide[3][0], wide[3][1]);
        }
    }
    __syncthreads();
}

// Computes one tile. Begins and ends with no copies in flight.
__device__ __forceinline__ void attend_latents(const Job& job, TileShared& shared, unsigned memory,
                                               LatentShared& latent) {
    const Tile& tile = shared.tile;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % PARTS;
    const unsigned first_row = warp / PARTS * 16, stages = memory + QUERY_BYTES;
    const unsigned queries = memory + first_row * ROW_BYTES;

    auto copy = [&](unsigned i, unsigned stage) {
        if (i < tile.kv_blocks) {
            const uint2 words = kv_blocks_at(job.words)[tile.first_kv_block + i];
            const KvBlock kv_block = kv_block_of(words, shared.highest);
            if (threadIdx.x < COPIERS) {
                copy_kv_block(stages + stage * STAGE_BYTES, job.keys(kv_block.page, shared.kv_head), kv_block);
            }
            if (threadIdx.x == 0) {
                latent.kv_block_words[stage] = words.y;
            }
        }
        copies_issued();
    };
    auto query_place = [&](unsigned i) { return memory + i / CHUNKS * ROW_BYTES + i % CHUNKS * 16; };
    for (unsigned i = threadIdx.x; i < TILE_ROWS * CHUNKS; i += BLOCK_THREADS) {
        copy_16(query_place(i), job.query(packed_row(tile, i / CHUNKS), shared.kv_head) + i % CHUNKS * 8, true);
    }
    for (unsigned i = 0; i < STAGES - 1; i++) {
        copy(i, i);
    }
    take_ticket(shared);

    float o[2 * PART_STEPS][4] = {};
    SoftmaxState state = empty_state();
    for (unsigned i = 0, stage = 0, free = STAGES - 1; i < tile.kv_blocks; i++) {
        wait_copies<STAGES - 2>();
        if (CONVERTED<T, KvElement> && i == 0) {
            // Each thread the queries that it copied.
            for (unsigned at = threadIdx.x; at < TILE_ROWS * CHUNKS; at += BLOCK_THREADS) {
                unsigned pairs[4];
                load_16(pairs, query_place(at));
                store_16(query_place(at), as_f16<T>(pairs[0]), as_f16<T>(pairs[1]), as_f16<T>(pairs[2]),
                         as_f16<T>(pairs[3]));
            }
        }
        __syncthreads();
        copy(i + STAGES - 1, free);
        const unsigned keys = stages + stage * STAGE_BYTES;
        if constexpr (FP8) {
            widen_stage(keys);
        }
        const KvBlock kv_block = kv_block_of({0, latent.kv_block_words[stage]}, shared.highest);

        float s[1][4] = {};
        score(s, queries, keys + part * PART_TOKENS * ROW_BYTES);
        job.cap(s);
        if (!seen_by_all(kv_block, shared)) {
            mask(s, kv_block, part * PART_TOKENS, shared, first_row);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
            if (lane % 4 == 0) {
                latent.tops[first_row + lane / 4 + r * 8][part] = top;
            }
        }
        __syncthreads();
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const unsigned row = first_row + lane / 4 + r * 8;
            float top = latent.tops[row][0];
#pragma unroll
            for (unsigned other = 1; other < PARTS; other++) {
                top = fmaxf(top, latent.tops[row][other]);
            }
            // The same in all warps of the row.
            const float m = lazy_max(state.m[r], top * job.scale), against = finite_max(m);
            factor[r] = weight(state.m[r], against);
            state.m[r] = m;
            const float p = weight(s[0][2 * r] * job.scale, against), q = weight(s[0][2 * r + 1] * job.scale, against);
            state.l[r] = state.l[r] * factor[r] + (p + q);
            unsigned char* weights = latent.weights + row * WEIGHT_ROW_BYTES;
            *reinterpret_cast<unsigned*>(weights + (part * PART_TOKENS + lane % 4 * 2) * 2) = pack<Operand>(p, q);
        }
        if (__any_sync(ALL_LANES, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
            for (unsigned n = 0; n < 2 * PART_STEPS; n++) {
                o[n][0] *= factor[0];
                o[n][1] *= factor[0];
                o[n][2] *= factor[1];
                o[n][3] *= factor[1];
            }
        }
        __syncthreads();
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            unsigned p[4];
            load_matrices(p, shared_address(latent.weights) + (first_row + lane % 16) * WEIGHT_ROW_BYTES + half * 32 +
                                 lane / 16 * 16);
            const unsigned values = keys + half * 16 * ROW_BYTES + part * PART_COLUMNS * 2;
#pragma unroll
            for (unsigned k = 0; k < PART_STEPS; k++) {
                unsigned b[4];
                load_matrices_transposed(b, values + k * 32 + row_lane());
                multiply<Operand>(o[2 * k], p, b[0], b[1]);
                multiply<Operand>(o[2 * k + 1], p, b[2], b[3]);
            }
        }
        free = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float l = quad_sum(state.l[r]);
        if (lane % 4 == 0) {
            latent.sums[first_row + lane / 4 + r * 8][part] = l;
        }
    }
    wait_copies<0>();
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned row = first_row + lane / 4 + r * 8;
        if (row >= tile.rows) {
            continue;
        }
        float l = 0.0f;
#pragma unroll
        for (unsigned other = 0; other < PARTS; other++) {
            l += latent.sums[row][other];
        }
        const Place place = place_of(job, shared, row);
        const float scale = place.out ? final_factor(state.m[r], l, sink_of(job.sinks, place.head)) : 0.0f;
#pragma unroll
        for (unsigned n = 0; n < 2 * PART_STEPS; n++) {
            store_pair(job, place, part * PART_COLUMNS + n * 8 + lane % 4 * 2, {o[n][2 * r], o[n][2 * r + 1]}, scale);
        }
        if (part == 0 && lane % 4 == 0) {
            store_extent(job, place, state.m[r], l);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    tree_attention_latent_mma(T* out, const T* qkv, const KvElement* kv, unsigned* words, const unsigned* positions,
                              float* partials, unsigned group, unsigned kv_heads, unsigned qkv_width, float scale_log2,
                              float cap_rate, const float* sinks, float* lse) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ TileShared shared;
    __shared__ LatentShared latent;
    const Job job = {out, qkv, kv, words, positions, partials_at(partials, words, group * kv_heads, VALUE_DIM),
                     group, kv_heads, qkv_width, scale_log2, cap_rate, sinks, lse};
    if (threadIdx.x == 0) {
        shared.tickets = words + NARROW_TICKET;
    }
    take_ticket(shared);
    while (true) {
        __syncthreads();
        const unsigned ticket = shared.next;
        if (ticket >= job.words[NARROW_TILES] * job.kv_heads) {
            return;
        }
        load_tile(job, job.words[NARROW_AT], ticket, shared);
        attend_latents(job, shared, shared_address(memory), latent);
    }
}
