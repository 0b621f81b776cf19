// The third kernel of `sample`: applies top-k, top-p and min-p to the requests that use any of them. Writes the cut
// between kept and excluded tokens, and sample_sum [requests, chunks] over the kept tokens only. Follows `weights` of
// crates/cpu/src/sampling/clear.rs.
// Grid: one block of 256 to 1,024 threads per request; a block without a filter returns at once.
// Limit: bandwidth if probability is spread over the whole row (the logits are read up to 5 times), else latency: only
// chunks whose maximum reaches a bound derived from the sums are read.
#include "sampling/select.cuh"

// Called by all threads: the cut by all three filters. `sum`: weight of all tokens relative to `best`.
__device__ __forceinline__ Cut cut_of(const Row& row, Histogram& h, const Request& request, float best,
                                      const double& sum) {
    double temperature = request.temperature;
    float rate = rate_of(request.temperature);
    u32 highest = key_of(best);
    Selection kept{key_of(lowest_sampled(best, request.temperature)), ALL, 0, false};
    if (request.top_k < row.vocab) {
        u32 bound = request.top_k <= row.chunks ? bound_by_maxima(row, h, request.top_k) : 0;
        kept = select(row, h, max(bound, kept.key), highest, rate, false, request.top_k);
    }
    if (request.top_p < 1.0f) {
        u32 bound = kept.key;
        double total = sum;
        if (kept.reached) {
            total = static_cast<double>(kept.weight) / UNIT;
        } else {
            // All tokens lighter than this together weigh less than 1 - top_p of the total, so top-p is reached before
            // them. The factor 1/4 keeps rounding from losing a borderline token.
            double lightest = 0.25 * (1.0 - request.top_p) * total / row.vocab;
            bound = max(bound, key_of(fminf(__double2float_rd(best + temperature * log(lightest)), best)));
        }
        u64 target = static_cast<u64>(fmax(ceil(request.top_p * total * UNIT), 1.0));
        Selection fewer = select(row, h, bound, highest, rate, true, target);
        if (fewer.reached) {
            u32 equals = fewer.key == kept.key ? min(fewer.equals, kept.equals) : fewer.equals;
            kept = {fewer.key, equals, 0, true};
        }
    }
    if (request.min_p > 0.0f) {
        // For exponents above -2^-54, e^x rounds to 1.
        double exponent = fmin(log(static_cast<double>(request.min_p)), -0x1p-54);
        u32 key = key_of(fminf(__double2float_ru(best + temperature * exponent), best));
        if (key > kept.key) {
            kept = {key, ALL, 0, true};
        }
    }
    return {kept.key, last_of_equals(row, h, kept.key, kept.equals)};
}

// Dynamic shared memory: maxima, f32 [chunks].
extern "C" __global__ void __launch_bounds__(1024)
    sample_filter(const float* __restrict__ logits, u32 vocab, u32 chunks, const Header* __restrict__ header,
                  const u32* __restrict__ sets, const float* __restrict__ sample_max, float* __restrict__ sample_sum,
                  Cut* __restrict__ cuts) {
    extern __shared__ float maxima[];
    __shared__ Histogram h;
    __shared__ double total;
    __shared__ Row row;
    u32 index = blockIdx.x;
    const Request& request = reinterpret_cast<const Request*>(header + 1)[index];
    if (!has_filter(request, vocab)) {
        return;
    }
    u64 first_chunk = static_cast<u64>(index) * chunks;
    for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
        maxima[c] = sample_max[first_chunk + c];
    }
    if (threadIdx.x == 0) {
        row = {logits + static_cast<u64>(index) * vocab, maxima, vocab, chunks, allowed_of(request, sets, chunks)};
    }
    __syncthreads();
    float best = largest_maximum(row);
    if (best == minus_infinity()) {
        return;
    }
    float* sums = sample_sum + first_chunk;
    float lowest = lowest_sampled(best, request.temperature);
    if (threadIdx.x < WARP) {
        auto sum_at = [&](u32 c) {
            return maxima[c] < lowest ? 0.0 : sums[c] * scale_of(maxima[c], best, request.temperature);
        };
        double sum = sum_of_chunks(chunks, sum_at);
        if (lane() == 0) {
            total = sum;
        }
    }
    __syncthreads();

    Cut cut = cut_of(row, h, request, best, total);
    if (threadIdx.x == 0) {
        cuts[index] = cut;
    }
    for (u32 c = threadIdx.x / WARP; c < chunks; c += blockDim.x / WARP) {
        float sum = 0.0f;
        if (key_of(maxima[c]) >= cut.key) {
            Chunk chunk = row.chunk(c);
            u32 first = c * CHUNK + lane();
            auto kept = [&](u32 j) { return keeps(cut, chunk.score[j], first + j * WARP); };
            sum = chunk.sum(maxima[c], rate_of(request.temperature), kept);
        }
        if (lane() == 0) {
            sums[c] = sum;
        }
    }
}
