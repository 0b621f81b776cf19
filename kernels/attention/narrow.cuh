// Tiles of up to 16 packed rows. The four warps take half KV blocks (16 slots) in turn, each with its own ring and
// softmax state, and combine the states at the end in warp order. Limited by the bandwidth of keys and values: a warp
// keeps SLOTS - 1 copies of 16 keys or values in flight and waits only for its own.
#pragma once

#include "attention/tile.cuh"

constexpr unsigned NARROW_ROWS = 16;
constexpr unsigned HALF = KV_BLOCK_TOKENS / 2;
constexpr unsigned SLOT_BYTES = HALF * (KEY_DIM < VALUE_DIM ? VALUE_ROW_BYTES : ROW_BYTES);
constexpr unsigned SLOTS = smaller(SHARED_BYTES / (WARPS * SLOT_BYTES), MAX_COPIES_AHEAD);
// A row of o in shared memory, in floats. The padding puts eight consecutive rows in different banks.
constexpr unsigned STATE_ROW = VALUE_DIM + 8;
static_assert(SLOTS >= 2, "one half is loaded while another is computed");
static_assert(NARROW_ROWS * STATE_ROW * sizeof(float) <= SLOTS * SLOT_BYTES, "a warp's o fits into its ring");

// What the warps exchange, beside the ring.
struct NarrowShared {
    unsigned kv_block_words[WARPS][SLOTS];  // second word of the KV block in each slot
    Extent extents[WARPS][NARROW_ROWS];
};

__device__ __forceinline__ void attend_narrow(const Job& job, TileShared& shared, unsigned char* memory,
                                              NarrowShared& narrow) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Tile& tile = shared.tile;
    // Half KV block i of this warp is half (warp + 4 i) of the tile.
    const unsigned halves = (2 * tile.kv_blocks + WARPS - 1 - warp) / WARPS;
    const unsigned ring = shared_address(memory) + warp * SLOTS * SLOT_BYTES;

    uint2 lane_kv_block = {0, 0};  // one of the 32 half KV blocks to be copied next
    auto next_kv_blocks = [&](unsigned i) {
        if (i + lane < halves) {
            lane_kv_block = kv_blocks_at(job.words)[tile.first_kv_block + (warp + WARPS * (i + lane)) / 2];
        }
    };
    next_kv_blocks(0);
    // Copies alternate: keys of half 0, values of half 0, keys of half 1, ..
    auto copy = [&](unsigned i, bool values, unsigned slot) {
        if (i < halves) {
            if (!values && i % 32 == 0 && i > 0) {
                next_kv_blocks(i);
            }
            uint2 words = {__shfl_sync(ALL_LANES, lane_kv_block.x, i % 32),
                           __shfl_sync(ALL_LANES, lane_kv_block.y, i % 32)};
            KvBlock kv_block = kv_block_of(words, shared.highest);
            unsigned first_slot = warp % 2 * HALF;
            const unsigned page = kv_block.page, head = shared.kv_head;
            if (KEY_DIM == VALUE_DIM || !values) {
                const T* from = (values ? job.values(page, head) : job.keys(page, head)) + first_slot * KEY_DIM;
                copy_rows<HALF, 32, KEY_DIM>(ring + slot * SLOT_BYTES, from, lane, first_slot, kv_block);
            } else {
                const T* from = job.values(page, head) + first_slot * VALUE_DIM;
                copy_rows<HALF, 32, VALUE_DIM>(ring + slot * SLOT_BYTES, from, lane, first_slot, kv_block);
            }
            if (lane == 0) {
                narrow.kv_block_words[warp][slot] = words.y;
            }
        }
        copies_issued();
    };
#pragma unroll
    for (unsigned i = 0; i < SLOTS - 1; i++) {
        copy(i / 2, i % 2, i);
    }
    take_ticket(shared);

    unsigned query[STEPS][4];
    const unsigned upper = packed_row(tile, lane / 4), lower = packed_row(tile, lane / 4 + 8);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        load_query(query[k], job.query(upper, shared.kv_head), job.query(lower, shared.kv_head), k * 16);
    }
    float o[2 * VALUE_STEPS][4] = {};
    SoftmaxState state = empty_state();
    unsigned slot = 0, free = SLOTS - 1;
    // Waits for the oldest copy, issues copy SLOTS - 1 from now into the slot freed last, and returns the oldest one's
    // address.
    auto next_copy = [&](unsigned i, bool values) {
        wait_copies<SLOTS - 2>();
        __syncwarp();
        copy(i, values, free);
        free = slot;
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        return ring + free * SLOT_BYTES;
    };
    for (unsigned i = 0; i < halves; i++) {
        unsigned keys = next_copy(i + (SLOTS - 1) / 2, (SLOTS - 1) % 2);
        KvBlock kv_block = kv_block_of({0, narrow.kv_block_words[warp][free]}, shared.highest);
        float s[2][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            unsigned b[4];
            load_matrices(b, keys + k * 32 + key_lane());
            multiply<T>(s[0], query[k], b[0], b[1]);
            multiply<T>(s[1], query[k], b[2], b[3]);
        }
        job.cap(s);
        mask(s, kv_block, warp % 2 * HALF, shared, 0);
        rescale(o, softmax_step(s, state, job.scale));
        unsigned p[4] = {pack<T>(s[0][0], s[0][1]), pack<T>(s[0][2], s[0][3]), pack<T>(s[1][0], s[1][1]),
                         pack<T>(s[1][2], s[1][3])};
        unsigned values = next_copy(i + SLOTS / 2, SLOTS % 2);
#pragma unroll
        for (int k = 0; k < VALUE_STEPS; k++) {
            unsigned b[4];
            load_matrices_transposed(b, values + k * 32 + value_lane());
            multiply<T>(o[2 * k], p, b[0], b[1]);
            multiply<T>(o[2 * k + 1], p, b[2], b[3]);
        }
    }

    // The warp's o overwrites its ring.
    __syncwarp();
    float* states = reinterpret_cast<float*>(memory);
    constexpr unsigned WARP_STATES = SLOTS * SLOT_BYTES / sizeof(float);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        unsigned row = lane / 4 + r * 8;
        float l = quad_sum(state.l[r]);
        if (row < tile.rows) {
            float* to = states + warp * WARP_STATES + row * STATE_ROW + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < 2 * VALUE_STEPS; n++) {
                *reinterpret_cast<float2*>(to + n * 8) = {o[n][2 * r], o[n][2 * r + 1]};
            }
            if (lane % 4 == 0) {
                narrow.extents[warp][row] = {state.m[r], l};
            }
        }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < tile.rows * (VALUE_DIM / 2); i += THREADS) {
        unsigned row = i / (VALUE_DIM / 2), column = i % (VALUE_DIM / 2) * 2;
        float m = NO_SCORE, l = 0.0f;
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++) {
            m = fmaxf(m, narrow.extents[w][row].m);
        }
        float2 sum = {0.0f, 0.0f};
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++) {
            float factor = weight(narrow.extents[w][row].m, finite_max(m));
            float2 part = *reinterpret_cast<const float2*>(states + w * WARP_STATES + row * STATE_ROW + column);
            l += factor * narrow.extents[w][row].l;
            sum = {sum.x + factor * part.x, sum.y + factor * part.y};
        }
        Place place = place_of(job, shared, row);
        store_pair(job, place, column, sum, final_factor(m, l, sink_of(job.sinks, place.head)));
        if (column == 0) {
            store_extent(job, place, m, l);
        }
    }
}
