// The multiplying side of tiles of latents. Steps come in pairs, of which warpgroup 0 scores the first and warpgroup 1
// the second, so that the softmax of one overlaps the products of the other: the second step is scored behind the
// first, beside whose softmax it then runs, and warpgroup 1 has products with values of the first step under way during
// its own softmax. A row's steps follow one another: warpgroup 1 raises m from what warpgroup 0 has left, and both
// multiply what they have summed by the factors of both steps, in their order. m is raised before weights are computed,
// from the scores of the row alone, so that its bits are, too. Limited by shared memory, which products with keys and
// queries of 64 rows read; with few rows by bandwidth. All else that goes through shared memory waits behind those
// reads, shuffles too: between scores and weights there is as little of it as can be.
//
// A tile may have tokens of single rows, each for its reader (attention/plan.cuh). They are multiplied with all rows,
// where those of other rows weigh 0: if a row's latents are infinite or not a number, so are the tile's other results,
// all of which are of rows below one root.
#pragma once

#include "attention/fp8.cuh"
#include "attention/latent_ring.cuh"
#include "attention/latent_states.cuh"

// The 64 rows of a tile, as a warpgroup holds them: its half of the results.
struct LatentRows : SoftmaxRows {
    // Issues the products of the queries with a share of the keys.
    template <unsigned PANELS>
    __device__ __forceinline__ void issue_keys(unsigned queries, unsigned keys, bool more) {
#pragma unroll
        for (unsigned k = 0; k < PANELS * 4; k++) {
            const unsigned at = (k / 4 * PANEL_BYTES + k % 4 * 32) / 16;
            multiply_shared<Operand>(s, descriptor(queries) + at, descriptor(keys) + at, more || k > 0);
        }
    }

    // Issues the products of the weights in shared memory of tokens 16 FROM .. 16 TO with values.
    template <unsigned FROM, unsigned TO>
    __device__ __forceinline__ void issue_shared(unsigned weights, unsigned values) {
#pragma unroll
        for (unsigned k = FROM; k < TO; k++) {
            multiply_values_shared<Operand>(o, descriptor(weights) + k * 2,
                                            descriptor(values, PANEL_BYTES) + k * 2 * ATOM_BYTES / 16);
        }
    }

