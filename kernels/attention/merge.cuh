// The last part of the kernels for Hopper: after all blocks have written their partial states, all warps merge them:
//   m = max m_i,  out = sum_i 2^(m_i - m) o_i / sum_i 2^(m_i - m) l_i,  over a row's list of states, in its order,
// with the sink, if there are any, as one more term of the divisor.
// Limited by latency or, with many rows, by the bandwidth of the states.
#pragma once

#include "attention/ended.cuh"
#include "attention/tile.cuh"
#include "attention/wide_tiles.cuh"

// Results of more than 128 elements are divided into parts of 128, which warps merge as if they were results.
constexpr unsigned RESULT_PARTS = VALUE_DIM <= 128 ? 1 : VALUE_DIM / 128, RESULT_PART = VALUE_DIM / RESULT_PARTS;
static_assert(RESULT_PARTS * RESULT_PART == VALUE_DIM && RESULT_PART % 16 == 0, "whole parts");

// Neighbouring elements per lane: a vector of a result, or of a part of one. Lanes behind the last do nothing new.
constexpr unsigned LANE_FLOATS = RESULT_PART == 64 ? 2 : 4;
static_assert(RESULT_PART % LANE_FLOATS == 0 && RESULT_PART <= 32 * LANE_FLOATS, "one vector a lane");
constexpr unsigned LAST_LANE_FLOATS = RESULT_PART - LANE_FLOATS;  // where the last vector begins

struct LaneFloats {
    float x[LANE_FLOATS];
};

// Bypasses L1, which is not coherent with other blocks' writes. Volatile, so that the compiler does not move each load
// next to its use and wait for each.
__device__ __forceinline__ LaneFloats load_state(const float* from) {
    LaneFloats to;
    if constexpr (LANE_FLOATS == 4) {
        asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(to.x[0]), "=f"(to.x[1]), "=f"(to.x[LANE_FLOATS - 2]), "=f"(to.x[LANE_FLOATS - 1])
                     : "l"(from)
                     : "memory");
    } else {
        asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(to.x[0]), "=f"(to.x[1]) : "l"(from) : "memory");
    }
    return to;
}

// Stores a head's result. Lanes hold it in the order of a state: two neighbours of each of two groups of 8, or one.
__device__ __forceinline__ void store_merged(T* out, const LaneFloats& o, float scale) {
    const unsigned lane = threadIdx.x % 32;
    if (lane * LANE_FLOATS >= RESULT_PART) {
        return;
    }
    if constexpr (LANE_FLOATS == 4) {
        unsigned* to = reinterpret_cast<unsigned*>(out + lane / 4 * 16 + lane % 4 * 2);
        to[0] = pack<T>(o.x[0] * scale, o.x[LANE_FLOATS - 2] * scale);
        to[4] = pack<T>(o.x[1] * scale, o.x[LANE_FLOATS - 1] * scale);
    } else {
        // Of two lanes, the even one stores the pair of the first 8, the odd one that of the second.
        const bool odd = lane % 2;
        const float other = __shfl_xor_sync(ALL_LANES, odd ? o.x[0] : o.x[1], 1);
        unsigned* to = reinterpret_cast<unsigned*>(out + lane / 8 * 16 + lane % 8 / 2 * 2 + odd * 8);
        *to = odd ? pack<T>(other * scale, o.x[1] * scale) : pack<T>(o.x[0] * scale, other * scale);
    }
}

__device__ __forceinline__ Extent load_extent(const Extent* from) {
    Extent to;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(to.m), "=f"(to.l) : "l"(from) : "memory");
    return to;
}

// A part of HEADS query heads of one row, from `head` on: the row's list of states, and this lane's slot among the
// first ones. Lane t handles head t % HEADS and state t / HEADS of each batch of 32 / HEADS states.
template <unsigned HEADS>
struct MergeUnit {
    static constexpr unsigned STATES = 32 / HEADS;
    unsigned row, head, part, first, states, slot;

    __device__ __forceinline__ MergeUnit(const Job& job, unsigned row, unsigned head, unsigned part)
        : row(row), head(head), part(part) {
        const unsigned* list = job.words + job.words[MERGE_AT] + row;
        first = list[0];
        states = list[1] - first;
        slot = states > 1 ? slot_of(job, 0) : 0;
    }
    __device__ __forceinline__ unsigned slot_of(const Job& job, unsigned from) const {
        return job.words[job.words[STATES_AT] + first + min(from + threadIdx.x % 32 / HEADS, states - 1)];
    }
};

