// The last part of tree_attention_latent: after all blocks have written their partial states, the multiplying warps
// merge them as attention/merge.cuh says. A warp takes one row and head at a time or, where there are few of them for
// so many warps, a quarter of its columns. It copies states to shared memory, which nothing else uses by then: up to
// STAGE_STATES of them are a stage, STAGES stages are on their way. Limited by latency or, with many rows, by the
// bandwidth of the states.
#pragma once

#include "attention/ended.cuh"
#include "attention/latent_ring.cuh"
#include "attention/latent_states.cuh"

constexpr unsigned STAGE_STATES = 8, STAGES = 3, MERGING_WARPS = 2 * GROUP_THREADS / 32;
static_assert(MERGING_WARPS * STAGES * STAGE_STATES * STATE_BYTES <= LATENT_BYTES, "stages fit in the buffers");

// A warp's way through what it merges, stage by stage: PARTS units, 1 or 4, are a row and head. Rows with one state are
// written already.
template <unsigned PARTS>
struct MergeWalk {
    unsigned unit, step, units;  // unit: (row * query heads + head) * PARTS + part
    unsigned list, states, first;  // of the unit's row: its list of states, their number, the first of the stage

    __device__ __forceinline__ MergeWalk(const Job& job, const Divisor& by_heads, unsigned warp)
        : unit(warp * gridDim.x + blockIdx.x),
          step(MERGING_WARPS * gridDim.x),
          units(job.words[REAL_ROWS] * by_heads.by * PARTS) {
        enter(job, by_heads);
    }
    // Goes on to the next unit that is to be merged, from this one on: each lane looks at one of 32.
    __device__ __forceinline__ void enter(const Job& job, const Divisor& by_heads) {
        for (first = 0; more(); unit += 32 * step) {
            const unsigned of_lane = unit + threadIdx.x % 32 * step;
            list = 0;
            states = 1;
            if (of_lane < units) {
                const unsigned* lists = job.words + job.words[MERGE_AT] + by_heads.quotient(of_lane / PARTS);
                list = lists[0];
                states = lists[1] - list;
            }
            const unsigned found = __ballot_sync(ALL_LANES, states != 1);
            if (found != 0) {
                const unsigned lane = __ffs(found) - 1;
                unit += lane * step;
                list = __shfl_sync(ALL_LANES, list, lane);
                states = __shfl_sync(ALL_LANES, states, lane);
                break;
            }
        }
    }
    __device__ __forceinline__ bool more() const {
        return unit < units;
    }
    __device__ __forceinline__ unsigned part() const {
        return unit % PARTS;
    }
    __device__ __forceinline__ unsigned count() const {
        return min(states - first, STAGE_STATES);
    }
    __device__ __forceinline__ bool is_last() const {
        return first + STAGE_STATES >= states;
    }
    __device__ __forceinline__ void next(const Job& job, const Divisor& by_heads) {
        first += STAGE_STATES;
        if (first >= states) {
            unit += step;
            enter(job, by_heads);
        }
    }
};

// The states of a stage, before it is filled.
template <unsigned PARTS>
struct MergeStage {
    unsigned count, part;
    size_t state;  // this lane's

    __device__ __forceinline__ MergeStage() : count(0), part(0), state(0) {}
    __device__ __forceinline__ MergeStage(const Job& job, const Divisor& by_heads, const MergeWalk<PARTS>& walk)
        : MergeStage() {
        const unsigned lane = threadIdx.x % 32;
        if (walk.more()) {
            count = walk.count();
            part = walk.part();
            if (lane < count) {
                const unsigned slot = job.words[job.words[STATES_AT] + walk.list + walk.first + lane];
                state = static_cast<size_t>(slot) * by_heads.by + by_heads.remainder(walk.unit / PARTS);
            }
        }
    }
    // Called by the warp: has the part's results and the tails copied to their places in the records from `to` on.
    __device__ __forceinline__ void fill(const Job& job, unsigned to) const {
        constexpr unsigned OF_PART = RESULT_BYTES / 16 / PARTS, CHUNKS = OF_PART + (STATE_BYTES - RESULT_BYTES) / 16;
        const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
        for (unsigned i = 0; i < count; i++) {
            const char* from = state_record(job, __shfl_sync(ALL_LANES, state, i));
#pragma unroll
            for (unsigned first = 0; first < CHUNKS; first += 32) {
                const unsigned chunk = first + lane;
                const unsigned at = (chunk < OF_PART ? part * OF_PART : (PARTS - 1) * OF_PART) + chunk;
                if (chunk < CHUNKS) {
                    copy_16(to + i * STATE_BYTES + at * 16, from + at * 16, true);
                }
            }
        }
        copies_issued();
    }
};

// What a warp merges. Lane t has elements 8 t .. 8 t + 7 of each 256, or of the part, in the order of a record; of a
// quarter only so many lanes have some. Each element's sum is that of whole rows, bit for bit.
template <unsigned PARTS>
struct MergedRow {
    static constexpr unsigned CHUNKS = VALUE_DIM / 8 / PARTS;  // of 8 elements
    static constexpr unsigned VECTORS = CHUNKS < 32 ? 1 : CHUNKS / 32;
    float m = NO_SCORE, l = 0.0f;  // l: this lane's share
    float o[VECTORS][8] = {};

