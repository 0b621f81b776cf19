// Wide tiles of Hopper (sm_90a), up to 128 packed rows: a warpgroup of four warps copies keys and values into two rings, two
// warpgroups of 64 rows each multiply, by matrix instructions (wgmma) that read keys and values from there while the warps do
// other work. One takes the softmax of its scores while the other's products run.
// Limited by the tensor cores, or, with few rows, by bytes. The layout of operands is that of wgmma.cuh: queries are
// [panel][128 rows], keys and values [panel][64 tokens].
#pragma once

#include "attention_barrier.cuh"
#include "attention_tile.cuh"
#include "wgmma.cuh"

constexpr unsigned GROUP_THREADS = 128;         // of a warpgroup
constexpr unsigned STEP_TOKENS = 2 * PIECE_TOKENS;  // scored before the softmax is taken
constexpr unsigned PANELS = HEAD_DIM / 64;
constexpr unsigned PANEL_BYTES = 64 * 128;  // of 64 rows
constexpr unsigned OPERAND_BYTES = PANELS * PANEL_BYTES;
constexpr unsigned QUERY_BYTES = 2 * OPERAND_BYTES;
constexpr unsigned STAGES = 3;
constexpr unsigned WIDE_BYTES = QUERY_BYTES + 2 * STAGES * OPERAND_BYTES;
static_assert(HEAD_DIM % 64 == 0, "whole panels");

// What the copying warpgroup leaves for the others, beside queries and rings.
struct WideShared {
    unsigned long long queries_full, queries_empty;
    unsigned long long keys_full[STAGES], keys_empty[STAGES], values_full[STAGES], values_empty[STAGES];
    unsigned lowest, highest;        // positions of the tile's rows
    unsigned notes[STAGES][2];       // the second word of each piece in the ring of keys
};

// Named barriers.
enum Meeting { READY = 1, HELPING = 2 };

// By one thread, before any other comes here.
__device__ __forceinline__ void init_wide(WideShared& wide) {
    constexpr unsigned MULTIPLIERS = 2 * GROUP_THREADS / 32;
    constexpr unsigned COPIERS = GROUP_THREADS / 32;
    init_barrier(shared_address(&wide.queries_full), GROUP_THREADS + 1);  // and one who has written the positions
    init_barrier(shared_address(&wide.queries_empty), MULTIPLIERS);
    for (unsigned i = 0; i < STAGES; i++) {
        init_barrier(shared_address(&wide.keys_full[i]), COPIERS);
        init_barrier(shared_address(&wide.values_full[i]), COPIERS);
        init_barrier(shared_address(&wide.keys_empty[i]), MULTIPLIERS);
        init_barrier(shared_address(&wide.values_empty[i]), MULTIPLIERS);
    }
}

// The wide tiles that a block takes, of all blocks in turn: longest first, a tile of each key head after the other.
struct WideTiles {
    unsigned index, count;

    __device__ __forceinline__ WideTiles(const Job& job) : index(blockIdx.x), count(job.words[WIDE_TILES] * job.kv_heads) {}
    __device__ __forceinline__ bool more() const {
        return index < count;
    }
    __device__ __forceinline__ void next() {
        index += gridDim.x;
    }
    // This lane's of the tile's words.
    __device__ __forceinline__ unsigned word(const Job& job) const {
        const unsigned lane = threadIdx.x % 32;
        return more() && lane < TILE_WORDS ? job.words[job.words[WIDE_AT] + index / job.kv_heads * TILE_WORDS + lane] : 0;
    }
    __device__ __forceinline__ Tile tile(const Job& job) const {
        return read_tile(job.words, job.words[WIDE_AT], index / job.kv_heads);
    }
    __device__ __forceinline__ unsigned head(const Job& job) const {
        return index % job.kv_heads;
    }
};

__device__ __forceinline__ unsigned steps_of(const Tile& tile) {
    return (tile.pieces + 1) / 2;
}

// The place and phase of an item in a ring of STAGES.
struct Turnstile {
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ void next() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

// What a thread has copied last and not told: `full` barriers in the order of their copies. They are told when it has issued
// two more, so that those who multiply need not make copies visible to matrix instructions themselves.
struct Announcements {
    unsigned older = 0, newer = 0;  // 0: none

    // By all lanes of a warp, when copies to what `full` guards are issued.
    __device__ __forceinline__ void follow(unsigned full) {
        copies_issued();
        if (older != 0) {
            wait_copies<2>();
            tell(older);
        }
        older = newer;
        newer = full;
    }
    __device__ __forceinline__ void tell_all() {
        wait_copies<0>();
        if (older != 0) {
            tell(older);
        }
        if (newer != 0) {
            tell(newer);
        }
        older = newer = 0;
    }

