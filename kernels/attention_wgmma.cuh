// Wide tiles of Hopper (sm_90a), up to 128 packed rows: a warpgroup of four warps copies keys and values into a ring, two
// warpgroups of 64 rows each multiply, by matrix instructions (wgmma) that read keys and values from there while the warps do
// other work. One takes the softmax of its scores while the other's products run.
// Limited by the tensor cores and, beside them, by the instructions of the softmax; with few rows, by bytes. The layout of operands is that of wgmma.cuh: queries are
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
// Of the ring: the keys of a step, and the values of the step before, which are multiplied at the same time.
constexpr unsigned STAGES = 3, STAGE_BYTES = 2 * OPERAND_BYTES;
constexpr unsigned WIDE_BYTES = QUERY_BYTES + STAGES * STAGE_BYTES;
static_assert(HEAD_DIM % 64 == 0, "whole panels");

// The keys of a stage.
struct Note {
    unsigned pieces[2];  // the second word of each
    unsigned whole;      // not 0: every row of the tile sees all of both
};

// What the copying warpgroup leaves for the others, beside queries and ring.
struct WideShared {
    unsigned long long queries_full, queries_empty;
    unsigned long long full[STAGES], empty[STAGES];
    Note notes[STAGES];
};

// Named barriers.
enum Meeting { READY = 1, HELPING = 2 };