    // Raises m from `before` where the largest score of the row asks for it. Returns what earlier sums are multiplied
    // by. Lanes of a quad share their largest scores only if one of the warp asks for it, as in few steps.
    __device__ __forceinline__ float2 raise(const float (&before)[2], float scale) {
        float top[2] = {NO_SCORE, NO_SCORE}, factor[2];
#pragma unroll
        for (int n = 0; n < static_cast<int>(STEP_TOKENS / 8); n++) {
            update_top(top, s[n]);
        }
        auto rises = [&](int r) { return lazy_max(before[r], top[r] * scale) != before[r]; };
        if (!__any_sync(ALL_LANES, rises(0) || rises(1))) {
            m[0] = before[0];
            m[1] = before[1];
            return {1.0f, 1.0f};
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = fmaxf(top[r], __shfl_xor_sync(ALL_LANES, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(ALL_LANES, top[r], 2));
            m[r] = lazy_max(before[r], top[r] * scale);
            factor[r] = m[r] == before[r] ? 1.0f : weight(before[r], m[r]);
        }
        return {factor[0], factor[1]};
    }

    // Multiplies the results; skipped if no row of the warp asks for it, as in most steps.
    __device__ __forceinline__ void rescale(float2 factor) {
        if (__any_sync(ALL_LANES, factor.x != 1.0f || factor.y != 1.0f)) {
#pragma unroll
            for (int n = 0; n < static_cast<int>(COLUMNS / 8); n++) {
                o[n][0] *= factor.x;
                o[n][1] *= factor.x;
                o[n][2] *= factor.y;
                o[n][3] *= factor.y;
            }
        }
    }

    // Writes the weights to their panel, for all warps of both warpgroups.
    __device__ __forceinline__ void share_weights(unsigned panel) const {
        const unsigned lane = threadIdx.x % 32, row = threadIdx.x % GROUP_THREADS / 32 * WARP_ROWS + lane % 16;
#pragma unroll
        for (unsigned k = 0; k < STEP_TOKENS / 16; k++) {
            store_matrices(panel + row * 128 + ((k * 2 + lane / 16) ^ row % 8) * 16, p[k]);
        }
        fence_proxies();
    }
};

// Address of a chunk of 16 bytes of a row's query in the first panel.
__device__ __forceinline__ unsigned query_at(unsigned queries, const Tile& tile, unsigned row, unsigned chunk) {
    const unsigned place = place_of_row(tile.rows, row);
    return queries + place * 128 + (chunk ^ place % 8) * 16;
}

// Copies the queries of a tile to `to`, by one warpgroup. Of many rows, those past the end are zeroed where a warp
// multiplies others too; what else the memory holds is multiplied for nothing.
__device__ __forceinline__ void copy_queries(const Job& job, const Tile& tile, unsigned head, unsigned to) {
    const unsigned thread = threadIdx.x % GROUP_THREADS, chunk = thread % 8;
    const unsigned rows = tile.rows <= SPREAD_ROWS ? tile.rows : (tile.rows + 15) / 16 * 16;
#pragma unroll 1
    for (unsigned row = thread / 8; row < rows; row += GROUP_THREADS / 8) {
        const T* from = job.query(packed_row(tile, row), head) + chunk * 8;
        const unsigned place = query_at(to, tile, row, chunk);
#pragma unroll
        for (unsigned panel = 0; panel < KEY_PANELS; panel++) {
            copy_16(place + panel * PANEL_BYTES, from + panel * 64, row < tile.rows);
        }
    }
    copies_issued();
}

// Converts the queries that this thread copied, which have arrived, to what they are multiplied as: f16 with keys of 8
// bits.
__device__ __forceinline__ void convert_queries(const Tile& tile, unsigned queries) {
    const unsigned thread = threadIdx.x % GROUP_THREADS, chunk = thread % 8;
#pragma unroll 1
    for (unsigned row = thread / 8; row < tile.rows; row += GROUP_THREADS / 8) {
        const unsigned place = query_at(queries, tile, row, chunk);
#pragma unroll
        for (unsigned panel = 0; panel < KEY_PANELS; panel++) {
            unsigned pairs[4];
            load_16(pairs, place + panel * PANEL_BYTES);
            store_16(place + panel * PANEL_BYTES, as_f16<T>(pairs[0]), as_f16<T>(pairs[1]), as_f16<T>(pairs[2]),
                     as_f16<T>(pairs[3]));
        }
    }
}

// Runs warpgroup `group` (0 or 1) of the two that multiply.
__device__ __forceinline__ void multiply_latents(const Job& job, unsigned group, unsigned queries,
                                                 LatentShared& latent) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x % GROUP_THREADS / 32, first = warp * WARP_ROWS;
    const unsigned buffers = queries + OPERAND_BYTES;
    constexpr unsigned PARTS = STEP_TOKENS / 16;
    // Phases of barriers: how many pairs came before, and how many of them had a second step.
    unsigned pairs_before = 0, seconds_before = 0, turn = 0;
    auto at = [&](unsigned buffer, unsigned share) { return buffers + buffer * OPERAND_BYTES + share_at(share); };
    auto signal = [&](unsigned long long& barrier) {
        __syncwarp();
        if (lane == 0) {
            arrive(shared_address(&barrier));
        }
    };
    // What a buffer holds is waited for by the number of steps that it has held.
    auto wait = [&](unsigned long long& barrier, unsigned phase) { wait_barrier(shared_address(&barrier), phase % 2); };
    auto broadcast = [&](const unsigned& word) { return __shfl_sync(ALL_LANES, lane == 0 ? word : 0, 0); };
    if (WideTiles tiles(job); group == 1 && tiles.more()) {
        copy_queries(job, tiles.tile(job), tiles.head(job), queries);
    }
#pragma unroll 1
    for (WideTiles tiles(job); tiles.more(); tiles.next()) {
        const unsigned steps = steps_of(tiles.tile(job)), head = tiles.head(job);
        LatentRows rows;
        rows.begin();
        // The queries were copied by this warpgroup's threads while the tile before was multiplied.
        if (group == 1) {
            wait_copies<0>();
            if constexpr (CONVERTED<T, KvElement>) {
                convert_queries(tiles.tile(job), queries);
            }
            fence_proxies();
        }
        meet(QUERIES, 2 * GROUP_THREADS);

        // Computed on demand, which is rare.
        auto step_mask = [&] {
            const Tile tile = tiles.tile(job);
            unsigned at[2];
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
                const unsigned row = row_at_place(tile.rows, first + lane / 4 + r * 8);
                at[r] = job.positions[job.by_group.quotient(packed_row(tile, row))];
            }
            const StageInfo& info = latent.keys[group];
            const unsigned kv_blocks[2] = {broadcast(info.kv_blocks[0]), broadcast(info.kv_blocks[1])};
            return StepMask(kv_blocks, tile.highest + steps_since_plan(job.words, job.positions), at,
                            job.words[WINDOW]);
        };
        // Of a step BY_READER.
        auto reader_mask = [&] {
            const unsigned tile_rows = tiles.tile(job).rows;
            unsigned which[2];
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
                which[r] = job.by_group.quotient(row_at_place(tile_rows, first + lane / 4 + r * 8)) + 1;
            }
            const StageInfo& info = latent.keys[group];
            const unsigned kv_blocks[2] = {broadcast(info.kv_blocks[0]), broadcast(info.kv_blocks[1])};
            return StepMask(kv_blocks, which);
        };
        // Scores the keys in the warpgroup's own buffer, which hold their `phase`-th step. `meanwhile` is called once
        // products are under way.
        auto score = [&](unsigned phase, const auto& meanwhile) {
            if (group == 1) {
                wait(latent.full[1][LEFT], phase);
                wait(latent.issued, pairs_before);
            }
            begin_products();
#pragma unroll
            for (unsigned side = LEFT; side <= RIGHT; side++) {
                wait(latent.full[group][side], phase);
                rows.issue_keys<HALF_PANELS>(recomputed(queries) + share_at(side), at(group, side), side > 0);
            }
            wait(latent.full[group][ROTATED], phase);
            rows.issue_keys<1>(recomputed(queries) + share_at(ROTATED), at(group, ROTATED), true);
            products_issued();
            if (group == 0) {
                signal(latent.issued);
            }
            const unsigned whole = broadcast(latent.keys[group].whole);
            meanwhile();
            wait_products<0>();
            signal(latent.empty[group][group == 0 ? RIGHT : LEFT]);
            rows.products_to_scores(job, whole, step_mask);
            if (!DETERMINISTIC && whole == BY_READER) {
                rows.mask(reader_mask());
            }
        };
        // Weighs the scores against m, and shares the weights once the whole warpgroup has scored.
        auto weigh = [&] {
            const float2 sums = rows.scores_to_weights(job.scale);
            rows.l[0] += sums.x;
            rows.l[1] += sums.y;
            rows.pack_weights();
            meet(SCORED + group, GROUP_THREADS);
            rows.share_weights(at(group, ROTATED));
            signal(latent.weighed[group]);
        };
        // A number of this lane's two rows.
        auto read = [&](const float (&of_rows)[TILE_ROWS], float (&to)[2]) {
            to[0] = of_rows[first + lane / 4];
            to[1] = of_rows[first + lane / 4 + 8];
        };
        auto store_for_other = [&](float (&of_rows)[TILE_ROWS], float upper, float lower) {
            if (lane % 4 == 0) {
                of_rows[first + lane / 4] = upper;
                of_rows[first + lane / 4 + 8] = lower;
            }
        };
        // Called by warpgroup 1 once both have scored the tile's last step.
        auto copy_next_queries = [&] {
            WideTiles next = tiles;
            next.next();
            if (next.more()) {
                copy_queries(job, next.tile(job), next.head(job), queries);
            }
        };
        auto scale_sums = [&](float2 factor) {
            rows.l[0] *= factor.x;
            rows.l[1] *= factor.y;
        };
