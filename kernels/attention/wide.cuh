// Tiles of up to 64 x M packed rows. Each warp takes 16 x M rows and all KV blocks, which the block loads STAGES ahead.
// With 128 rows a byte of keys or values read from shared memory is used in 64 multiplications: limited by the tensor
// cores.
#pragma once

#include "attention/tile.cuh"

// KV blocks scored per softmax step: two where shared memory holds four blocks and registers hold the scores.
constexpr unsigned STEP_KV_BLOCKS = SHARED_KB == 227 && ROW_TILES == 2 && KEY_DIM != 112 ? 2 : 1;
// Steps along KEY_DIM whose queries are kept in registers beside the scores and M x VALUE_DIM results: as many as
// compile without spills for sm_80, sm_89 and sm_90a. The rest is kept in shared memory before the ring.
__host__ __device__ constexpr unsigned register_steps() {
    if (ROW_TILES == 1) {
        return KEY_DIM > 240 ? 12 : STEPS;
    }
    if (STEP_KV_BLOCKS == 2) {
        return KEY_DIM <= 64 ? STEPS : KEY_DIM == 80 ? 3 : KEY_DIM == 96 ? 1 : 0;
    }
    return KEY_DIM <= 96 ? STEPS : KEY_DIM == 112 ? 3 : 0;
}
constexpr unsigned REGISTER_STEPS = register_steps();
constexpr unsigned SHARED_STEPS = STEPS - REGISTER_STEPS;
constexpr unsigned QUERY_ROW_BYTES = SHARED_STEPS * 32 + 16;
constexpr unsigned QUERY_BYTES = SHARED_STEPS > 0 ? MAX_WIDE_ROWS * QUERY_ROW_BYTES : 0;
constexpr unsigned KV_BLOCK_BYTES = KV_BLOCK_TOKENS * (ROW_BYTES + VALUE_ROW_BYTES);
constexpr unsigned STAGE_BYTES = STEP_KV_BLOCKS * KV_BLOCK_BYTES;
constexpr unsigned STAGES = smaller((SHARED_BYTES - QUERY_BYTES) / STAGE_BYTES, MAX_COPIES_AHEAD);
static_assert(STAGES >= 2, "one step's KV blocks are loaded while another's are computed");

// m and l of each thread's rows between steps, which do not fit into registers.
struct WideShared {
    unsigned kv_block_words[STAGES * STEP_KV_BLOCKS];  // second word of each KV block in the ring
    SoftmaxState states[ROW_TILES][THREADS];
};

template <int M, int IN_REGISTERS>
struct WideTile {
    unsigned query[M][IN_REGISTERS > 0 ? IN_REGISTERS : 1][4];
    float o[M][2 * VALUE_STEPS][4];