// By one thread, before any other comes here.
__device__ __forceinline__ void init_wide(WideShared& wide) {
    constexpr unsigned MULTIPLIERS = 2 * GROUP_THREADS / 32;
    constexpr unsigned COPIERS = GROUP_THREADS / 32;
    init_barrier(shared_address(&wide.queries_full), GROUP_THREADS);
    init_barrier(shared_address(&wide.queries_empty), MULTIPLIERS);
    for (unsigned i = 0; i < STAGES; i++) {
        init_barrier(shared_address(&wide.full[i]), COPIERS);
        init_barrier(shared_address(&wide.empty[i]), MULTIPLIERS);
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

// The place and phase of an item in the ring.
struct Turnstile {
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ void next() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

// The stage that a thread has copied last and not told: the `full` barrier of it, or 0. It is told when the copies of the next
// one are issued, so that those who multiply need not make copies visible to matrix instructions themselves.
struct Announcement {
    unsigned last = 0;

    // By all lanes of a warp, when copies to what `full` guards are issued.
    __device__ __forceinline__ void follow(unsigned full) {
        copies_issued();
        if (last != 0) {
            wait_copies<1>();
            tell();
        }
        last = full;
    }
    __device__ __forceinline__ void tell_last() {
        wait_copies<0>();
        tell();
        last = 0;
    }

  private:
    __device__ __forceinline__ void tell() {
        admit_copies();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            arrive(last);
        }
    }
};

// The warpgroup that copies. A thread's rows are 16 apart and take the same place in their atoms.
__device__ __forceinline__ void copy_wide(const Job& job, unsigned queries, WideShared& wide) {
    constexpr unsigned ROWS = GROUP_THREADS / 8;  // copied at a time
    const unsigned thread = threadIdx.x % GROUP_THREADS, lane = thread % 32, row = thread / 8, chunk = thread % 8;
    const unsigned place = row * 128 + (chunk ^ row % 8) * 16;
    const unsigned ring = queries + QUERY_BYTES, window = job.words[WINDOW];
    Turnstile turn;
    unsigned query_parity = 1;
    Announcement announcement;
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
        // What a warp multiplies is never what something else left there: its scores could ask for another m in each step.
        for (unsigned first = 0; first < (tile.rows > 64 ? 128 : 64); first += ROWS) {
            const T* from = job.query(packed_row(tile, first + row), head) + chunk * 8;
#pragma unroll
            for (unsigned panel = 0; panel < PANELS; panel++) {
                copy_16(queries + panel * 2 * PANEL_BYTES + first * 128 + place, from + panel * 64, first < tile.rows);
            }
        }
        arrive_with_copies(shared_address(&wide.queries_full));

        // The pieces of a step, cut to what is written.
        struct StepPieces {
            Piece of[2];
            const T* lines[2];  // this thread's first in each page; of a piece of several pages, of no use
            bool full;          // every slot of both pages
        };
        // Keys, or values, which lie `offset` slots behind them. Instructions count here too: full pages take few.
        auto copy = [&](unsigned to, const StepPieces& pieces, unsigned offset) {
            if (pieces.full) {
#pragma unroll
                for (unsigned r = 0; r < STEP_TOKENS; r += ROWS) {
                    const T* line = pieces.lines[r / PIECE_TOKENS] + (offset + r % PIECE_TOKENS) * HEAD_DIM;
#pragma unroll
                    for (unsigned panel = 0; panel < PANELS; panel++) {
                        copy_16(to + panel * PANEL_BYTES + r * 128 + place, line + panel * 64, true);
                    }
                }
                return;
            }
#pragma unroll
            for (unsigned r = 0; r < STEP_TOKENS; r += ROWS) {
                const Piece& here = pieces.of[r / PIECE_TOKENS];
                const unsigned slot = r % PIECE_TOKENS + row;
                const unsigned page = DETERMINISTIC ? page_of(job.words, here.page, slot) : here.page;
                const T* line = job.keys(page, head) + (offset + slot) * HEAD_DIM + chunk * 8;
#pragma unroll
                for (unsigned panel = 0; panel < PANELS; panel++) {
                    copy_16(to + panel * PANEL_BYTES + r * 128 + place, line + panel * 64, slot >= here.from && slot < here.to);
                }
            }
        };
        StepPieces before;
#pragma unroll 1
        for (unsigned step = 0; step <= steps; step++) {
            if (step % 16 == 0 && step > 0) {
                held = ahead;
                ahead = hold(step * 2 + 32);
            }
            StepPieces now = {{}, {}, true};
            Note note;
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                const unsigned i = step * 2 + half, first = TILE_FIELDS + 2 * i;
                uint2 words;
                if (i < TILE_PIECES) {
                    // Behind the last piece, nothing.
                    words = {field(first), i < tile.pieces ? field(first + 1) : 0};
                } else {
                    words = {__shfl_sync(ALL_LANES, held.x, i % 32), __shfl_sync(ALL_LANES, held.y, i % 32)};
                }
                now.of[half] = piece_of(words, tile.highest);
                now.lines[half] = job.keys(words.x, head) + row * HEAD_DIM + chunk * 8;
                now.full &= now.of[half].from == 0 && now.of[half].to == PIECE_TOKENS && !(DETERMINISTIC && words.x & SHARED_PIECE);
                note.pieces[half] = words.y;
            }
            // Positions rise from piece to piece.
            note.whole = now.full && now.of[1].base + PIECE_TOKENS <= tile.lowest + 1 && tile.highest - now.of[0].base < window;
            const unsigned to = ring + turn.stage * STAGE_BYTES;
            wait_barrier(shared_address(&wide.empty[turn.stage]), turn.parity ^ 1);
            if (thread == 0) {
                wide.notes[turn.stage] = note;
            }
            if (step < steps) {
                copy(to, now, 0);
            }
            if (step > 0) {
                copy(to + OPERAND_BYTES, before, PIECE_TOKENS);
            }
            before = now;
            announcement.follow(shared_address(&wide.full[turn.stage]));
            turn.next();
        }
        announcement.tell_last();
    }
}

// What this thread's two rows see of a step.
struct Sight {
    Slots seen[2][2];  // of each piece, by each row

    __device__ __forceinline__ Sight(const unsigned (&pieces)[2], unsigned highest, const unsigned (&at)[2], unsigned window) {
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const Piece piece = piece_of({0, pieces[half]}, highest);
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
                seen[half][r] = seen_slots(piece, at[r], window);
            }
        }
    }

    // Of the n-th 8 tokens: what a row does not see is no score.
    __device__ __forceinline__ void mask(float (&s)[4], int n) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Slots slots = n < 4 ? seen[0][i / 2] : seen[1][i / 2];
            s[i] = n % 4 * 8 + threadIdx.x % 4 * 2 + i % 2 - slots.from < slots.count ? s[i] : NO_SCORE;
        }
    }
};

