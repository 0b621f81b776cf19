// Selects the k best tokens of a row, or the fewest best tokens with a given total weight, without sorting. Histograms
// over the scores' keys narrow the range of the last kept token by 11 bits per pass, reading only chunks whose maximum
// reaches that range. Counts and weights are integers (a weight of 1 is 2^44), so the order of additions does not
// matter. Equal scores rank by rising token id.
#pragma once

#include "sampling/row.cuh"

constexpr u32 BIN_BITS = 11;
constexpr u32 BINS = 1 << BIN_BITS;
// Threads that search for a bin; every block has at least as many.
constexpr u32 SEARCHERS = 256;
constexpr u32 BINS_EACH = BINS / SEARCHERS;
constexpr float UNIT = 17592186044416.0f;

// In shared memory.
struct Histogram {
    u32 count[BINS];
    // 64-bit weights in two halves: shared-memory atomics are fastest on 32 bits, and the carry of the lower half is
    // known.
    u32 low[BINS];
    u32 high[BINS];
    u64 warp_counts[SEARCHERS / WARP];
    u64 warp_weights[SEARCHERS / WARP];
    // The bin in which the target is reached. Stored apart from the bins, which are cleared while other threads read
    // it.
    bool reached;
    u32 bin;
    u32 bin_count;
    u64 bin_weight;
    u64 count_above;
    u64 weight_above;
    // A value found by one thread, broadcast to all.
    u32 shared_value;
};

// The selected keys: all above `key`, and `equals` of those equal to it.
struct Selection {
    u32 key;
    u32 equals;
    u64 weight;  // of all selected tokens
    bool reached;
};

__device__ __forceinline__ u64 weight_in(const Histogram& h, u32 bin) {
    return (static_cast<u64>(h.high[bin]) << 32) + h.low[bin];
}

__device__ __forceinline__ void add(Histogram& h, u32 bin, u64 weight) {
    atomicAdd(&h.count[bin], 1u);
    u32 low = static_cast<u32>(weight);
    u32 carry = low != 0 && atomicAdd(&h.low[bin], low) > 0xffffffff - low;
    u32 high = static_cast<u32>(weight >> 32) + carry;
    if (high != 0) {
        atomicAdd(&h.high[bin], high);
    }
}

// Called by all threads: stores in the histogram the highest bin at which the running count (or weight), from the top,
// reaches `target`. No barrier at the end.
__device__ __forceinline__ void find_bin(Histogram& h, bool by_weight, u64 target, u64 count_above, u64 weight_above) {
    u32 top = BINS - 1 - threadIdx.x * BINS_EACH;
    u64 count = 0;
    u64 weight = 0;
    u64 count_to_here = 0;
    u64 weight_to_here = 0;
    u32 warp = threadIdx.x / WARP;
    if (threadIdx.x < SEARCHERS) {
        for (u32 i = 0; i < BINS_EACH; ++i) {
            count += h.count[top - i];
            weight += weight_in(h, top - i);
        }
        count_to_here = running_sum(count);
        weight_to_here = running_sum(weight);
        if (lane() == WARP - 1) {
            h.warp_counts[warp] = count_to_here;
            h.warp_weights[warp] = weight_to_here;
        }
    }
    __syncthreads();
    if (threadIdx.x >= SEARCHERS) {
        return;
    }
    count_above += count_to_here - count;
    weight_above += weight_to_here - weight;
    for (u32 w = 0; w < warp; ++w) {
        count_above += h.warp_counts[w];
        weight_above += h.warp_weights[w];
    }
    u64 above = by_weight ? weight_above : count_above;
    if (above >= target || above + (by_weight ? weight : count) < target) {
        return;
    }
    u32 bin = top;
    while ((by_weight ? weight_above + weight_in(h, bin) : count_above + h.count[bin]) < target) {
        count_above += h.count[bin];
        weight_above += weight_in(h, bin);
        --bin;
    }
    h.reached = true;
    h.bin = bin;
    h.bin_count = h.count[bin];
    h.bin_weight = weight_in(h, bin);
    h.count_above = count_above;
    h.weight_above = weight_above;
}