    // The place of this lane's v-th chunk in a record; lanes without one have that of another lane.
    __device__ __forceinline__ static unsigned place(unsigned part, unsigned v) {
        return part * CHUNKS + v * 32 + threadIdx.x % 32 % CHUNKS;
    }
    // Adds the states of a stage.
    __device__ __forceinline__ void add(const char* stage, unsigned count, unsigned part) {
        const unsigned lane = threadIdx.x % 32;
        auto tail_of = [&](unsigned i) {
            return reinterpret_cast<const StateTail*>(stage + i * STATE_BYTES + RESULT_BYTES);
        };
        Extent extent = {NO_SCORE, 0.0f};
        if (lane < count) {
            extent = {tail_of(lane)->m, tail_of(lane)->l};
        }
        float top = extent.m;
#pragma unroll
        for (unsigned other = 1; other < STAGE_STATES; other *= 2) {
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, other));
        }
        top = fmaxf(m, __shfl_sync(ALL_LANES, top, 0));
        const float before = weight(m, finite_max(top)), factor = weight(extent.m, finite_max(top));
        m = top;
        l = l * before + factor * extent.l;
#pragma unroll
        for (unsigned v = 0; v < VECTORS; v++) {
#pragma unroll
            for (unsigned e = 0; e < 8; e++) {
                o[v][e] *= before;
            }
        }
#pragma unroll 2
        for (unsigned i = 0; i < count; i++) {
            const float weight = __shfl_sync(ALL_LANES, factor, i);
#pragma unroll
            for (unsigned v = 0; v < VECTORS; v++) {
                const unsigned at = place(part, v);
                const uint4 pairs = reinterpret_cast<const uint4*>(stage + i * STATE_BYTES)[at];
                const float by = weight * tail_of(i)->units[at * 8 / QUARTER];
                const unsigned words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
                for (unsigned e = 0; e < 8; e++) {
                    const unsigned short bits = static_cast<unsigned short>(words[e / 2] >> e % 2 * 16);
                    o[v][e] += by * to_f32(f16{bits});
                }
            }
        }
    }

    // Writes the result of the part of a row and head `unit`.
    __device__ __forceinline__ void store(const Job& job, const Divisor& by_heads, unsigned unit, unsigned part) const {
        const unsigned lane = threadIdx.x % 32;
        float sum = l;
#pragma unroll
        for (unsigned other = 1; other < 32; other *= 2) {
            sum += __shfl_xor_sync(ALL_LANES, sum, other);
        }
        const float sink = sink_of(job.sinks, by_heads.remainder(unit)), scale = final_factor_fast(m, sum, sink);
        if (job.lse && lane == 0 && part == 0) {
            job.lse[unit] = log_sum(m, sum, sink);
        }
        uint4* out = reinterpret_cast<uint4*>(job.out + static_cast<size_t>(unit) * VALUE_DIM);
#pragma unroll
        for (unsigned v = 0; v < VECTORS; v++) {
            unsigned words[4];
#pragma unroll
            for (unsigned n = 0; n < 4; n++) {
                words[n] = pack<T>(o[v][2 * n] * scale, o[v][2 * n + 1] * scale);
            }
            transpose_quad(words);
            if (lane < CHUNKS) {
                out[place(part, v)] = {words[0], words[1], words[2], words[3]};
            }
        }
    }
};

// Called by one of the MERGING_WARPS warps of a block: merges its share in its stages, at `memory`.
template <unsigned PARTS>
__device__ __forceinline__ void merge_parts(const Job& job, unsigned warp, char* memory) {
    const Divisor by_heads(job.group * job.kv_heads);
    char* stages = memory + warp * (STAGES * STAGE_STATES * STATE_BYTES);
    auto stage_at = [&](unsigned turn) { return stages + turn % STAGES * (STAGE_STATES * STATE_BYTES); };
    // The other blocks wait for this one: lists are looked up behind it.
    tell_states(job.words);
    MergeWalk<PARTS> walk(job, by_heads, warp), coming = walk;
    MergeStage<PARTS> first[STAGES];
#pragma unroll
    for (unsigned stage = 0; stage < STAGES; stage++) {
        first[stage] = MergeStage<PARTS>(job, by_heads, coming);
        coming.next(job, by_heads);
    }
    wait_for_others(job.words);
#pragma unroll
    for (unsigned stage = 0; stage < STAGES; stage++) {
        first[stage].fill(job, shared_address(stage_at(stage)));
    }
    MergedRow<PARTS> row;
#pragma unroll 1
    for (unsigned turn = 0; walk.more(); turn++) {
        wait_copies<STAGES - 1>();
        __syncwarp();
        row.add(stage_at(turn), walk.count(), walk.part());
        if (walk.is_last()) {
            row.store(job, by_heads, walk.unit / PARTS, walk.part());
            row = MergedRow<PARTS>();
        }
        walk.next(job, by_heads);
        __syncwarp();
        MergeStage<PARTS>(job, by_heads, coming).fill(job, shared_address(stage_at(turn)));
        coming.next(job, by_heads);
    }
    wait_copies<0>();
}

// The same, by whole rows or quarters.
__device__ __forceinline__ void merge_latents(const Job& job, unsigned warp, char* memory) {
    constexpr unsigned QUARTERS = VALUE_DIM / QUARTER;
    if (job.words[REAL_ROWS] * job.group * job.kv_heads * QUARTERS <= MERGING_WARPS * gridDim.x) {
        merge_parts<QUARTERS>(job, warp, memory);
    } else {
        merge_parts<1>(job, warp, memory);
    }
}