  private:
    __device__ __forceinline__ void tell(unsigned full) {
        admit_copies();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            arrive(full);
        }
    }
};

// The warpgroup that copies. A thread's rows are 16 apart and take the same place in their atoms.
__device__ __forceinline__ void copy_wide(const Job& job, unsigned queries, WideShared& wide) {
    constexpr unsigned ROWS = GROUP_THREADS / 8;  // copied at a time
    const unsigned thread = threadIdx.x % GROUP_THREADS, lane = thread % 32, row = thread / 8, chunk = thread % 8;
    const unsigned place = row * 128 + (chunk ^ row % 8) * 16;
    const unsigned keys = queries + QUERY_BYTES, values = keys + STAGES * OPERAND_BYTES;
    Turnstile key_turn, value_turn;
    unsigned query_parity = 1;
    Announcements announcements;
    WideTiles tiles(job);
    unsigned coming = tiles.word(job);  // of the next tile
    const unsigned moved = moved_on(job.words, job.positions);
#pragma unroll 1
    while (tiles.more()) {
        const unsigned words = coming, head = tiles.head(job);
        auto field = [&](unsigned i) { return __shfl_sync(ALL_LANES, words, i); };
        const Tile tile = {field(0), field(1), field(2), field(3), field(4), field(5) + moved, field(6) + moved, field(7)};
        const unsigned steps = steps_of(tile);
        const uint2* pieces = pieces_at(job.words) + tile.first_piece;
        // This lane's of the 32 pieces that are copied next, and of the 32 after them. The first ones are among the tile's words.
        auto hold = [&](unsigned at) {
            return at + lane >= TILE_PIECES && at + lane < tile.pieces ? pieces[at + lane] : uint2{0, 0};
        };
        uint2 held = hold(0), ahead = hold(32);
        tiles.next();
        coming = tiles.word(job);

        wait_barrier(shared_address(&wide.queries_empty), query_parity);
        query_parity ^= 1;
        for (unsigned first = 0; first < tile.rows; first += ROWS) {
            const T* from = job.query(packed_row(tile, first + row), head) + chunk * 8;
#pragma unroll
            for (unsigned panel = 0; panel < PANELS; panel++) {
                copy_16(queries + panel * 2 * PANEL_BYTES + first * 128 + place, from + panel * 64, true);
            }
        }
        arrive_with_copies(shared_address(&wide.queries_full));
        if (thread == 0) {
            wide.lowest = tile.lowest;
            wide.highest = tile.highest;
            arrive(shared_address(&wide.queries_full));
        }

#pragma unroll 1
        for (unsigned step = 0; step < steps; step++) {
            if (step % 16 == 0 && step > 0) {
                held = ahead;
                ahead = hold(step * 2 + 32);
            }
            const T* from[2];
            Piece piece[2];
            unsigned notes[2];
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                const unsigned i = step * 2 + half, first = TILE_FIELDS + 2 * i;
                uint2 place;
                if (i < TILE_PIECES) {
                    // Behind the last piece, nothing.
                    place = {field(first), i < tile.pieces ? field(first + 1) : 0};
                } else {
                    place = {__shfl_sync(ALL_LANES, held.x, i % 32), __shfl_sync(ALL_LANES, held.y, i % 32)};
                }
                piece[half] = piece_of(place, tile.highest);
                from[half] = job.keys(piece[half].page, head) + row * HEAD_DIM + chunk * 8;
                notes[half] = place.y;
            }
            auto copy = [&](unsigned to, unsigned offset, unsigned full) {
                if (DETERMINISTIC && (piece[0].page | piece[1].page) & SHARED_PIECE) {
#pragma unroll
                    for (unsigned r = 0; r < STEP_TOKENS; r += ROWS) {
                        const Piece& here = piece[r / PIECE_TOKENS];
                        const unsigned slot = r % PIECE_TOKENS + row;
                        const T* line = job.keys(page_of(job.words, here.page, slot), head) + (offset + slot) * HEAD_DIM + chunk * 8;
#pragma unroll
                        for (unsigned panel = 0; panel < PANELS; panel++) {
                            copy_16(to + panel * PANEL_BYTES + r * 128 + place, line + panel * 64, slot >= here.from && slot < here.to);
                        }
                    }
                    announcements.follow(full);
                    return;
                }
#pragma unroll
                for (unsigned r = 0; r < STEP_TOKENS; r += ROWS) {
                    const unsigned half = r / PIECE_TOKENS, in_page = r % PIECE_TOKENS, slot = in_page + row;
                    const bool real = slot >= piece[half].from && slot < piece[half].to;
#pragma unroll
                    for (unsigned panel = 0; panel < PANELS; panel++) {
                        copy_16(to + panel * PANEL_BYTES + r * 128 + place, from[half] + (offset + in_page) * HEAD_DIM + panel * 64, real);
                    }
                }
                announcements.follow(full);
            };
            wait_barrier(shared_address(&wide.keys_empty[key_turn.stage]), key_turn.parity ^ 1);
            if (thread == 0) {
                wide.notes[key_turn.stage][0] = notes[0];
                wide.notes[key_turn.stage][1] = notes[1];
            }
            copy(keys + key_turn.stage * OPERAND_BYTES, 0, shared_address(&wide.keys_full[key_turn.stage]));
            key_turn.next();
            wait_barrier(shared_address(&wide.values_empty[value_turn.stage]), value_turn.parity ^ 1);
            copy(values + value_turn.stage * OPERAND_BYTES, PIECE_TOKENS, shared_address(&wide.values_full[value_turn.stage]));
            value_turn.next();
        }
        announcements.tell_all();
    }
}

