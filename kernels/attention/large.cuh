// The multiplying side of wide tiles of heads of 256 and 512, and of 192 with values of 128: each of two warpgroups
// holds 64 rows of results, COLUMNS columns wide. With heads of 512 both compute the scores of the same rows, and each
// its half of the columns. Limited by the tensor cores; with heads of 512, whose tiles have 64 rows, by the
// second-level cache.
#pragma once

#include "attention/large_ring.cuh"
#include "attention/rows.cuh"

// Steps along queries that are held in registers too, so that products read keys alone from shared memory.
constexpr unsigned HELD_STEPS = KEY_DIM == 192 ? KEY_DIM / 16 : 0;

// The rows of a warpgroup. Their queries stay in shared memory, those of the first row at `queries`.
struct LargeRows : SoftmaxRows {
    unsigned queries;
    unsigned held[HELD_STEPS > 0 ? HELD_STEPS : 1][4];

    __device__ __forceinline__ void hold_queries() {
        const unsigned lane = threadIdx.x % 32, row = threadIdx.x % GROUP_THREADS / 32 * WARP_ROWS + lane % 16;
#pragma unroll
        for (int k = 0; k < static_cast<int>(HELD_STEPS); k++) {
            load_matrices(held[k], queries + k / 4 * QUERY_PANEL_BYTES + row * 128 +
                                       ((k % 4 * 2 + lane / 16) ^ row % 8) * 16);
        }
    }

    // Multiplies one share of queries and keys. Scores begin with the first share.
    __device__ __forceinline__ void issue_keys(unsigned keys, unsigned share) {
        const unsigned first = recomputed(queries) + share * KEY_PANELS * QUERY_PANEL_BYTES;
#pragma unroll
        for (unsigned k = 0; k < KEY_PANELS * 4; k++) {
            const unsigned long long key = descriptor(keys) + (k / 4 * PANEL_BYTES + k % 4 * 32) / 16;
            if constexpr (HELD_STEPS > 0) {
                multiply_keys<Operand>(s, held[k], key, k > 0);
            } else {
                const unsigned query = first + k / 4 * QUERY_PANEL_BYTES;
                multiply_shared<Operand>(s, descriptor(query) + k % 4 * 2, key, share > 0 || k > 0);
            }
        }
    }

    // Recomputes the scores of the n-th 8 tokens with warp-level instructions, from one share of keys after the other.
    __device__ __forceinline__ void recompute_scores(float (&scores)[4], const unsigned (&keys)[SHARES], int n) const {
        const unsigned lane = threadIdx.x % 32, token = n * 8 + lane % 8;
        const unsigned row = threadIdx.x % GROUP_THREADS / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
        scores[0] = scores[1] = scores[2] = scores[3] = 0.0f;
#pragma unroll
        for (unsigned share = 0; share < SHARES; share++) {
#pragma unroll 2
            for (unsigned k = 0; k < KEY_PANELS * 4; k += 2) {
                unsigned b[4];
                load_matrices(
                    b, keys[share] + k / 4 * PANEL_BYTES + token * 128 + ((k % 4 * 2 + lane / 8) ^ token % 8) * 16);
#pragma unroll
                for (unsigned i = 0; i < 2; i++) {
                    unsigned query[4];
                    load_matrices(query, queries + (share * KEY_PANELS + k / 4) * QUERY_PANEL_BYTES + row * 128 +
                                             (((k + i) % 4 * 2 + lane / 16) ^ row % 8) * 16);
                    multiply<Operand>(scores, query, b[2 * i], b[2 * i + 1]);
                }
            }
        }
    }
};

// Copies the queries of the 64 rows of a tile from `first` on to `to`, by `threads` threads. Unused rows are zeroed.
__device__ __forceinline__ void copy_queries(const Job& job, const Tile& tile, unsigned head, unsigned first,
                                             unsigned to, unsigned thread, unsigned threads) {
    constexpr unsigned LINES = KEY_DIM / 64;  // of a row, one in each panel
#pragma unroll 1
    for (unsigned i = thread / 8; i < 64 * LINES; i += threads / 8) {
        const unsigned row = i / LINES, panel = i % LINES, chunk = thread % 8;
        const T* from = job.query(packed_row(tile, first + row), head) + panel * 64 + chunk * 8;
        copy_16(to + panel * QUERY_PANEL_BYTES + row * 128 + (chunk ^ row % 8) * 16, from, first + row < tile.rows);
    }
    copies_issued();
}