    // One step. `keys`: address of a stage. `queries`: address of this warp's queries, of which the first is row
    // `first` of the tile.
    __device__ __forceinline__ void attend(const Job& job, unsigned keys, unsigned queries, unsigned first,
                                           const unsigned* kv_block_words, const TileShared& shared, WideShared& wide) {
        const unsigned query_lane = threadIdx.x % 16 * QUERY_ROW_BYTES + threadIdx.x % 32 / 16 * 16;
        float s[M][4 * STEP_KV_BLOCKS][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            unsigned a[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) {
                if (k < IN_REGISTERS) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        a[m][i] = query[m][k < IN_REGISTERS ? k : 0][i];
                    }
                } else {
                    load_matrices(a[m], queries + m * 16 * QUERY_ROW_BYTES + (k - IN_REGISTERS) * 32 + query_lane);
                }
            }
#pragma unroll
            for (int half = 0; half < 2 * STEP_KV_BLOCKS; half++) {
                unsigned b[4];
                load_matrices(b, keys + half / 2 * KV_BLOCK_BYTES + half % 2 * 16 * ROW_BYTES + k * 32 + key_lane());
#pragma unroll
                for (int m = 0; m < M; m++) {
                    multiply<T>(s[m][2 * half], a[m], b[0], b[1]);
                    multiply<T>(s[m][2 * half + 1], a[m], b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            job.cap(s[m]);
        }
#pragma unroll
        for (int n = 0; n < STEP_KV_BLOCKS; n++) {
            KvBlock kv_block = kv_block_of({0, kv_block_words[n]}, shared.highest);
            if (!seen_by_all(kv_block, shared)) {
#pragma unroll
                for (int m = 0; m < M; m++) {
                    mask<4>(*reinterpret_cast<float (*)[4][4]>(&s[m][4 * n]), kv_block, 0, shared, first + m * 16);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            SoftmaxState state = wide.states[m][threadIdx.x];
            rescale(o[m], softmax_step(s[m], state, job.scale));
            wide.states[m][threadIdx.x] = state;
        }
#pragma unroll
        for (int half = 0; half < 2 * STEP_KV_BLOCKS; half++) {
            unsigned p[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) {
                p[m][0] = pack<T>(s[m][2 * half][0], s[m][2 * half][1]);
                p[m][1] = pack<T>(s[m][2 * half][2], s[m][2 * half][3]);
                p[m][2] = pack<T>(s[m][2 * half + 1][0], s[m][2 * half + 1][1]);
                p[m][3] = pack<T>(s[m][2 * half + 1][2], s[m][2 * half + 1][3]);
            }
#pragma unroll
            for (int k = 0; k < VALUE_STEPS; k++) {
                unsigned b[4];
                load_matrices_transposed(b, keys + half / 2 * KV_BLOCK_BYTES +
                                                KV_BLOCK_TOKENS * ROW_BYTES + half % 2 * 16 * VALUE_ROW_BYTES + k * 32 +
                                                value_lane());
#pragma unroll
                for (int m = 0; m < M; m++) {
                    multiply<T>(o[m][2 * k], p[m], b[0], b[1]);
                    multiply<T>(o[m][2 * k + 1], p[m], b[2], b[3]);
                }
            }
        }
    }
};

// Computes one tile. Begins and ends with no copies in flight.
template <int M, int IN_REGISTERS>
__device__ __forceinline__ void attend_wide(const Job& job, TileShared& shared, unsigned ring, WideShared& wide) {
    const Tile& tile = shared.tile;
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 * M;
    const unsigned queries = ring, stages = ring + QUERY_BYTES;

    uint2 lane_kv_block = {0, 0};  // one of the 32 KV blocks to be copied next
    auto copy = [&](unsigned i, unsigned stage) {
        if (i * STEP_KV_BLOCKS < tile.kv_blocks) {
#pragma unroll
            for (unsigned n = 0; n < STEP_KV_BLOCKS; n++) {
                unsigned at = i * STEP_KV_BLOCKS + n;
                if (at % 32 == 0) {
                    lane_kv_block = at + lane < tile.kv_blocks
                                        ? kv_blocks_at(job.words)[tile.first_kv_block + at + lane]
                                        : uint2{0, 0};
                }
                uint2 words = {__shfl_sync(ALL_LANES, lane_kv_block.x, at % 32),
                               __shfl_sync(ALL_LANES, lane_kv_block.y, at % 32)};
                KvBlock kv_block = kv_block_of(words, shared.highest);
                const unsigned to = stages + stage * STAGE_BYTES + n * KV_BLOCK_BYTES;
                const T* keys = job.keys(kv_block.page, shared.kv_head);
                if constexpr (KEY_DIM == VALUE_DIM) {
                    copy_rows<2 * KV_BLOCK_TOKENS, THREADS, KEY_DIM>(to, keys, threadIdx.x, 0, kv_block);
                } else {
                    copy_rows<KV_BLOCK_TOKENS, THREADS, KEY_DIM>(to, keys, threadIdx.x, 0, kv_block);
                    copy_rows<KV_BLOCK_TOKENS, THREADS, VALUE_DIM>(to + KV_BLOCK_TOKENS * ROW_BYTES,
                                                                   job.values(kv_block.page, shared.kv_head),
                                                                   threadIdx.x, 0, kv_block);
                }
                if (threadIdx.x == 0) {
                    wide.kv_block_words[stage * STEP_KV_BLOCKS + n] = words.y;
                }
            }
        }
        copies_issued();
    };
    if (IN_REGISTERS < STEPS) {
        constexpr unsigned CHUNKS_IN_SHARED = 2 * (STEPS - IN_REGISTERS);
        for (unsigned i = threadIdx.x; i < 64 * M * CHUNKS_IN_SHARED; i += THREADS) {
            const T* from = job.query(packed_row(tile, i / CHUNKS_IN_SHARED), shared.kv_head) + IN_REGISTERS * 16 +
                            i % CHUNKS_IN_SHARED * 8;
            copy_16(queries + i / CHUNKS_IN_SHARED * QUERY_ROW_BYTES + i % CHUNKS_IN_SHARED * 16, from, true);
        }
    }
    for (unsigned i = 0; i < STAGES - 1; i++) {
        copy(i, i);
    }
    take_ticket(shared);

    WideTile<M, IN_REGISTERS> rows = {};
#pragma unroll
    for (int m = 0; m < M; m++) {
        wide.states[m][threadIdx.x] = empty_state();
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        unsigned upper = packed_row(tile, first + m * 16 + lane / 4),
                 lower = packed_row(tile, first + m * 16 + lane / 4 + 8);
#pragma unroll
        for (int k = 0; k < IN_REGISTERS; k++) {
            load_query(rows.query[m][k], job.query(upper, shared.kv_head), job.query(lower, shared.kv_head), k * 16);
        }
    }
    for (unsigned i = 0, stage = 0, free = STAGES - 1; i * STEP_KV_BLOCKS < tile.kv_blocks; i++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        copy(i + STAGES - 1, free);
        free = stage;
        if (first < tile.rows) {
            rows.attend(job, stages + stage * STAGE_BYTES, queries + first * QUERY_ROW_BYTES, first,
                        wide.kv_block_words + stage * STEP_KV_BLOCKS, shared, wide);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        store_rows(job, shared, first + m * 16, rows.o[m], wide.states[m][threadIdx.x]);
    }
}