// What a row does not see is no score. `at`: positions of this thread's rows.
__device__ __forceinline__ void mask_step(float (&s)[8][4], const Piece (&pieces)[2], const unsigned (&at)[2], unsigned window) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const Slots seen = seen_slots(pieces[half], at[r], window);
            const unsigned from = threadIdx.x % 4 * 2 - seen.from;
#pragma unroll
            for (int n = 4 * half; n < 4 * half + 4; n++) {
                s[n][2 * r] = from + n % 4 * 8 < seen.count ? s[n][2 * r] : NO_SCORE;
                s[n][2 * r + 1] = from + n % 4 * 8 + 1 < seen.count ? s[n][2 * r + 1] : NO_SCORE;
            }
        }
    }
}

// Rows of a warpgroup: 64 of the tile, of which this thread holds parts of two.
struct WideRows {
    unsigned query[STEPS][4];
    float o[2 * STEPS][4];
    float s[8][4];
    unsigned p[4][4];
    Running state;

    __device__ __forceinline__ void load_queries(unsigned queries, unsigned group) {
        const unsigned lane = threadIdx.x % 32, row = group * 64 + threadIdx.x % GROUP_THREADS / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
        for (unsigned k = 0; k < STEPS; k++) {
            load_matrices(query[k], queries + k / 4 * 2 * PANEL_BYTES + row * 128 + ((k % 4 * 2 + lane / 16) ^ row % 8) * 16);
        }
    }

    __device__ __forceinline__ void issue_keys(unsigned keys) {
#pragma unroll
        for (unsigned k = 0; k < STEPS; k++) {
            multiply_keys<T>(s, query[k], descriptor(keys) + (k / 4 * PANEL_BYTES + k % 4 * 32) / 16, k > 0);
        }
        products_issued();
    }

    __device__ __forceinline__ void issue_values(unsigned values) {
#pragma unroll
        for (int k = 0; k < STEP_TOKENS / 16; k++) {
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++) {
                multiply_values<T>(o + panel * 8, p[k], descriptor(values) + (panel * PANEL_BYTES + k * 2 * ATOM_BYTES) / 16);
            }
        }
        products_issued();
    }

    __device__ __forceinline__ void pack_weights() {
#pragma unroll
        for (int k = 0; k < STEP_TOKENS / 16; k++) {
            p[k][0] = pack<T>(s[2 * k][0], s[2 * k][1]);
            p[k][1] = pack<T>(s[2 * k][2], s[2 * k][3]);
            p[k][2] = pack<T>(s[2 * k + 1][0], s[2 * k + 1][1]);
            p[k][3] = pack<T>(s[2 * k + 1][2], s[2 * k + 1][3]);
        }
    }
};

// Writes each row's result to `out` where this is its only state, else as a partial state. `first`: of this warp, in the tile.
__device__ __forceinline__ void store_wide(const Job& job, const Tile& tile, unsigned head, unsigned first, const WideRows& rows) {
    const unsigned lane = threadIdx.x % 32, q_heads = job.group * job.kv_heads;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned i = first + lane / 4 + r * 8, packed = tile.first_row + i, row = packed / job.group;
        const float l = quad_sum(rows.state.l[r]);
        if (i >= tile.rows) {
            continue;
        }
        const unsigned q_head = head * job.group + packed % job.group;
        if (has_one_state(job.words, tile.states, row)) {
            const float scale = normaliser(l);
            T* out = job.out + (static_cast<size_t>(row) * q_heads + q_head) * HEAD_DIM + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < 2 * STEPS; n++) {
                *reinterpret_cast<unsigned*>(out + n * 8) = pack<T>(rows.o[n][2 * r] * scale, rows.o[n][2 * r + 1] * scale);
            }
        } else {
            const size_t state = static_cast<size_t>(tile.slot + row - tile.first_row / job.group) * q_heads + q_head;
            float* o = job.partials.o + state * HEAD_DIM + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < 2 * STEPS; n++) {
                *reinterpret_cast<float2*>(o + n * 8) = {rows.o[n][2 * r], rows.o[n][2 * r + 1]};
            }
            if (lane % 4 == 0) {
                job.partials.extents[state] = {rows.state.m[r], l};
            }
        }
    }
}

