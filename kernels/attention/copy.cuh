// The copying side of Hopper's wide tiles: a warpgroup loads queries, and step by step keys and values, into the ring
// of attention/ring.cuh and signals the multiplying warpgroups. Where short tiles are preferred, another thread
// signals, so that this warpgroup never waits for its copies. 8-bit keys and values are first copied to a separate ring
// and widened from there.
#pragma once

#include "attention/fp8.cuh"
#include "attention/ring.cuh"
#include "attention/wgmma.cuh"

// Arrives at `full` for a warp, after making its writes visible to the matrix instructions.
__device__ __forceinline__ void signal_full(unsigned full) {
    fence_proxies();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        arrive(full);
    }
}

// Stages copied to where they are multiplied.
struct RingStages {
    // ROWS: rows copied at a time by all threads. COLUMNS: chunks of a row per thread, one per panel. STRIDE, PANEL:
    // bytes in the ring between rows and between panels.
    static constexpr unsigned ROWS = GROUP_THREADS / 8, COLUMNS = PANELS, STRIDE = 128, PANEL = PANEL_BYTES,
                              OPERAND = OPERAND_BYTES;
    unsigned ring;
    RingCursor cursor;

    __device__ __forceinline__ explicit RingStages(unsigned ring) : ring(ring) {}

    __device__ __forceinline__ static unsigned row(unsigned thread) {
        return thread / 8;
    }
    // Offset of the thread's first chunk within a row, as rows are laid out in pages.
    __device__ __forceinline__ static unsigned column(unsigned thread) {
        return thread % 8 * 16;
    }
    // Rows of 80 and 96 elements are swizzled otherwise in pages than here.
    __device__ __forceinline__ static unsigned place(unsigned thread) {
        return row(thread) * 128 + (thread % 8 ^ swizzle_of(row(thread), KV_ROW_BYTES) ^ row(thread) % 8) * 16;
    }
    // Whether the thread's row has its chunk of a panel.
    __device__ __forceinline__ static bool has(unsigned thread, unsigned panel) {
        return CHUNKS % 8 == 0 || panel * 8 + thread % 8 < CHUNKS;
    }

    // Waits for the next stage to be empty and returns its address.
    __device__ __forceinline__ unsigned begin(WideShared& wide, const StageInfo& info) {
        const unsigned to = ring + cursor.stage * STAGE_BYTES;
        wait_barrier(shared_address(&wide.empty[cursor.stage]), cursor.parity ^ 1);
        if (threadIdx.x % GROUP_THREADS == 0) {
            wide.stage_info[cursor.stage] = info;
        }
        return to;
    }
};

// `last`: the `full` barrier of the stage copied last but not yet signalled, or 0; it is signalled when the copies of
// the next stage have been issued.
struct DirectStages : RingStages {
    unsigned last = 0;

    using RingStages::RingStages;
    // Called by all lanes of a warp after issuing the copies of a stage.
    __device__ __forceinline__ void end(WideShared& wide) {
        const unsigned full = shared_address(&wide.full[cursor.stage]);
        copies_issued();
        if (last != 0) {
            wait_copies<1>();
            signal_full(last);
        }
        last = full;
        cursor.next();
    }
    __device__ __forceinline__ void end_tile(WideShared&) {
        wait_copies<0>();
        signal_full(last);
        last = 0;
    }
    __device__ __forceinline__ void end_all(WideShared&) {}
};

// The same, signalled by `relay_landed`. Here a thread neither waits for its copies nor fences them: the fence, which
// begins with one of all memory, may wait for newer copies too.
struct RelayedStages : RingStages {
    using RingStages::RingStages;

    __device__ __forceinline__ unsigned begin(WideShared& wide, const StageInfo& info) {
        const unsigned to = RingStages::begin(wide, info);
        if (threadIdx.x % GROUP_THREADS == 0) {
            arrive(shared_address(&wide.landed[cursor.stage]));
        }
        return to;
    }
    __device__ __forceinline__ void end(WideShared& wide) {
        arrive_with_copies(shared_address(&wide.landed[cursor.stage]));
        cursor.next();
    }
    __device__ __forceinline__ void end_tile(WideShared&) {}
    __device__ __forceinline__ void end_all(WideShared&) {}
};

