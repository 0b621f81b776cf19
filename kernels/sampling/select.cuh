// The k best tokens of a row, or the fewest best tokens that have a given weight, without a sort: histograms of the
// scores' keys narrow the range that holds the last token kept, 11 bits a pass, over those chunks alone whose maximum
// reaches it. Counts and weights are whole numbers (a weight of 1 is 2^44), so that the order of adding changes
// nothing. Equal scores rank by rising token id.
#pragma once

#include "sampling/row.cuh"

constexpr u32 BIN_BITS = 11;
constexpr u32 BINS = 1 << BIN_BITS;
// Threads that look for a bin; every block has as many.
constexpr u32 SEARCHERS = 256;
constexpr u32 BINS_EACH = BINS / SEARCHERS;
constexpr float UNIT = 17592186044416.0f;

// In shared memory.
struct Histogram {
    u32 count[BINS];
    // Weights of 64 bits in two halves: shared memory adds 32 bits at once, and the lower half reports its carry.
    u32 low[BINS];
    u32 high[BINS];
    u64 warp_counts[SEARCHERS / WARP];
    u64 warp_weights[SEARCHERS / WARP];
    // The bin in which the target is reached, apart from the bins: these are cleared while other threads read it.
    bool reached;
    u32 bin;
    u32 bin_count;
    u64 bin_weight;
    u64 count_above;
    u64 weight_above;
    // A value that one thread found for all.
    u32 shared_value;
};

// The keys kept: all above `key`, and `equals` of those equal to it.
struct Selection {
    u32 key;
    u32 equals;
    u64 weight;  // of all tokens kept
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

// Of all threads: the highest bin down to which counts (or weights) reach `target`, into the histogram. Ends without a
// barrier.
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

// Of all threads: the best tokens, of keys from `lowest` to `highest`, up to the one at which `target` of count or
// weight (relative to the score of `highest`) is reached. Unreached: all of them. `target` is at least 1.
__device__ __noinline__ Selection select(const Row row, Histogram& h, u32 lowest, u32 highest, float rate,
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
            Chunk chunk(row.logits, row.vocab, c);
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
            // Rounding can hide the end of a weight; it is all in here then.
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

// Of all threads: the key of the `count`-th largest maximum of a chunk: at least `count` tokens reach it. Needs count
// <= chunks.
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

// Of all threads: the id of the `equals`-th token of key `key`; the largest id where there are fewer.
__device__ __noinline__ u32 last_of_equals(const Row row, Histogram& h, u32 key, u32 equals) {
    if (equals == ALL) {
        return ALL;
    }
    for (u32 c = threadIdx.x / WARP; c < row.chunks; c += blockDim.x / WARP) {
        u32 count = 0;
        if (key_of(row.maxima[c]) >= key) {
            Chunk chunk(row.logits, row.vocab, c);
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
            Chunk chunk(row.logits, row.vocab, c);
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
