// Wide tiles on Hopper (sm_90a), up to 128 packed rows: the multiplying side. One warpgroup copies keys and values into
// a ring (attention/copy.cuh); two warpgroups of 64 rows each multiply with asynchronous matrix instructions (wgmma)
// that read the ring. One warpgroup's softmax overlaps the other's products. Limited by the tensor cores and the
// softmax instructions; with few rows by bandwidth.
#pragma once

#include "attention/fp8.cuh"
#include "attention/openings.cuh"
#include "attention/ring.cuh"
#include "attention/rows.cuh"

// The rows of a warpgroup, with their queries.
struct WideRows : SoftmaxRows {
    unsigned query[STEPS][4];

    __device__ __forceinline__ void load_queries(unsigned queries, unsigned group) {
        const unsigned lane = threadIdx.x % 32,
                       row = group * 64 + threadIdx.x % GROUP_THREADS / 32 * WARP_ROWS + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
        for (unsigned k = 0; k < STEPS; k++) {
            load_matrices(query[k],
                          queries + k / 4 * 2 * PANEL_BYTES + row * 128 + ((k % 4 * 2 + lane / 16) ^ row % 8) * 16);
            if constexpr (FP8) {
#pragma unroll
                for (unsigned i = 0; i < 4; i++) {
                    query[k][i] = as_f16<T>(query[k][i]);
                }
            }
        }
    }

    __device__ __forceinline__ void issue_keys(unsigned keys) {
#pragma unroll
        for (unsigned k = 0; k < STEPS; k++) {
            multiply_keys<Operand>(s, query[k], descriptor(keys) + (k / 4 * PANEL_BYTES + k % 4 * 32) / 16, k > 0);
        }
        products_issued();
    }

    // Recomputes the scores of the n-th 8 tokens of `keys` with warp-level instructions.
    __device__ __forceinline__ void recompute_scores(float (&scores)[4], unsigned keys, int n) const {
        const unsigned lane = threadIdx.x % 32, token = n * 8 + lane % 8;
        scores[0] = scores[1] = scores[2] = scores[3] = 0.0f;
#pragma unroll
        for (unsigned k = 0; k < STEPS; k += 2) {
            unsigned b[4];
            load_matrices(b, keys + k / 4 * PANEL_BYTES + token * 128 + ((k % 4 * 2 + lane / 8) ^ token % 8) * 16);
            multiply<Operand>(scores, query[k], b[0], b[1]);
            if (k + 1 < STEPS) {
                multiply<Operand>(scores, query[k + 1], b[2], b[3]);
            }
        }
    }
};

// Runs warpgroup `group` (0 or 1) of the two that multiply.
__device__ __forceinline__ void multiply_wide(const Job& job, unsigned group, unsigned queries, WideShared& wide) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned ring = queries + QUERY_BYTES;
    RingCursor cursor;
    unsigned query_parity = 0;
    TileTurns turns;
    // Signals that the whole warp no longer needs what `barrier` guards, `arrivals` times.
    auto release = [&](unsigned long long& barrier, unsigned arrivals) {
        __syncwarp();
        if (lane == 0) {
            arrive(shared_address(&barrier), arrivals);
        }
    };
    // Waits for the next stage to be full and returns it.
    auto acquire = [&] {
        const unsigned stage = cursor.stage;
        wait_barrier(shared_address(&wide.full[stage]), cursor.parity);
        cursor.next();
        return stage;
    };
    auto keys = [&](unsigned stage) { return ring + stage * STAGE_BYTES; };
    auto values = [&](unsigned stage) { return ring + stage * STAGE_BYTES + OPERAND_BYTES; };
    WideTiles tiles(job);
    WideTiles::Size coming = tiles.size(job);  // of the next tile
#pragma unroll 1
    for (; tiles.more(); tiles.next()) {
        const unsigned steps = steps_of(coming.kv_blocks), packed_rows = coming.rows, states = coming.states;
        WideTiles ahead = tiles;
        ahead.next();
        coming = ahead.size(job);
        const TileTurns::Takers takers = turns.next(packed_rows);
        if (!takers.has(group)) {
            cursor.pass(steps + 1);
            continue;
        }
        const unsigned arrivals = takers.are_both() ? 1 : 2, taker = group % TAKERS;
        const unsigned first = (takers.are_both() ? group * 64 : 0) + threadIdx.x % GROUP_THREADS / 32 * WARP_ROWS;
        WideRows rows;
        rows.begin();
        const bool continues = PREFERS_SHORT && states & CONTINUES;
        if (continues) {
            wait_for_openings(job);
            load_wide(job, tiles.tile(job), tiles.head(job), first, rows);
        }
        wait_barrier(shared_address(&wide.queries_full[taker]), query_parity);
        query_parity ^= 1;
        if (!PREFERS_SHORT && group == 1 && packed_rows <= 64) {
            release(wide.queries_empty[taker], 1);
            for (unsigned step = 0; step <= steps; step++) {
                release(wide.empty[acquire()], 1);
            }
            continue;
        }
        rows.load_queries(queries, group);
        release(wide.queries_empty[taker], 1);
        // A word of a stage's info, broadcast to all lanes: lane 0 reads it, because lane 0 also releases the stage.
        auto broadcast = [&](const unsigned& word) { return __shfl_sync(ALL_LANES, lane == 0 ? word : 0, 0); };
        // Computed on demand, which is rare.
        auto step_mask = [&](unsigned stage) {
            const Tile here = tiles.tile(job);
            const unsigned highest = here.highest + steps_since_plan(job.words, job.positions);
            unsigned at[2] = {highest, highest};
            if (here.lowest != here.highest) {
#pragma unroll
                for (unsigned r = 0; r < 2; r++) {
                    at[r] = job.positions[job.by_group.quotient(packed_row(here, first + lane / 4 + r * 8))];
                }
            }
            const StageInfo& info = wide.stage_info[stage];
            const unsigned kv_blocks[2] = {broadcast(info.kv_blocks[0]), broadcast(info.kv_blocks[1])};
            return StepMask(kv_blocks, highest, at, job.words[WINDOW]);
        };
        unsigned stage = acquire();
        auto recompute = [&](float (&scores)[4], int n) { rows.recompute_scores(scores, keys(stage), n); };
        unsigned whole = broadcast(wide.stage_info[stage].whole);
        begin_products();
        rows.issue_keys(keys(stage));
        wait_products<0>();
        if (continues) {
            rows.softmax(job, whole, [&] { return step_mask(stage); }, recompute);
        } else {
            rows.first_softmax(job, whole, [&] { return step_mask(stage); });
        }
        release(wide.empty[stage], arrivals);
        rows.pack_weights();
#pragma unroll 1
        for (unsigned step = 1; step < steps; step++) {
            stage = acquire();
            whole = broadcast(wide.stage_info[stage].whole);
            begin_products();
            rows.issue_keys(keys(stage));
            rows.issue_values(values(stage));
            wait_products<1>();
            rows.softmax(job, whole, [&] { return step_mask(stage); }, recompute);
            release(wide.empty[stage], arrivals);
            rows.pack_weights();
        }
        stage = acquire();
        begin_products();
        rows.issue_values(values(stage));
        wait_products<0>();
        settled(rows.o);
        release(wide.empty[stage], arrivals);
        store_wide(job, tiles.tile(job), tiles.head(job), first, rows, 0);
        if (PREFERS_SHORT && states & OPENS) {
            publish_opening(job, first < packed_rows ? min(packed_rows - first, WARP_ROWS) : 0);
        }
    }
}
