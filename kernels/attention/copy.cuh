// The side of Hopper's wide tiles that copies: a warpgroup of four warps brings queries, and keys and values step by
// step, into the ring of attention/ring.cuh, and tells those who multiply. Eight-bit keys and values it brings to a
// ring of their own, and widens them from there.
#pragma once

#include "attention/fp8.cuh"
#include "attention/ring.cuh"
#include "attention/wgmma.cuh"

// Tells that a warp's part of what `full` guards is there, without those who multiply having to make it visible to
// matrix instructions themselves.
__device__ __forceinline__ void tell(unsigned full) {
    fence_proxies();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        arrive(full);
    }
}

// Stages that are copied to where they are multiplied. `last`: the stage that was copied last and not told, as the
// `full` barrier of it, or 0; it is told when the copies of the next one are issued.
struct Copied {
    // Rows that all threads copy at a time; chunks of a row that a thread copies, a panel each; bytes in the ring from
    // a row, and from a panel, to the next.
    static constexpr unsigned ROWS = GROUP_THREADS / 8, COLUMNS = PANELS, STRIDE = 128, PANEL = PANEL_BYTES, OPERAND = OPERAND_BYTES;
    unsigned ring, last;
    Turnstile turn;

    __device__ __forceinline__ explicit Copied(unsigned ring) : ring(ring), last(0) {}

    __device__ __forceinline__ static unsigned row(unsigned thread) {
        return thread / 8;
    }
    // The first byte, as rows lie in pages.
    __device__ __forceinline__ static unsigned column(unsigned thread) {
        return thread % 8 * 16;
    }
    __device__ __forceinline__ static unsigned place(unsigned thread) {
        return thread * 16;
    }

    // Where the next stage goes, when there is room.
    __device__ __forceinline__ unsigned begin(WideShared& wide, const Note& note) {
        const unsigned to = ring + turn.stage * STAGE_BYTES;
        wait_barrier(shared_address(&wide.empty[turn.stage]), turn.parity ^ 1);
        if (threadIdx.x % GROUP_THREADS == 0) {
            wide.notes[turn.stage] = note;
        }
        return to;
    }
    // By all lanes of a warp, when its copies are issued.
    __device__ __forceinline__ void end(WideShared& wide) {
        const unsigned full = shared_address(&wide.full[turn.stage]);
        copies_issued();
        if (last != 0) {
            wait_copies<1>();
            tell(last);
        }
        last = full;
        turn.next();
    }
    __device__ __forceinline__ void end_tile(WideShared&) {
        wait_copies<0>();
        tell(last);
        last = 0;
    }
    __device__ __forceinline__ void end_all(WideShared&) {}
};

// Stages of eight-bit keys and values, which arrive in a ring of as many beside the other. Each thread widens what it
// has copied itself, when the copies of the two stages behind it are under way; of the last ones of a tile, when those
// of the next tile are.
struct Widened {
    static constexpr unsigned ROWS = GROUP_THREADS * 16 / KEPT_BYTES, COLUMNS = 1, STRIDE = KEPT_BYTES, PANEL = 0, OPERAND = RAW_OPERAND_BYTES;
    unsigned ring, under_way;
    Turnstile turn;  // of the oldest stage under way

    __device__ __forceinline__ explicit Widened(unsigned ring) : ring(ring), under_way(0) {}

    // Eight neighbouring lanes take four chunks each of two rows, whose numbers differ in bits 0 and 2: so they read
    // all banks, and when these are written as eight, they meet all banks.
    __device__ __forceinline__ static unsigned row(unsigned thread) {
        const unsigned pair = thread / (8 * PANELS);
        return pair / 4 * 8 + (pair % 4 ^ thread / 4 % 2 * 5);
    }
    __device__ __forceinline__ static unsigned panel(unsigned thread) {
        return thread / 8 % PANELS;
    }
    __device__ __forceinline__ static unsigned column(unsigned thread) {
        return (panel(thread) * 4 + thread % 4 ^ swizzle_of(row(thread), KEPT_BYTES)) * 16;
    }
    __device__ __forceinline__ static unsigned place(unsigned thread) {
        return row(thread) * KEPT_BYTES + column(thread);
    }