// What the weights of a step may sum up to in a lane until m must rise: far from what 16 bits hold.
constexpr float MOST_WEIGHT = 256.0f;

struct WideRows {
    unsigned query[STEPS][4];
    float o[2 * STEPS][4];
    float s[STEP_TOKENS / 8][4];
    unsigned p[STEP_TOKENS / 16][4];
    float m[2], l[2];  // `l` is this lane's part of the sum over the quad that shares a row

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
            multiply_values<T>(o, p[k], descriptor(values, PANEL_BYTES) + k * 2 * ATOM_BYTES / 16);
        }
        products_issued();
    }

    // Scores (q.k) become weights against m as it is. Returns this lane's sum of each row's.
    __device__ __forceinline__ float2 weigh(float scale) {
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

    // Lets m follow `top`, this lane's largest score of each row, in rows of which some lane wants it: so it depends on the row
    // alone. Brings l and o there; returns which rows they are.
    struct Rows {
        bool of[2];
    };
    __device__ __forceinline__ Rows raise(const float (&top)[2], const Rows& wanted, float scale) {
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

    // The largest of a lane's scores, by rows.
    __device__ __forceinline__ static void rise(float (&top)[2], const float (&scores)[4]) {
        top[0] = fmaxf(top[0], fmaxf(scores[0], scores[1]));
        top[1] = fmaxf(top[1], fmaxf(scores[2], scores[3]));
    }

    // Scores of the n-th 8 tokens of `keys` once more, by this warp alone: it does not know what others of its warpgroup do.
    __device__ __forceinline__ void score_again(float (&scores)[4], unsigned keys, int n) const {
        const unsigned lane = threadIdx.x % 32, token = n * 8 + lane % 8;
        scores[0] = scores[1] = scores[2] = scores[3] = 0.0f;
#pragma unroll
        for (unsigned k = 0; k < STEPS; k += 2) {
            unsigned b[4];
            load_matrices(b, keys + k / 4 * PANEL_BYTES + token * 128 + ((k % 4 * 2 + lane / 8) ^ token % 8) * 16);
            multiply<T>(scores, query[k], b[0], b[1]);
            multiply<T>(scores, query[k + 1], b[2], b[3]);
        }
    }

    // Where weights have become large: those of rows that have outgrown their m, against their new m. Loops stay loops, so that
    // they take few registers.
    __device__ __forceinline__ float2 weigh_again(unsigned keys, const Sight& sight, const Rows& wanted, float scale) {
        float scores[4], top[2] = {NO_SCORE, NO_SCORE};
#pragma unroll 1
        for (int n = 0; n < STEP_TOKENS / 8; n++) {
            score_again(scores, keys, n);
            sight.mask(scores, n);
            rise(top, scores);
        }
        const Rows risen = raise(top, wanted, scale);
#pragma unroll 1
        for (int n = 0; n < STEP_TOKENS / 8; n++) {
            score_again(scores, keys, n);
            sight.mask(scores, n);
            // Registers have no index: those of the n-th 8 tokens come first, and go to the end.
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
        const float l = quad_sum(rows.l[r]);
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
                job.partials.extents[state] = {rows.m[r], l};
            }
        }
    }
}

