// One row of logits with its allowed tokens and the maxima of its chunks, running sums over chunks, and the search for
// the point where they exceed a target. The order of additions depends on the vocabulary alone, not on the block size
// or on timing.
#pragma once

#include "sampling/sample.cuh"

// The functions of select.cuh take it from shared memory: registers are few where a block has 1,024 threads.
struct Row {
    const float* logits;  // [vocab]
    const float* maxima;  // [chunks]
    u32 vocab;
    u32 chunks;
    const u32* allowed;  // the words of its allowed tokens, or null: all

    __device__ __forceinline__ Chunk chunk(u32 c) const {
        Chunk chunk(logits, vocab, c);
        chunk.keep(allowed, c);
        return chunk;
    }

    __device__ __forceinline__ float score(u32 token) const {
        bool is_allowed = allowed == nullptr || (allowed[token / WARP] >> token % WARP & 1);
        return is_allowed ? safe(logits[token]) : minus_infinity();
    }
};

// The largest of all maxima, returned in every thread of the calling warp.
__device__ __forceinline__ float largest_maximum(const Row& row) {
    float largest = minus_infinity();
    for (u32 c = lane(); c < row.chunks; c += WARP) {
        largest = fmaxf(largest, row.maxima[c]);
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
    }
    return largest;
}

// Inclusive prefix sum over the lanes.
template <class T>
__device__ __forceinline__ T running_sum(T x) {
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        T below = __shfl_up_sync(ALL_LANES, x, step);
        x += lane() >= step ? below : T(0);
    }
    return x;
}

// Called by one warp: the sum over all chunks c of sum_at(c), first by lane, then over lanes.
template <class SumAt>
__device__ __forceinline__ double sum_of_chunks(u32 chunks, SumAt sum_at) {
    double total = 0.0;
#pragma unroll 4
    for (u32 c = lane(); c < chunks; c += WARP) {
        total += sum_at(c);
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        total += __shfl_xor_sync(ALL_LANES, total, step);
    }
    return total;
}

// A chunk and the sum over all chunks before it.
struct Place {
    u32 chunk;
    double before;
};

// Called by one warp: the first chunk with a sum above 0 at which the running sum exceeds `target`; if there is none,
// the last chunk with a sum above 0.
template <class SumAt>
__device__ __forceinline__ Place find_place(u32 chunks, SumAt sum_at, double target) {
    Place place{0, 0.0};
    double before = 0.0;
    for (u32 first = 0; first < chunks; first += WARP) {
        u32 c = first + lane();
        double sum = c < chunks ? sum_at(c) : 0.0;
        double running = before + running_sum(sum);
        double left = __shfl_up_sync(ALL_LANES, running, 1);
        left = lane() == 0 ? before : left;
        u32 filled = __ballot_sync(ALL_LANES, sum > 0.0);
        u32 over = __ballot_sync(ALL_LANES, sum > 0.0 && running > target);
        if (filled != 0) {
            u32 at = over != 0 ? __ffs(over) - 1 : WARP - 1 - __clz(filled);
            place = {first + at, __shfl_sync(ALL_LANES, left, at)};
        }
        if (over != 0) {
            break;
        }
        before = __shfl_sync(ALL_LANES, running, WARP - 1);
    }
    return place;
}

__device__ __forceinline__ bool keeps(Cut cut, float score, u32 token) {
    u32 key = key_of(score);
    return key > cut.key || (key == cut.key && token <= cut.last);
}

// e^((max - best) / temperature): converts weights relative to a chunk's maximum to weights relative to the best score.
__device__ __forceinline__ double scale_of(float max, float best, float temperature) {
    return exp((static_cast<double>(max) - best) / temperature);
}

// Log-softmax over the model's own logits.
struct LogSoftmax {
    double best;
    double log_sum;

    // Called by one warp. `row` has the model's maxima.
    __device__ __forceinline__ LogSoftmax(const Row& row, const float* sums) {
        float largest = largest_maximum(row);
        auto sum_at = [&](u32 c) {
            return row.maxima[c] == minus_infinity() ? 0.0 : sums[c] * scale_of(row.maxima[c], largest, 1.0f);
        };
        best = largest;
        log_sum = log(sum_of_chunks(row.chunks, sum_at));
    }

    __device__ __forceinline__ float of(float score) const {
        bool none = best == static_cast<double>(minus_infinity());
        return none ? score : static_cast<float>(score - best - log_sum);
    }
};

// Whether top-k, top-p or min-p restricts the request.
__device__ __forceinline__ bool has_filter(const Request& request, u32 vocab) {
    return request.top_k < vocab || request.top_p < 1.0f || request.min_p > 0.0f;
}

// The lowest score that can be sampled: e^87.3 times less likely than the best, the ratio of 1 to the smallest normal
// float.
__device__ __forceinline__ float lowest_sampled(float best, float temperature) {
    constexpr double LOWEST = -87.33654022216797;
    return fminf(__double2float_ru(best + temperature * LOWEST), best);
}

// What a request keeps: the cut of its filters, or all that can be sampled. `best` is above -inf.
__device__ __forceinline__ Cut sampling_cut(const Request& request, u32 vocab, const Cut& filtered, float best) {
    Cut all{key_of(lowest_sampled(best, request.temperature)), ALL};
    return has_filter(request, vocab) ? filtered : all;
}

// The log-probability of a score that is kept, under the distribution that the token is drawn from. `log_total`: of all
// kept weights.
__device__ __forceinline__ float log_drawn(float score, float best, float temperature, double log_total) {
    return static_cast<float>((static_cast<double>(score) - best) / temperature - log_total);
}