// Called by one warp: merges the states of one unit, AHEAD at a time. The first batch of o is loaded before its weights
// are known; `while_loading` is called in between. Without a state the result is zero.
template <unsigned HEADS, unsigned AHEAD, class Meanwhile>
__device__ __forceinline__ void merge_heads(const Job& job, const MergeUnit<HEADS>& unit,
                                            const Meanwhile& while_loading) {
    constexpr unsigned STATES = MergeUnit<HEADS>::STATES;
    static_assert(STATES % AHEAD == 0, "no batch reaches beyond the lanes");
    const unsigned lane = threadIdx.x % 32, q_heads = job.group * job.kv_heads,
                   last_head = min(unit.head + HEADS, q_heads) - 1;
    float m = NO_SCORE, l = 0.0f;  // of this lane's head; l: this lane's share
    LaneFloats o[HEADS] = {};
    if (unit.states == 0) {
        while_loading();
    }
#pragma unroll 1
    for (unsigned first = 0; first < unit.states; first += STATES) {
        const unsigned count = min(STATES, unit.states - first);
        const unsigned slot = first == 0 ? unit.slot : unit.slot_of(job, first);
        Extent extent = load_extent(job.partials.extents + slot * q_heads + min(unit.head + lane % HEADS, last_head));
        // Past the last state, weights are 0 and the last state is read again; likewise past the last head.
        // Deterministic plans have several states a row, the more the longer it is: there the loops end.
        LaneFloats part[AHEAD][HEADS];
        auto load = [&](unsigned i) {
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++) {
                if (DETERMINISTIC && i + a >= count) {
                    break;
                }
                const size_t state = __shfl_sync(ALL_LANES, slot, min(i + a, count - 1) * HEADS) * q_heads;
#pragma unroll
                for (unsigned h = 0; h < HEADS; h++) {
                    const float* of_head = job.partials.o + (state + min(unit.head + h, last_head)) * VALUE_DIM;
                    part[a][h] =
                        load_state(of_head + unit.part * RESULT_PART + min(lane * LANE_FLOATS, LAST_LANE_FLOATS));
                }
            }
        };
        load(0);
        if (first == 0) {
            while_loading();
        }
        if (lane / HEADS >= count) {
            extent = {NO_SCORE, 0.0f};
        }
        float top = extent.m;
#pragma unroll
        for (unsigned other = HEADS; other < 32; other *= 2) {
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, other));
        }
        top = fmaxf(top, m);
        const float before = weight(m, finite_max(top)), factor = weight(extent.m, finite_max(top));
        m = top;
        l = l * before + factor * extent.l;
#pragma unroll
        for (unsigned h = 0; h < HEADS; h++) {
            const float scale = __shfl_sync(ALL_LANES, before, h);
#pragma unroll
            for (unsigned e = 0; e < LANE_FLOATS; e++) {
                o[h].x[e] *= scale;
            }
        }
#pragma unroll 1
        for (unsigned i = 0;;) {
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++) {
                if (DETERMINISTIC && i + a >= count) {
                    break;
                }
#pragma unroll
                for (unsigned h = 0; h < HEADS; h++) {
                    const float weight = __shfl_sync(ALL_LANES, factor, (i + a) * HEADS + h);
#pragma unroll
                    for (unsigned e = 0; e < LANE_FLOATS; e++) {
                        o[h].x[e] += weight * part[a][h].x[e];
                    }
                }
            }
            i += AHEAD;
            if (i >= count) {
                break;
            }
            load(i);
        }
    }
#pragma unroll
    for (unsigned other = HEADS; other < 32; other *= 2) {
        l += __shfl_xor_sync(ALL_LANES, l, other);
    }
    const float sink = sink_of(job.sinks, min(unit.head + lane % HEADS, last_head));
    const float factor = final_factor_fast(m, l, sink);
    if (job.lse && unit.part == 0 && lane < HEADS && unit.head + lane <= last_head) {
        job.lse[static_cast<size_t>(unit.row) * q_heads + unit.head + lane] = log_sum(m, l, sink);
    }
#pragma unroll
    for (unsigned h = 0; h < HEADS; h++) {
        const float scale = __shfl_sync(ALL_LANES, factor, h);
        if (unit.head + h <= last_head) {
            T* result = job.out + (static_cast<size_t>(unit.row) * q_heads + unit.head + h) * VALUE_DIM;
            store_merged(result + unit.part * RESULT_PART, o[h], scale);
        }
    }
}