// Called by one thread of a warp that does nothing else: signals the stages of RelayedStages that have landed, in their
// order, and with the first stage of a tile its queries, which were copied before. Its fence stands between the copies
// of all threads, which it has waited for, and the matrix instructions of those that wait for it.
//
// The copying side waits for `empty` and `queries_empty` alone. The multiplying warpgroups signal these for one tile
// after another, and wait for stages that have been issued, and for openings. As openings are the first tiles of every
// block and wait for nothing, that is no deadlock.
__device__ __forceinline__ void relay_landed(const Job& job, WideShared& wide) {
    RingCursor cursor;
    TileTurns turns;
#pragma unroll 1
    for (WideTiles tiles(job); tiles.more(); tiles.next()) {
        const Tile tile = tiles.tile(job);
        const TileTurns::Takers takers = turns.next(tile.rows);
        const unsigned steps = steps_of(tile);
#pragma unroll 1
        for (unsigned step = 0; step <= steps; step++) {
            wait_barrier(shared_address(&wide.landed[cursor.stage]), cursor.parity);
            fence_proxies();
            if (step == 0) {
#pragma unroll
                for (unsigned taker = 0; taker < TAKERS; taker++) {
                    if (takers.has(taker)) {
                        arrive(shared_address(&wide.queries_full[taker]));
                    }
                }
            }
            arrive(shared_address(&wide.full[cursor.stage]));
            cursor.next();
        }
    }
}

// Stages of 8-bit keys and values, copied to a second ring with as many stages. Each thread widens what it copied
// itself, after the copies of the next two stages are issued; for the last stages of a tile, those of the next tile.
struct WidenedStages {
    static constexpr unsigned ROWS = GROUP_THREADS * 16 / KV_ROW_BYTES, COLUMNS = 1, STRIDE = KV_ROW_BYTES, PANEL = 0,
                              OPERAND = RAW_OPERAND_BYTES;
    unsigned ring, under_way;
    RingCursor cursor;  // of the oldest stage in flight

    __device__ __forceinline__ explicit WidenedStages(unsigned ring) : ring(ring), under_way(0) {}

    // Eight neighbouring lanes take four chunks each of two rows whose numbers differ in bits 0 and 2, so that both the
    // reads and the widened writes touch all banks.
    __device__ __forceinline__ static unsigned row(unsigned thread) {
        const unsigned pair = thread / (8 * PANELS);
        return pair / 4 * 8 + (pair % 4 ^ thread / 4 % 2 * 5);
    }
    __device__ __forceinline__ static unsigned panel(unsigned thread) {
        return thread / 8 % PANELS;
    }
    __device__ __forceinline__ static unsigned column(unsigned thread) {
        return (panel(thread) * 4 + thread % 4 ^ swizzle_of(row(thread), KV_ROW_BYTES)) * 16;
    }
    __device__ __forceinline__ static unsigned place(unsigned thread) {
        return row(thread) * KV_ROW_BYTES + column(thread);
    }
    __device__ __forceinline__ static bool has(unsigned, unsigned) {
        return true;
    }

