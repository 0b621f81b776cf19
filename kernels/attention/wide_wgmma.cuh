// Wide tiles on Hopper (sm_90a), up to 128 packed rows: the multiplying side. One warpgroup copies keys and values into
// a ring (attention/copy.cuh); two warpgroups of 64 rows each multiply with asynchronous matrix instructions (wgmma)
// that read the ring. One warpgroup's softmax overlaps the other's products. Limited by the tensor cores and the
// softmax instructions; with few rows by bandwidth.
#pragma once

#include "attention/rows.cuh"

// Writes each row's result to `out` if this is its only state, else as a partial state. `first`: first row of this warp
// in the tile.
__device__ __forceinline__ void store_wide(const Job& job, const Tile& tile, unsigned head, unsigned first, const WideRows& rows) {
    const unsigned lane = threadIdx.x % 32, q_heads = job.group * job.kv_heads;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned i = first + lane / 4 + r * 8, packed = tile.first_row + i, row = job.by_group.quotient(packed);
        const float l = quad_sum(rows.l[r]);
        if (i >= tile.rows) {
            continue;
        }
        const unsigned q_head = head * job.group + job.by_group.remainder(packed);
        if (has_one_state(job.words, tile.states, row)) {
            const float scale = normaliser_fast(l);
            T* out = job.out + (static_cast<size_t>(row) * q_heads + q_head) * HEAD_DIM + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < 2 * STEPS; n++) {
                *reinterpret_cast<unsigned*>(out + n * 8) = pack<T>(rows.o[n][2 * r] * scale, rows.o[n][2 * r + 1] * scale);
            }
        } else {
            const size_t state = static_cast<size_t>(tile.slot + row - job.by_group.quotient(tile.first_row)) * q_heads + q_head;
            float* o = job.partials.o + state * HEAD_DIM + state_place(lane % 4 * 2);
#pragma unroll
            for (int n = 0; n < 2 * STEPS; n += 2) {
                *reinterpret_cast<float4*>(o + n * 8) = {rows.o[n][2 * r], rows.o[n + 1][2 * r], rows.o[n][2 * r + 1], rows.o[n + 1][2 * r + 1]};
            }
            if (lane % 4 == 0) {
                job.partials.extents[state] = {rows.m[r], l};
            }
        }
    }
}

// Runs warpgroup `group` (0 or 1) of the two that multiply.
__device__ __forceinline__ void multiply_wide(const Job& job, unsigned group, unsigned queries, WideShared& wide) {
    const unsigned lane = threadIdx.x % 32, first = group * 64 + threadIdx.x % GROUP_THREADS / 32 * 16;
    const unsigned ring = queries + QUERY_BYTES;
    RingCursor cursor;
    unsigned query_parity = 0;
    // Signals that the whole warp no longer needs what `barrier` guards.
    auto release = [&](unsigned long long& barrier) {
        __syncwarp();
        if (lane == 0) {
            arrive(shared_address(&barrier));
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
#pragma unroll 1
    for (WideTiles tiles(job); tiles.more(); tiles.next()) {
        const unsigned steps = steps_of(tiles.tile(job)), packed_rows = tiles.tile(job).rows;
        wait_barrier(shared_address(&wide.queries_full), query_parity);
        query_parity ^= 1;
        if (group == 1 && packed_rows <= 64) {
            release(wide.queries_empty);
            for (unsigned step = 0; step <= steps; step++) {
                release(wide.empty[acquire()]);
            }
            continue;
        }
        WideRows rows;
        rows.begin();
        rows.load_queries(queries, group);
        release(wide.queries_empty);
        // A word of a stage's info, broadcast to all lanes: lane 0 reads it, because lane 0 also releases the stage.
        auto broadcast = [&](const unsigned& word) { return __shfl_sync(ALL_LANES, lane == 0 ? word : 0, 0); };
        // Computed on demand, which is rare.
        auto step_mask = [&](unsigned stage) {
            const Tile here = tiles.tile(job);
            unsigned at[2];
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
                at[r] = job.positions[job.by_group.quotient(packed_row(here, first + lane / 4 + r * 8))];
            }
            const StageInfo& info = wide.stage_info[stage];
            const unsigned kv_blocks[2] = {broadcast(info.kv_blocks[0]), broadcast(info.kv_blocks[1])};
            return StepMask(kv_blocks, here.highest + steps_since_plan(job.words, job.positions), at, job.words[WINDOW]);
        };
        auto mask_keys = [&](unsigned stage, unsigned whole) {
            settled(rows.s);
            if (__builtin_expect(whole == 0, 0)) {
                const StepMask seen = step_mask(stage);
#pragma unroll
                for (int n = 0; n < STEP_TOKENS / 8; n++) {
                    seen.mask(rows.s[n], n);
                }
            }
        };
        // Sets m of rows without a score so far.
        auto init_max = [&] {
            float top[2] = {NO_SCORE, NO_SCORE};
#pragma unroll
            for (int n = 0; n < STEP_TOKENS / 8; n++) {
                WideRows::update_top(top, rows.s[n]);
            }
            rows.raise_max(top, {rows.m[0] == LOWEST, rows.m[1] == LOWEST}, job.scale);
        };
        // Turns scores into weights and waits for all products. Weights rarely require another m.
        auto softmax_scores = [&](unsigned stage, unsigned whole) {
            mask_keys(stage, whole);
            if constexpr (DETERMINISTIC) {
                // A row whose first visible token comes after other rows' first one: m is set from the same products as
                // when it is alone.
                if (__any_sync(ALL_LANES, rows.m[0] == LOWEST || rows.m[1] == LOWEST)) {
                    wait_products<0>();
                    settled(rows.o);
                    init_max();
                }
            }
            float2 sums = rows.scores_to_weights(job.scale);
            const WideRows::Rows wanted = {!(sums.x <= MAX_WEIGHT<Operand>), !(sums.y <= MAX_WEIGHT<Operand>)};
            if (__builtin_expect(__any_sync(ALL_LANES, wanted.of[0] || wanted.of[1]), 0)) {
                wait_products<0>();
                settled(rows.o);
                sums = rows.recompute_weights(keys(stage), step_mask(stage), wanted, job.scale);
            } else {
                wait_products<0>();
                settled(rows.o);
            }
            rows.l[0] += sums.x;
            rows.l[1] += sums.y;
        };

        unsigned stage = acquire();
        unsigned whole = broadcast(wide.stage_info[stage].whole);
        begin_products();
        rows.issue_keys(keys(stage));
        wait_products<0>();
        mask_keys(stage, whole);
        init_max();
        const float2 sums = rows.scores_to_weights(job.scale);
        rows.l[0] = sums.x;
        rows.l[1] = sums.y;
        release(wide.empty[stage]);
        rows.pack_weights();
#pragma unroll 1
        for (unsigned step = 1; step < steps; step++) {
            stage = acquire();
            whole = broadcast(wide.stage_info[stage].whole);
            begin_products();
            rows.issue_keys(keys(stage));
            rows.issue_values(values(stage));
            wait_products<1>();
            softmax_scores(stage, whole);
            release(wide.empty[stage]);
            rows.pack_weights();
        }
        stage = acquire();
        begin_products();
        rows.issue_values(values(stage));
        wait_products<0>();
        settled(rows.o);
        release(wide.empty[stage]);
        store_wide(job, tiles.tile(job), tiles.head(job), first, rows);
    }
}