// A warp's share of all rows and query heads, HEADS at a time: every `warps`-th unit, from `warp` on. Loads the
// description of the next unit one ahead; the first before the states are complete.
template <unsigned HEADS, unsigned AHEAD>
struct MergeShare {
    unsigned i, warps;
    Divisor of_row;  // units per row
    unsigned count;
    MergeUnit<HEADS> unit;

    __device__ __forceinline__ MergeShare(const Job& job, unsigned warp, unsigned warps)
        : i(warp),
          warps(warps),
          of_row((job.group * job.kv_heads + HEADS - 1) / HEADS * RESULT_PARTS),
          count(job.words[REAL_ROWS] * of_row.by),
          unit(next(job)) {}

    // The unit `i`; an arbitrary one past the end.
    __device__ __forceinline__ MergeUnit<HEADS> next(const Job& job) const {
        const unsigned unit = of_row.remainder(i);
        const unsigned head = unit / RESULT_PARTS * HEADS, part = unit % RESULT_PARTS;
        return MergeUnit<HEADS>(job, i < count ? of_row.quotient(i) : 0, head, part);
    }

    __device__ __forceinline__ void merge(const Job& job) {
#pragma unroll 1
        while (i < count) {
            const MergeUnit<HEADS> now = unit;
            i += warps;
            auto load_next = [&] {
                if (i < count) {
                    unit = next(job);
                }
            };
            if (now.states != 1) {
                merge_heads<HEADS, AHEAD>(job, now, load_next);
            } else {
                load_next();
            }
        }
    }
};

// Called by one of so many warps, where there are no partial states: zeroes the results of its share of rows without
// any state. All others are written.
__device__ __forceinline__ void zero_unseeing(const Job& job, unsigned first, unsigned warps) {
    const unsigned lane = threadIdx.x % 32, rows = job.words[REAL_ROWS], q_heads = job.group * job.kv_heads;
    const unsigned* list = job.words + job.words[MERGE_AT];
    for (unsigned some = first * 32; some < rows; some += warps * 32) {
        const unsigned row = some + lane;
        unsigned unseeing = __ballot_sync(ALL_LANES, row < rows && list[row] == list[min(row + 1, rows)]);
        for (; unseeing != 0; unseeing &= unseeing - 1) {
            const size_t place = static_cast<size_t>(some + __ffs(unseeing) - 1) * q_heads;
            for (unsigned i = lane; i < q_heads * VALUE_DIM / 2; i += 32) {
                reinterpret_cast<unsigned*>(job.out + place * VALUE_DIM)[i] = 0;
            }
            for (unsigned head = lane; job.lse && head < q_heads; head += 32) {
                job.lse[place + head] = NO_SCORE;
            }
        }
    }
}

// Called by one warp: merges its share, HEADS heads and AHEAD states at a time.
template <unsigned HEADS, unsigned AHEAD>
__device__ __forceinline__ void merge_share(const Job& job, unsigned first, unsigned warps, unsigned* words) {
    MergeShare<HEADS, AHEAD> share(job, first, warps);
    wait_for_states(words);
    share.merge(job);
}

// Called by one of the WARPS warps of a block that merge: merges its share. Takes several heads at a time if there are
// enough for all warps, so that no warp needs an extra round for a few. AHEAD: states at a time in deterministic
// kernels. TIMES: how many times as many vectors as usual a lane has in flight, where it has registers for them.
template <unsigned WARPS, unsigned AHEAD, unsigned TIMES = 1>
__device__ __forceinline__ void merge_states(const Job& job, unsigned warp, unsigned* words) {
    const unsigned first = warp * gridDim.x + blockIdx.x, warps = WARPS * gridDim.x;
    const unsigned heads = words[REAL_ROWS] * job.group * job.kv_heads * RESULT_PARTS;
    // With many rows of one state each, walking through them would take long.
    if (words[PARTIAL_SLOTS] == 0) {
        wait_for_states(words);
        zero_unseeing(job, first, warps);
        return;
    }
    // The number of heads per warp decides how many states share a maximum and thereby the rounding.
    if (DETERMINISTIC) {
        merge_share<4, AHEAD * TIMES>(job, first, warps, words);
    } else if (heads > 2 * warps) {
        merge_share<4, 2 * TIMES>(job, first, warps, words);
    } else if (heads > warps) {
        merge_share<2, 4 * TIMES>(job, first, warps, words);
    } else {
        merge_share<1, 8 * TIMES>(job, first, warps, words);
    }
}