#pragma unroll 1
        for (unsigned step = 0; step < steps; step += 2) {
            const bool has_second = step + 1 < steps;
            if (group == 0) {
                score(pairs_before, [] {});
                const float before[2] = {rows.m[0], rows.m[1]};
                const float2 factor = rows.raise(before, job.scale);
                store_for_other(latent.top[0], rows.m[0], rows.m[1]);
                store_for_other(latent.factor[0], factor.x, factor.y);
                signal(latent.raised);
                rows.rescale(factor);
                scale_sums(factor);
                weigh();
                begin_products();
                rows.issue_values(at(0, LEFT));
                wait_products<0>();
                settled(rows.o);
                signal(latent.empty[0][LEFT]);
                if (has_second) {
                    float factors[2];
                    wait(latent.full[1][LEFT], seconds_before);
                    wait(latent.weighed[1], seconds_before);
                    read(latent.top[1], rows.m);
                    read(latent.factor[1], factors);
                    rows.rescale({factors[0], factors[1]});
                    scale_sums({factors[0], factors[1]});
                    begin_products();
                    rows.issue_shared<0, PARTS>(at(1, ROTATED), at(1, LEFT));
                    products_issued();
                    wait_products<0>();
                    settled(rows.o);
                    signal(latent.empty[1][LEFT]);
                    signal(latent.empty[1][ROTATED]);
                }
            } else {
                float before[2], factors[2];
                float2 factor = {1.0f, 1.0f};
                auto follow = [&] {
                    wait(latent.raised, pairs_before);
                    read(latent.top[0], before);
                    read(latent.factor[0], factors);
                    wait(latent.full[0][RIGHT], pairs_before);
                };
                if (has_second) {
                    score(seconds_before, follow);
                } else {
                    follow();
                }
                rows.rescale({factors[0], factors[1]});
                scale_sums({factors[0], factors[1]});
                wait(latent.weighed[0], pairs_before);
                begin_products();
                // 16 tokens at a time, so that the warp computes its softmax in between: one that issues more than the
                // tensor cores take waits for them.
                rows.issue_shared<0, 1>(at(0, ROTATED), at(0, RIGHT));
                if (has_second) {
                    factor = rows.raise(before, job.scale);
                    store_for_other(latent.top[1], rows.m[0], rows.m[1]);
                    store_for_other(latent.factor[1], factor.x, factor.y);
                    scale_sums(factor);
                    rows.issue_shared<1, 2>(at(0, ROTATED), at(0, RIGHT));
                    weigh();
                } else {
                    rows.issue_shared<1, 2>(at(0, ROTATED), at(0, RIGHT));
                    rows.m[0] = before[0];
                    rows.m[1] = before[1];
                }
                rows.issue_shared<2, PARTS>(at(0, ROTATED), at(0, RIGHT));
                products_issued();
                if (step + 2 >= steps) {
                    copy_next_queries();
                }
                wait_products<0>();
                settled(rows.o);
                signal(latent.empty[0][RIGHT]);
                signal(latent.empty[0][ROTATED]);
                if (has_second) {
                    rows.rescale(factor);
                    begin_products();
                    rows.issue_values(at(1, RIGHT));
                    wait_products<0>();
                    settled(rows.o);
                    signal(latent.empty[1][RIGHT]);
                }
            }
            pairs_before++;
            seconds_before += has_second;
        }
        // Each has the sums of its own steps.
        float (&sums)[2][TILE_ROWS] = latent.sums[turn];
        turn ^= 1;
        const float own[2] = {quad_sum(rows.l[0]), quad_sum(rows.l[1])};
        store_for_other(sums[group], own[0], own[1]);
        meet(SUMMED + warp, 64);
        float other[2];
        read(sums[1 - group], other);
        const float l[2] = {own[0] + other[0], own[1] + other[1]};
        store_latents(job, tiles.tile(job), head, first, rows.o, rows.m, l, group * COLUMNS);
    }
}