    __device__ __forceinline__ unsigned begin(WideShared& wide, const StageInfo& info) {
        const unsigned behind = cursor.stage + under_way, stage = behind < STAGES ? behind : behind - STAGES;
        if (threadIdx.x % GROUP_THREADS == 0) {
            wide.raw_info[stage] = info;
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
        wait_barrier(shared_address(&wide.empty[cursor.stage]), cursor.parity ^ 1);
        if (threadIdx.x % GROUP_THREADS == 0) {
            wide.stage_info[cursor.stage] = wide.raw_info[cursor.stage];
        }
        const unsigned thread = threadIdx.x % GROUP_THREADS;
        const unsigned from = ring + STAGES * STAGE_BYTES + cursor.stage * RAW_STAGE_BYTES + place(thread);
        const unsigned to = ring + cursor.stage * STAGE_BYTES + panel(thread) * PANEL_BYTES + row(thread) * 128 +
                            (thread % 4 * 2 ^ row(thread) % 8) * 16;
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
        signal_full(shared_address(&wide.full[cursor.stage]));
        cursor.next();
        under_way--;
    }
};

template <bool WIDENS, bool IS_RELAYED>
struct StagesOf;

template <>
struct StagesOf<false, false> {
    using Type = DirectStages;
};

template <>
struct StagesOf<true, false> {
    using Type = WidenedStages;
};

template <>
struct StagesOf<false, true> {
    using Type = RelayedStages;
};
using CopyStages = StagesOf<FP8, RELAYS>::Type;

// Zeroes the queries' memory, before any tile's are copied.
__device__ __forceinline__ void zero_queries(unsigned queries) {
    for (unsigned at = threadIdx.x % GROUP_THREADS * 16; at < QUERY_BYTES; at += GROUP_THREADS * 16) {
        store_16(queries + at, 0, 0, 0, 0);
    }
}

// Copies the queries of a tile. Rows past the end repeat the last one, or are zeroed, since stale data could produce
// scores that force another m in every step. Where short tiles are preferred, only the queries of warps that have rows
// are copied; the others multiply what is left of earlier tiles, or zeros, for nothing.
// `queries`: the place of the first row.
__device__ __forceinline__ void copy_queries(const Job& job, const Tile& tile, unsigned head, unsigned queries) {
    constexpr unsigned ROWS = GROUP_THREADS / 8;  // copied at a time; each thread copies one chunk per panel
    static_assert(ROWS == WARP_ROWS, "a multiplying warp's rows");
    const unsigned row = threadIdx.x % GROUP_THREADS / 8, chunk = threadIdx.x % 8,
                   place = row * 128 + (chunk ^ row % 8) * 16;
    for (unsigned first = 0; first < (PREFERS_SHORT ? tile.rows : tile.rows > 64 ? 128 : 64); first += ROWS) {
        const T* from = job.query(packed_row(tile, first + row), head) + chunk * 8;
#pragma unroll
        for (unsigned panel = 0; panel < PANELS; panel++) {
            if (CHUNKS % 8 == 0 || panel * 8 + chunk < CHUNKS) {
                copy_16(queries + panel * 2 * PANEL_BYTES + first * 128 + place, from + panel * 64,
                        PREFERS_SHORT || first < tile.rows);
            }
        }
    }
}

// Runs the copying warpgroup. All rows of a thread have the same place within their atoms.
__device__ __forceinline__ void copy_wide(const Job& job, unsigned queries, WideShared& wide) {
    const unsigned thread = threadIdx.x % GROUP_THREADS, lane = thread % 32, window = job.words[WINDOW];
    const unsigned row = CopyStages::row(thread), from = row * KV_ROW_BYTES + CopyStages::column(thread),
                   place = CopyStages::place(thread);
    unsigned query_parities = 0b11;  // a bit for each taker
    TileTurns turns;
    CopyStages stages(queries + QUERY_BYTES);
    WideTiles tiles(job);
    unsigned coming = tiles.word(job);  // of the next tile
    const unsigned moved = steps_since_plan(job.words, job.positions);
    const uint2* all_kv_blocks = kv_blocks_at(job.words);
#pragma unroll 1
    while (tiles.more()) {
        const unsigned words = coming, head = tiles.head(job);
        auto field = [&](unsigned i) { return __shfl_sync(ALL_LANES, words, i); };
        const Tile tile = {
            field(0), field(1), field(2), field(3), field(4), field(5) + moved, field(6) + moved, field(7)};
        const unsigned steps = steps_of(tile);
        const uint2* kv_blocks = all_kv_blocks + tile.first_kv_block;
        // lane_kv_block: this lane's of the 32 KV blocks to be copied next; ahead: of the 32 after them. The first
        // TILE_KV_BLOCKS are in the tile's words.
        auto hold = [&](unsigned at) {
            return at + lane >= TILE_KV_BLOCKS && at + lane < tile.kv_blocks ? kv_blocks[at + lane] : uint2{0, 0};
        };
        uint2 lane_kv_block = hold(0), ahead = hold(32);
        tiles.next();
        coming = tiles.word(job);

        const TileTurns::Takers takers = turns.next(tile.rows);
#pragma unroll
        for (unsigned taker = 0; taker < TAKERS; taker++) {
            if (takers.has(taker)) {
                wait_barrier(shared_address(&wide.queries_empty[taker]), query_parities >> taker & 1);
                query_parities ^= 1u << taker;
            }
        }
        copy_queries(job, tile, head, queries + takers.first * PANEL_BYTES);
#pragma unroll
        for (unsigned taker = 0; taker < TAKERS; taker++) {
            if (!RELAYS && takers.has(taker)) {
                arrive_with_copies(shared_address(&wide.queries_full[taker]));
            }
        }

        // The KV blocks of a step, cut off at the last written position.
        struct StepKvBlocks {
            KvBlock of[2];
            const char* lines[2];  // this thread's first row in each page; unused for some that are not full
            bool full;  // every slot of both pages
            bool shared;  // a KV block of several pages, or two
        };
        auto line_in = [&](unsigned page) { return reinterpret_cast<const char*>(job.keys(page, head)) + from; };
        // Copies keys (offset 0) or values (`offset` slots behind them). Of slots outside a KV block, scores are
        // masked, whatever their keys; but their values are multiplied by 0, so they are zeroed. Instruction issue
        // limits the copies too: full pages take a shorter path. Where short tiles are preferred, so do pages that are
        // no part of a shared KV block; elsewhere the lines of such a path would make other registers spill.
        auto copy_slots = [&](unsigned to, const StepKvBlocks& kv_blocks, unsigned offset, const auto& line_of) {
#pragma unroll
            for (unsigned r = 0; r < STEP_TOKENS; r += CopyStages::ROWS) {
                const unsigned half = r / KV_BLOCK_TOKENS, slot = r % KV_BLOCK_TOKENS + row;
                const KvBlock& here = kv_blocks.of[half];
                const bool has_slot = kv_blocks.full || (slot >= here.from && slot < here.to);
                const char* line = line_of(half, slot) + (offset + r % KV_BLOCK_TOKENS) * KV_ROW_BYTES;
#pragma unroll
                for (unsigned panel = 0; panel < CopyStages::COLUMNS; panel++) {
                    if (CopyStages::has(thread, panel) && (!PREFERS_SHORT || offset > 0 || has_slot)) {
                        copy_16(to + panel * CopyStages::PANEL + r * CopyStages::STRIDE + place, line + panel * 128,
                                has_slot);
                    }
                }
            }
        };
        auto copy = [&](unsigned to, const StepKvBlocks& kv_blocks, unsigned offset) {
            auto line_of_one = [&](unsigned half, unsigned) { return kv_blocks.lines[half]; };
            auto line_of_several = [&](unsigned half, unsigned slot) {
                return line_in(DETERMINISTIC ? page_of(job.words, kv_blocks.of[half].page, slot)
                                             : kv_blocks.of[half].page);
            };
            if (kv_blocks.full) {
                copy_slots(to, {{}, {kv_blocks.lines[0], kv_blocks.lines[1]}, true, false}, offset, line_of_one);
            } else if (PREFERS_SHORT && !kv_blocks.shared) {
                copy_slots(to, kv_blocks, offset, line_of_one);
            } else {
                copy_slots(to, kv_blocks, offset, line_of_several);
            }
        };
        StepKvBlocks before;
#pragma unroll 1
        for (unsigned step = 0; step <= steps; step++) {
            if (step % 16 == 0 && step > 0) {
                lane_kv_block = ahead;
                ahead = hold(step * 2 + 32);
            }
            StepKvBlocks now = {{}, {}, true, false};
            StageInfo info = {};
            // Short tiles save this for their last stage, of values alone; in long ones the branch costs more.
            if (!PREFERS_SHORT || step < steps) {
#pragma unroll
                for (unsigned half = 0; half < 2; half++) {
                    const unsigned i = step * 2 + half, first = TILE_FIELDS + 2 * i;
                    uint2 words;
                    if (i < TILE_KV_BLOCKS) {
                        // An empty KV block past the last one.
                        words = {field(first), i < tile.kv_blocks ? field(first + 1) : 0};
                    } else {
                        words = {__shfl_sync(ALL_LANES, lane_kv_block.x, i % 32),
                                 __shfl_sync(ALL_LANES, lane_kv_block.y, i % 32)};
                    }
                    now.of[half] = kv_block_of(words, tile.highest);
                    now.lines[half] = line_in(words.x);
                    now.shared |= DETERMINISTIC && words.x & SHARED_KV_BLOCK;
                    now.full &= now.of[half].from == 0 && now.of[half].to == KV_BLOCK_TOKENS && !now.shared;
                    info.kv_blocks[half] = words.y;
                }
                // Positions rise from KV block to KV block.
                info.whole = now.full && now.of[1].base + KV_BLOCK_TOKENS <= tile.lowest + 1 &&
                             tile.highest - now.of[0].base < window;
            }
            const unsigned to = stages.begin(wide, info);
            if (step < steps) {
                copy(to, now, 0);
            }
            if (step > 0) {
                copy(to + CopyStages::OPERAND, before, KV_BLOCK_TOKENS);
            }
            before = now;
            stages.end(wide);
        }
        stages.end_tile(wide);
    }
    stages.end_all(wide);
}