// Runs warpgroup `group` (0 or 1) of the two that multiply.
__device__ __forceinline__ void multiply_large(const Job& job, unsigned group, unsigned all_queries,
                                               LargeShared& large) {
    // The warpgroup's rows among those of a tile; the threads that copy their queries; the columns it multiplies.
    const unsigned rows_from = SHARES == 1 ? group * 64 : 0, columns_from = SHARES == 1 ? 0 : group * COLUMNS;
    constexpr unsigned QUERY_THREADS = SHARES * GROUP_THREADS;
    const unsigned query_thread =
        SHARES == 1 ? threadIdx.x % GROUP_THREADS : group * GROUP_THREADS + threadIdx.x % GROUP_THREADS;
    const unsigned query_barrier = QUERIES + (SHARES == 1 ? group : 0);
    const unsigned lane = threadIdx.x % 32, first = rows_from + threadIdx.x % GROUP_THREADS / 32 * 16;
    const unsigned queries = all_queries + rows_from * 128, ring = all_queries + QUERY_BYTES;
    RingCursor cursor;
    // Signals that the whole warp no longer needs a slot.
    auto release = [&](unsigned slot) {
        __syncwarp();
        if (lane == 0) {
            arrive(shared_address(&large.empty[slot]));
        }
    };
    // Waits for the next slot to be full and returns it.
    auto acquire = [&] {
        const unsigned slot = cursor.stage;
        wait_barrier(shared_address(&large.full[slot]), cursor.parity);
        cursor.next();
        return slot;
    };
    auto at = [&](unsigned slot) { return ring + slot * RING_SLOT_BYTES; };
    // A word of a slot's info, broadcast to all lanes: lane 0 reads it, because lane 0 also releases the slot.
    auto broadcast = [&](const unsigned& word) { return __shfl_sync(ALL_LANES, lane == 0 ? word : 0, 0); };
#pragma unroll 1
    for (WideTiles tiles(job); tiles.more(); tiles.next()) {
        const unsigned steps = steps_of(tiles.tile(job)), head = tiles.head(job);
        if (rows_from > 0 && tiles.tile(job).rows <= rows_from) {
#pragma unroll 1
            for (unsigned i = 0; i < slots_of(steps); i++) {
                release(acquire());
            }
            continue;
        }
        meet(query_barrier, QUERY_THREADS);  // all products with the queries before are done
        copy_queries(job, tiles.tile(job), head, rows_from, queries, query_thread, QUERY_THREADS);
        LargeRows rows;
        rows.begin();
        rows.queries = queries;
        wait_copies<0>();
        fence_proxies();
        meet(query_barrier, QUERY_THREADS);
        rows.hold_queries();

        // Computed on demand, which is rare.
        auto step_mask = [&](unsigned slot) {
            const Tile here = tiles.tile(job);
            unsigned at[2];
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
                at[r] = job.positions[job.by_group.quotient(packed_row(here, first + lane / 4 + r * 8))];
            }
            const StageInfo& info = large.keys[slot];
            const unsigned kv_blocks[2] = {broadcast(info.kv_blocks[0]), broadcast(info.kv_blocks[1])};
            return StepMask(kv_blocks, here.highest + steps_since_plan(job.words, job.positions), at,
                            job.words[WINDOW]);
        };
        unsigned keys[SHARES];  // slots of a step's keys
        auto issue_keys = [&] {
#pragma unroll
            for (unsigned share = 0; share < SHARES; share++) {
                keys[share] = acquire();
                rows.issue_keys(at(keys[share]), share);
            }
            products_issued();
        };
        auto release_keys = [&] {
#pragma unroll
            for (unsigned share = 0; share < SHARES; share++) {
                release(keys[share]);
            }
        };
        // Waits for the slot of this warpgroup's columns of the next values; releases the other.
        auto acquire_values = [&] {
            unsigned mine = acquire();
            if constexpr (SHARES == 2) {
                const unsigned second = acquire(), other = group == 0 ? second : mine;
                mine = group == 0 ? mine : second;
                release(other);
            }
            return mine;
        };
        auto recompute = [&](float (&scores)[4], int n) {
            unsigned addresses[SHARES];
#pragma unroll
            for (unsigned share = 0; share < SHARES; share++) {
                addresses[share] = at(keys[share]);
            }
            rows.recompute_scores(scores, addresses, n);
        };
        auto mask = [&] { return step_mask(keys[0]); };

        begin_products();
        issue_keys();
        wait_products<0>();
        rows.first_softmax(job, broadcast(large.keys[keys[0]].whole), mask);
        release_keys();
        rows.pack_weights();
#pragma unroll 1
        for (unsigned step = 1; step < steps; step++) {
            begin_products();
            unsigned values;
            if constexpr (SHARES == 1) {
                issue_keys();
                values = acquire_values();
                rows.issue_values(at(values));
                wait_products<1>();
            } else {
                values = acquire_values();
                rows.issue_values(at(values));
                issue_keys();
                wait_products<1>();
                settled(rows.o);
                release(values);
                wait_products<0>();
            }
            rows.softmax(job, broadcast(large.keys[keys[0]].whole), mask, recompute);
            release_keys();
            if constexpr (SHARES == 1) {
                release(values);
            }
            rows.pack_weights();
        }
        const unsigned values = acquire_values();
        begin_products();
        rows.issue_values(at(values));
        wait_products<0>();
        settled(rows.o);
        release(values);
        store_wide(job, tiles.tile(job), head, first, rows, columns_from);
    }
}