    __device__ __forceinline__ unsigned begin(WideShared& wide, const Note& note) {
        const unsigned behind = turn.stage + under_way, stage = behind < STAGES ? behind : behind - STAGES;
        if (threadIdx.x % GROUP_THREADS == 0) {
            wide.raw_notes[stage] = note;
        }
        return ring + STAGES * STAGE_BYTES + stage * RAW_STAGE_BYTES;
    }
    __device__ __forceinline__ void end(WideShared& wide) {
        copies_issued();
        if (++under_way == STAGES) {
            wait_copies<STAGES - 1>();
            widen_oldest(wide);
        }
    }
    __device__ __forceinline__ void end_tile(WideShared&) {}
    __device__ __forceinline__ void end_all(WideShared& wide) {
        wait_copies<0>();
        while (under_way > 0) {
            widen_oldest(wide);
        }
    }

  private:
    __device__ __forceinline__ void widen_oldest(WideShared& wide) {
        wait_barrier(shared_address(&wide.empty[turn.stage]), turn.parity ^ 1);
        if (threadIdx.x % GROUP_THREADS == 0) {
            wide.notes[turn.stage] = wide.raw_notes[turn.stage];
        }
        const unsigned thread = threadIdx.x % GROUP_THREADS;
        const unsigned from = ring + STAGES * STAGE_BYTES + turn.stage * RAW_STAGE_BYTES + place(thread);
        const unsigned to = ring + turn.stage * STAGE_BYTES + panel(thread) * PANEL_BYTES + row(thread) * 128 + (thread % 4 * 2 ^ row(thread) % 8) * 16;
#pragma unroll
        for (unsigned r = 0; r < 2 * STEP_TOKENS; r += ROWS) {
            unsigned bytes[4], a[2], b[2], c[2], d[2];
            load_16(bytes, from + r * STRIDE);
            widen(a, bytes[0]);
            widen(b, bytes[1]);
            widen(c, bytes[2]);
            widen(d, bytes[3]);
            const unsigned here = to + r / STEP_TOKENS * OPERAND_BYTES + r % STEP_TOKENS * 128;
            store_16(here, a[0], a[1], b[0], b[1]);
            store_16(here ^ 16, c[0], c[1], d[0], d[1]);
        }
        tell(shared_address(&wide.full[turn.stage]));
        turn.next();
        under_way--;
    }
};

template <bool>
struct SupplyOf {
    using Type = Copied;
};

template <>
struct SupplyOf<true> {
    using Type = Widened;
};
using Supply = SupplyOf<FP8>::Type;

// Queries of a tile. What a warp multiplies is never what something else left there: its scores could ask for another m
// in each step.
__device__ __forceinline__ void copy_queries(const Job& job, const Tile& tile, unsigned head, unsigned queries) {
    constexpr unsigned ROWS = GROUP_THREADS / 8;  // at a time, a chunk of each panel a thread
    const unsigned row = threadIdx.x % GROUP_THREADS / 8, chunk = threadIdx.x % 8, place = row * 128 + (chunk ^ row % 8) * 16;
    for (unsigned first = 0; first < (tile.rows > 64 ? 128 : 64); first += ROWS) {
        const T* from = job.query(packed_row(tile, first + row), head) + chunk * 8;
#pragma unroll
        for (unsigned panel = 0; panel < PANELS; panel++) {
            copy_16(queries + panel * 2 * PANEL_BYTES + first * 128 + place, from + panel * 64, first < tile.rows);
        }
    }
}

