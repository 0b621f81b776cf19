// The fourth kernel of `sample`: picks one token per request (the best one, a given one, or a random one by inverting
// the cumulative distribution in vocabulary order at the request's uniform) and returns its log-probability under the
// model's own logits, which it first restores where `sample_edit` changed them. Where all scores are -inf, no token is
// picked: the result says NONE, and the next step, whose results nobody reads, continues with token 0. Follows
// `sample_row` and `inverse_cdf` of crates/cpu/src/sampling/clear.rs.
// Grid: one block of one warp per request.
// Limit: latency. Reads 16 bytes per 512 tokens, one chunk of logits with its 64 bytes of allowed tokens, and the lists
// of a request's edits: 12 bytes of bias, 16 of seen and 8 of banned tokens each.
#include "sampling/edit.cuh"
#include "sampling/row.cuh"

// The first token with the largest score, which is not -inf.
__device__ __forceinline__ u32 first_best(const Row& row, float best) {
    u32 c = 0;
    for (u32 first = 0, hits = 0; hits == 0; first += WARP) {
        u32 at = first + lane();
        hits = __ballot_sync(ALL_LANES, at < row.chunks && row.maxima[at] == best);
        c = first + __ffs(hits) - 1;
    }
    Chunk chunk = row.chunk(c);
    u32 token = 0;
#pragma unroll
    for (u32 j = PER_LANE; j-- > 0;) {
        u32 hits = __ballot_sync(ALL_LANES, chunk.score[j] == best);
        token = hits != 0 ? c * CHUNK + j * WARP + __ffs(hits) - 1 : token;
    }
    return token;
}

// The first token of chunk `c` kept by `cut` at which the running sum of weights, relative to the chunk's maximum,
// exceeds `target`; if there is none, the last token kept.
__device__ __forceinline__ u32 find_token(const Row& row, u32 c, float rate, Cut cut, double target) {
    Chunk chunk = row.chunk(c);
    u32 token = 0;
    bool found = false;
    double before = 0.0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; ++j) {
        u32 first = c * CHUNK + j * WARP;
        bool kept = keeps(cut, chunk.score[j], first + lane());
        float weight = kept ? weight_of(chunk.score[j], row.maxima[c], rate) : 0.0f;
        double running = before + running_sum(static_cast<double>(weight));
        u32 filled = __ballot_sync(ALL_LANES, weight > 0.0f);
        u32 over = __ballot_sync(ALL_LANES, weight > 0.0f && running > target);
        if (!found && filled != 0) {
            token = first + (over != 0 ? __ffs(over) - 1 : WARP - 1 - __clz(filled));
            found = over != 0;
        }
        before = __shfl_sync(ALL_LANES, running, WARP - 1);
    }
    return token;
}

// Samples a token at random. `sums`: shared memory, one per chunk; each lane reads what it wrote.
__device__ __forceinline__ u32 sample_random(const Row& row, const float* sample_sum, double* sums,
                                             const Request& request, float best, Cut cut, double uniform) {
    for (u32 c = lane(); c < row.chunks; c += WARP) {
        bool kept = key_of(row.maxima[c]) >= cut.key;
        sums[c] = kept ? sample_sum[c] * scale_of(row.maxima[c], best, request.temperature) : 0.0;
    }
    auto sum_at = [&](u32 c) { return sums[c]; };
    double target = uniform * sum_of_chunks(row.chunks, sum_at);
    Place place = find_place(row.chunks, sum_at, target);
    double scale = scale_of(row.maxima[place.chunk], best, request.temperature);
    return find_token(row, place.chunk, rate_of(request.temperature), cut, (target - place.before) / scale);
}

// Dynamic shared memory: sums, f64 [chunks].
extern "C" __global__ void __launch_bounds__(WARP)
    sample_token(float* all_logits, u32 vocab, u32 chunks, Header* header, const u32* __restrict__ sets,
                const double* __restrict__ uniforms, const float* __restrict__ model_max,
                const float* __restrict__ model_sum, const float* __restrict__ sample_max,
                const float* __restrict__ sample_sum,
                const Newest* __restrict__ newest, const Cut* __restrict__ cuts, SampledToken* __restrict__ results,
                u32* __restrict__ sampled_tokens, Seen* all_counted) {
    extern __shared__ double sums[];
    u32 index = blockIdx.x;
    const Request& request = reinterpret_cast<const Request*>(header + 1)[index];
    float* logits = all_logits + static_cast<u64>(index) * vocab;
    u64 first_chunk = static_cast<u64>(index) * chunks;
    u32 token = request.given;
    Row row{logits, sample_max + first_chunk, vocab, chunks, allowed_of(request, sets, chunks)};
    float best = largest_maximum(row);
    bool none = best == minus_infinity() && (request.pick == GREEDY || request.pick == RANDOM);
    if (none) {
        token = 0;
    } else if (request.pick == GREEDY) {
        token = first_best(row, best);
    } else if (request.pick == RANDOM) {
        Cut all{key_of(lowest_sampled(best, request.temperature)), ALL};
        Cut cut = has_filter(request, vocab) ? cuts[index] : all;
        token = sample_random(row, sample_sum + first_chunk, sums, request, best, cut, uniforms[index]);
    }

    if (has_edits(request)) {
        Edits(header, all_counted, index).for_each([&](const auto& entry) { logits[entry.token] = entry.was; });
        if (request.unseen != NONE && lane() == 0) {
            logits[newest[index].token] = newest[index].was;
        }
        __syncwarp();
    }
    LogSoftmax logprob({logits, model_max + first_chunk, vocab, chunks, nullptr}, model_sum + first_chunk);
    if (lane() == 0) {
        results[index] = {none ? NONE : token, logprob.of(safe(logits[token])), 0};  // sample_top writes the rank
        sampled_tokens[index] = token;
    }
}