// Warpgroup `group` of the two that multiply.
__device__ __forceinline__ void multiply_wide(const Job& job, unsigned group, unsigned queries, WideShared& wide) {
    const unsigned lane = threadIdx.x % 32, first = group * 64 + threadIdx.x % GROUP_THREADS / 32 * 16;
    const unsigned ring = queries + QUERY_BYTES;
    Turnstile turn;
    unsigned query_parity = 0;
    // When the whole warp has done with what the barrier guards.
    auto leave = [&](unsigned long long& barrier) {
        __syncwarp();
        if (lane == 0) {
            arrive(shared_address(&barrier));
        }
    };
    // The stage that comes next, when it is full.
    auto take = [&] {
        const unsigned stage = turn.stage;
        wait_barrier(shared_address(&wide.full[stage]), turn.parity);
        turn.next();
        return stage;
    };
    auto keys = [&](unsigned stage) { return ring + stage * STAGE_BYTES; };
    auto values = [&](unsigned stage) { return ring + stage * STAGE_BYTES + OPERAND_BYTES; };
#pragma unroll 1
    for (WideTiles tiles(job); tiles.more(); tiles.next()) {
        const unsigned steps = steps_of(tiles.tile(job)), packed_rows = tiles.tile(job).rows;
        wait_barrier(shared_address(&wide.queries_full), query_parity);
        query_parity ^= 1;
        if (group == 1 && packed_rows <= 64) {
            leave(wide.queries_empty);
            for (unsigned step = 0; step <= steps; step++) {
                leave(wide.empty[take()]);
            }
            continue;
        }
        WideRows rows;
        rows.begin();
        rows.load_queries(queries, group);
        leave(wide.queries_empty);
        // A word of a note, for all lanes: read by the one that tells when the stage is done with.
        auto noted = [&](const unsigned& word) { return __shfl_sync(ALL_LANES, lane == 0 ? word : 0, 0); };
        // Looked up where it is asked for, which is seldom.
        auto sight = [&](unsigned stage) {
            const Tile here = tiles.tile(job);
            unsigned at[2];
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
                at[r] = job.positions[packed_row(here, first + lane / 4 + r * 8) / job.group];
            }
            const Note& note = wide.notes[stage];
            const unsigned pieces[2] = {noted(note.pieces[0]), noted(note.pieces[1])};
            return Sight(pieces, here.highest + moved_on(job.words, job.positions), at, job.words[WINDOW]);
        };
        auto mask_keys = [&](unsigned stage, unsigned whole) {
            settled(rows.s);
            if (__builtin_expect(whole == 0, 0)) {
                const Sight seen = sight(stage);
#pragma unroll
                for (int n = 0; n < STEP_TOKENS / 8; n++) {
                    seen.mask(rows.s[n], n);
                }
            }
        };
        // Scores become weights, and all products are waited for. Seldom do weights ask for another m.
        auto soften_keys = [&](unsigned stage, unsigned whole) {
            mask_keys(stage, whole);
            float2 sums = rows.weigh(job.scale);
            const WideRows::Rows wanted = {!(sums.x <= MOST_WEIGHT), !(sums.y <= MOST_WEIGHT)};
            if (__builtin_expect(__any_sync(ALL_LANES, wanted.of[0] || wanted.of[1]), 0)) {
                wait_products<0>();
                settled(rows.o);
                sums = rows.weigh_again(keys(stage), sight(stage), wanted, job.scale);
            } else {
                wait_products<0>();
                settled(rows.o);
            }
            rows.l[0] += sums.x;
            rows.l[1] += sums.y;
        };

        unsigned stage = take();
        unsigned whole = noted(wide.notes[stage].whole);
        begin_products();
        rows.issue_keys(keys(stage));
        wait_products<0>();
        if constexpr (DETERMINISTIC) {
            // A row whose first token comes later, as others see more, is scored by the same instructions there.
            soften_keys(stage, whole);
        } else {
            mask_keys(stage, whole);
            float top[2] = {NO_SCORE, NO_SCORE};
#pragma unroll
            for (int n = 0; n < STEP_TOKENS / 8; n++) {
                WideRows::rise(top, rows.s[n]);
            }
            rows.raise(top, {true, true}, job.scale);
            const float2 sums = rows.weigh(job.scale);
            rows.l[0] = sums.x;
            rows.l[1] = sums.y;
        }
        leave(wide.empty[stage]);
        rows.pack_weights();
#pragma unroll 1
        for (unsigned step = 1; step < steps; step++) {
            stage = take();
            whole = noted(wide.notes[stage].whole);
            begin_products();
            rows.issue_keys(keys(stage));
            rows.issue_values(values(stage));
            wait_products<1>();
            soften_keys(stage, whole);
            leave(wide.empty[stage]);
            rows.pack_weights();
        }
        stage = take();
        begin_products();
        rows.issue_values(values(stage));
        wait_products<0>();
        settled(rows.o);
        leave(wide.empty[stage]);
        store_wide(job, tiles.tile(job), tiles.head(job), first, rows);
    }
}