// Warpgroup `group` of the two that multiply.
__device__ __forceinline__ void multiply_wide(const Job& job, unsigned group, unsigned queries, WideShared& wide) {
    const unsigned lane = threadIdx.x % 32, first = group * 64 + threadIdx.x % GROUP_THREADS / 32 * 16;
    const unsigned keys = queries + QUERY_BYTES, values = keys + STAGES * OPERAND_BYTES, window = job.words[WINDOW];
    Turnstile key_turn, value_turn;
    unsigned query_parity = 0;
    // When the whole warp has done with what the barrier guards.
    auto leave = [&](unsigned long long& barrier) {
        __syncwarp();
        if (lane == 0) {
            arrive(shared_address(&barrier));
        }
    };
#pragma unroll 1
    for (WideTiles tiles(job); tiles.more(); tiles.next()) {
        const Tile tile = tiles.tile(job);
        const unsigned steps = steps_of(tile);
        const bool both = tile.rows > 64;
        unsigned at[2];
#pragma unroll
        for (unsigned r = 0; r < 2; r++) {
            const unsigned row = packed_row(tile, first + lane / 4 + r * 8) / job.group;
            at[r] = job.positions[row];
        }
        WideRows rows;
        wait_barrier(shared_address(&wide.queries_full), query_parity);
        query_parity ^= 1;
        const unsigned lowest = wide.lowest, highest = wide.highest;
        if (group == 1 && !both) {
            leave(wide.queries_empty);
            for (unsigned step = 0; step < steps; step++) {
                wait_barrier(shared_address(&wide.keys_full[key_turn.stage]), key_turn.parity);
                leave(wide.keys_empty[key_turn.stage]);
                key_turn.next();
                wait_barrier(shared_address(&wide.values_full[value_turn.stage]), value_turn.parity);
                leave(wide.values_empty[value_turn.stage]);
                value_turn.next();
            }
            continue;
        }
        rows.load_queries(queries, group);
        leave(wide.queries_empty);
#pragma unroll
        for (int n = 0; n < 2 * STEPS; n++) {
            rows.o[n][0] = rows.o[n][1] = rows.o[n][2] = rows.o[n][3] = 0.0f;
        }
        rows.state = nothing_yet();

        // Of the keys that are just scored: frees them and takes the softmax. Returns by what o is to be multiplied.
        auto soften_keys = [&] {
            const Piece pieces[2] = {piece_of({0, wide.notes[key_turn.stage][0]}, highest), piece_of({0, wide.notes[key_turn.stage][1]}, highest)};
            settled(rows.s);
            leave(wide.keys_empty[key_turn.stage]);
            key_turn.next();
            bool whole = true;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const Piece& piece = pieces[half];
                whole &= piece.from == 0 && piece.to == PIECE_TOKENS && piece.base + PIECE_TOKENS <= lowest + 1 && highest - piece.base < window;
            }
            if (!whole) {
                mask_step(rows.s, pieces, at, window);
            }
            return soften(rows.s, rows.state, job.scale);
        };
        wait_barrier(shared_address(&wide.keys_full[key_turn.stage]), key_turn.parity);
        begin_products();
        rows.issue_keys(keys + key_turn.stage * OPERAND_BYTES);
        wait_products<0>();
        soften_keys();
        rows.pack_weights();
#pragma unroll 1
        for (unsigned step = 1; step < steps; step++) {
            wait_barrier(shared_address(&wide.values_full[value_turn.stage]), value_turn.parity);
            wait_barrier(shared_address(&wide.keys_full[key_turn.stage]), key_turn.parity);
            begin_products();
            rows.issue_keys(keys + key_turn.stage * OPERAND_BYTES);
            rows.issue_values(values + value_turn.stage * OPERAND_BYTES);
            wait_products<1>();
            float2 factor = soften_keys();
            wait_products<0>();
            settled(rows.o);
            leave(wide.values_empty[value_turn.stage]);
            value_turn.next();
            rescale(rows.o, factor);
            rows.pack_weights();
        }
        wait_barrier(shared_address(&wide.values_full[value_turn.stage]), value_turn.parity);
        begin_products();
        rows.issue_values(values + value_turn.stage * OPERAND_BYTES);
        wait_products<0>();
        settled(rows.o);
        leave(wide.values_empty[value_turn.stage]);
        value_turn.next();
        store_wide(job, tile, tiles.head(job), first, rows);
    }
}