// Called by all threads: the best tokens with keys from `lowest` to `highest`, down to the one at which the count or
// weight (relative to the score of `highest`) reaches `target`, which is at least 1. If it is not reached, all of them.
__device__ __noinline__ Selection select(const Row& row, Histogram& h, u32 lowest, u32 highest, float rate,
                                         bool by_weight, u64 target) {
    float best = score_of(highest);
    u64 count_above = 0;
    u64 weight_above = 0;
    u32 low = lowest;
    u32 high = highest;
    while (true) {
        u32 bits = WARP - __clz(high - low);
        u32 shift = bits > BIN_BITS ? bits - BIN_BITS : 0;
        for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) {
            h.count[i] = 0;
            h.low[i] = 0;
            h.high[i] = 0;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            h.reached = false;
        }
        for (u32 c = threadIdx.x / WARP; c < row.chunks; c += blockDim.x / WARP) {
            if (key_of(row.maxima[c]) < low) {
                continue;
            }
            Chunk chunk = row.chunk(c);
#pragma unroll
            for (u32 j = 0; j < PER_LANE; ++j) {
                u32 key = key_of(chunk.score[j]);
                if (key >= low && key <= high) {
                    add(h, (key - low) >> shift, static_cast<u64>(weight_of(chunk.score[j], best, rate) * UNIT));
                }
            }
        }
        __syncthreads();
        find_bin(h, by_weight, target, count_above, weight_above);
        __syncthreads();
        if (!h.reached) {
            // Rounding can keep the total weight below the target; then all tokens are selected.
            return {lowest, ALL, 0, false};
        }
        u32 count = h.bin_count;
        u64 weight = h.bin_weight;
        count_above = h.count_above;
        weight_above = h.weight_above;
        low += h.bin << shift;
        high = min(high, low + (1u << shift) - 1);
        if (count == 1 || (!by_weight && count_above + count == target)) {
            return {low, ALL, weight_above + weight, true};
        }
        if (shift == 0) {
            u64 one = weight / count;
            // Equal scores weigh the same.
            u64 equals = by_weight ? (target - weight_above + one - 1) / one : target - count_above;
            return {low, static_cast<u32>(equals), weight_above + equals * one, true};
        }
    }
}

// Called by all threads: the key of the `count`-th largest chunk maximum, which at least `count` tokens reach. Requires
// count <= chunks.
__device__ __forceinline__ u32 bound_by_maxima(const Row& row, Histogram& h, u32 count) {
    for (u32 c = threadIdx.x; c < row.chunks; c += blockDim.x) {
        u32 key = key_of(row.maxima[c]);
        u32 rank = 0;
        for (u32 other = 0; other < row.chunks; ++other) {
            u32 than = key_of(row.maxima[other]);
            rank += than > key || (than == key && other < c);
        }
        if (rank == count - 1) {
            h.shared_value = key;
        }
    }
    __syncthreads();
    u32 bound = h.shared_value;
    __syncthreads();
    return bound;
}

// Called by all threads: the id of the `equals`-th token with key `key`; ALL if there are fewer.
__device__ __noinline__ u32 last_of_equals(const Row& row, Histogram& h, u32 key, u32 equals) {
    if (equals == ALL) {
        return ALL;
    }
    for (u32 c = threadIdx.x / WARP; c < row.chunks; c += blockDim.x / WARP) {
        u32 count = 0;
        if (key_of(row.maxima[c]) >= key) {
            Chunk chunk = row.chunk(c);
#pragma unroll
            for (u32 j = 0; j < PER_LANE; ++j) {
                count += __popc(__ballot_sync(ALL_LANES, key_of(chunk.score[j]) == key));
            }
        }
        if (lane() == 0) {
            h.count[c] = count;
        }
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        u32 c = 0;
        while (c < row.chunks && h.count[c] < equals) {
            equals -= h.count[c];
            ++c;
        }
        u32 last = ALL;
        if (c < row.chunks) {
            Chunk chunk = row.chunk(c);
#pragma unroll
            for (u32 j = 0; j < PER_LANE; ++j) {
                u32 hits = __ballot_sync(ALL_LANES, key_of(chunk.score[j]) == key);
                u32 rank = __popc(hits & (0xffffffff >> (WARP - 1 - lane())));
                u32 at = __ballot_sync(ALL_LANES, (hits >> lane() & 1) && rank == equals);
                if (at != 0) {
                    last = c * CHUNK + j * WARP + __ffs(at) - 1;
                }
                equals -= min(equals, static_cast<u32>(__popc(hits)));
            }
        }
        if (lane() == 0) {
            h.shared_value = last;
        }
    }
    __syncthreads();
    u32 last = h.shared_value;
    __syncthreads();
    return last;
}
