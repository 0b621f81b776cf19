// The side of Hopper's wide tiles that copies: a warpgroup of four warps brings queries, and keys and values step by step, into the
// ring of attention_ring.cuh, and tells those who multiply.
#pragma once

#include "attention_ring.cuh"
#include "wgmma.cuh"

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