// The warpgroup that copies. A thread's rows take the same place in their atoms.
__device__ __forceinline__ void copy_wide(const Job& job, unsigned queries, WideShared& wide) {
    const unsigned thread = threadIdx.x % GROUP_THREADS, lane = thread % 32, window = job.words[WINDOW];
    const unsigned row = Supply::row(thread), from = row * KEPT_BYTES + Supply::column(thread), place = Supply::place(thread);
    unsigned query_parity = 1;
    Supply supply(queries + QUERY_BYTES);
    WideTiles tiles(job);
    unsigned coming = tiles.word(job);  // of the next tile
    const unsigned moved = moved_on(job.words, job.positions);
#pragma unroll 1
    while (tiles.more()) {
        const unsigned words = coming, head = tiles.head(job);
        auto field = [&](unsigned i) { return __shfl_sync(ALL_LANES, words, i); };
        const Tile tile = {field(0), field(1), field(2), field(3), field(4), field(5) + moved, field(6) + moved, field(7)};
        const unsigned steps = steps_of(tile);
        const uint2* kv_blocks = kv_blocks_at(job.words) + tile.first_kv_block;
        // This lane's of the 32 KV blocks that are copied next, and of the 32 after them. The first ones are among the
        // tile's words.
        auto hold = [&](unsigned at) {
            return at + lane >= TILE_KV_BLOCKS && at + lane < tile.kv_blocks ? kv_blocks[at + lane] : uint2{0, 0};
        };
        uint2 held = hold(0), ahead = hold(32);
        tiles.next();
        coming = tiles.word(job);

        wait_barrier(shared_address(&wide.queries_empty), query_parity);
        query_parity ^= 1;
        copy_queries(job, tile, head, queries);
        arrive_with_copies(shared_address(&wide.queries_full));

        // The KV blocks of a step, cut to what is written.
        struct StepKvBlocks {
            KvBlock of[2];
            const char* lines[2];  // this thread's first in each page; of a KV block of several pages, of no use
            bool full;             // every slot of both pages
        };
        auto line_in = [&](unsigned page) { return reinterpret_cast<const char*>(job.keys(page, head)) + from; };
        // Keys, or values, which lie `offset` slots behind them. Instructions count here too: full pages take few.
        auto copy = [&](unsigned to, const StepKvBlocks& kv_blocks, unsigned offset) {
            if (kv_blocks.full) {
#pragma unroll
                for (unsigned r = 0; r < STEP_TOKENS; r += Supply::ROWS) {
                    const char* line = kv_blocks.lines[r / KV_BLOCK_TOKENS] + (offset + r % KV_BLOCK_TOKENS) * KEPT_BYTES;
#pragma unroll
                    for (unsigned panel = 0; panel < Supply::COLUMNS; panel++) {
                        copy_16(to + panel * Supply::PANEL + r * Supply::STRIDE + place, line + panel * 128, true);
                    }
                }
                return;
            }
#pragma unroll
            for (unsigned r = 0; r < STEP_TOKENS; r += Supply::ROWS) {
                const KvBlock& here = kv_blocks.of[r / KV_BLOCK_TOKENS];
                const unsigned slot = r % KV_BLOCK_TOKENS + row;
                const unsigned page = DETERMINISTIC ? page_of(job.words, here.page, slot) : here.page;
                const char* line = line_in(page) + (offset + r % KV_BLOCK_TOKENS) * KEPT_BYTES;
#pragma unroll
                for (unsigned panel = 0; panel < Supply::COLUMNS; panel++) {
                    copy_16(to + panel * Supply::PANEL + r * Supply::STRIDE + place, line + panel * 128, slot >= here.from && slot < here.to);
                }
            }
        };
        StepKvBlocks before;
#pragma unroll 1
        for (unsigned step = 0; step <= steps; step++) {
            if (step % 16 == 0 && step > 0) {
                held = ahead;
                ahead = hold(step * 2 + 32);
            }
            StepKvBlocks now = {{}, {}, true};
            Note note;
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                const unsigned i = step * 2 + half, first = TILE_FIELDS + 2 * i;
                uint2 words;
                if (i < TILE_KV_BLOCKS) {
                    // Behind the last KV block, nothing.
                    words = {field(first), i < tile.kv_blocks ? field(first + 1) : 0};
                } else {
                    words = {__shfl_sync(ALL_LANES, held.x, i % 32), __shfl_sync(ALL_LANES, held.y, i % 32)};
                }
                now.of[half] = kv_block_of(words, tile.highest);
                now.lines[half] = line_in(words.x);
                now.full &= now.of[half].from == 0 && now.of[half].to == KV_BLOCK_TOKENS && !(DETERMINISTIC && words.x & SHARED_KV_BLOCK);
                note.kv_blocks[half] = words.y;
            }
            // Positions rise from KV block to KV block.
            note.whole = now.full && now.of[1].base + KV_BLOCK_TOKENS <= tile.lowest + 1 && tile.highest - now.of[0].base < window;
            const unsigned to = supply.begin(wide, note);
            if (step < steps) {
                copy(to, now, 0);
            }
            if (step > 0) {
                copy(to + Supply::OPERAND, before, KV_BLOCK_TOKENS);
            }
            before = now;
            supply.end(wide);
        }
        supply.end_tile(wide);
    }
    supply.end_all(wide);
}
