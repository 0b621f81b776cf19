// The fourth kernel of `sample`: picks one token per request (the best one, a given one, or a random one by inverting
// the cumulative distribution in vocabulary order at the request's uniform) and returns its log-probability under the
// model's own logits, which it first restores where `sample_edit` changed them; where the request returns the
// distribution that its token is drawn from, it returns the log-probability under that, too, and leaves the logits to
// `sample_top`. Returns the model's entropy where it is asked for:
//   entropy = log sum - (sum over chunks of e^(max - best) (products + sum (max - best))) / sum
// Where all scores are -inf, no token is picked: the result says NONE, and the next step, whose results nobody reads,
// continues with token 0. Follows `sample_row` and `inverse_cdf` of crates/cpu/src/sampling/clear.rs.
// Grid: one block of one warp per request.
// Limit: latency. Reads 16 bytes per 512 tokens (20 for the entropy), one chunk of logits with its 64 bytes of allowed
// tokens, and the lists of a request's edits: 12 bytes of bias, 16 of seen and 8 of banned tokens each.
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

// Writes the kept weight of each chunk, relative to the best score, to `sums` in shared memory, one per chunk; each
// lane reads what it wrote. Returns their total.
__device__ __forceinline__ double weigh_kept(const Row& row, const float* sample_sum, double* sums, float temperature,
                                             float best, Cut cut) {
    for (u32 c = lane(); c < row.chunks; c += WARP) {
        bool kept = key_of(row.maxima[c]) >= cut.key;
        sums[c] = kept ? sample_sum[c] * scale_of(row.maxima[c], best, temperature) : 0.0;
    }
    return sum_of_chunks(row.chunks, [&](u32 c) { return sums[c]; });
}

// Samples a token at random. `sums` and `total`: as `weigh_kept` leaves them.
__device__ __forceinline__ u32 sample_random(const Row& row, const double* sums, double total, const Request& request,
                                             float best, Cut cut, double uniform) {
    double target = uniform * total;
    Place place = find_place(row.chunks, [&](u32 c) { return sums[c]; }, target);
    double scale = scale_of(row.maxima[place.chunk], best, request.temperature);
    return find_token(row, place.chunk, rate_of(request.temperature), cut, (target - place.before) / scale);
}

// The model's logit of `token`, which edits may have replaced.
__device__ __forceinline__ float logit_before(const Edits& edits, const Request& request, const Newest& newest,
                                              const float* logits, u32 token) {
    float was = logits[token];
    bool is_edited = false;
    edits.for_each([&](const auto& entry) {
        if (entry.token == token) {
            was = entry.was;
            is_edited = true;
        }
    });
    if (request.unseen != NONE && newest.token == token) {
        was = newest.was;
        is_edited = true;
    }
    // All entries of a token hold the same logit.
    u32 edited = __ballot_sync(ALL_LANES, is_edited);
    return __shfl_sync(ALL_LANES, was, edited != 0 ? __ffs(edited) - 1 : 0);
}

// The model's entropy. `logprob`: of the row.
__device__ __forceinline__ float entropy_of(const Row& model, const float* sums, const float* products,
                                            const LogSoftmax& logprob) {
    float best = static_cast<float>(logprob.best);
    if (best == minus_infinity()) {
        return 0.0f;
    }
    double product = sum_of_chunks(model.chunks, [&](u32 c) {
        float max = model.maxima[c];
        double own = products[c] + static_cast<double>(sums[c]) * (static_cast<double>(max) - best);
        return max == minus_infinity() ? 0.0 : own * scale_of(max, best, 1.0f);
    });
    return static_cast<float>(logprob.log_sum - product / exp(logprob.log_sum));
}

// Dynamic shared memory: sums, f64 [chunks].
extern "C" __global__ void __launch_bounds__(WARP)
    sample_token(float* all_logits, u32 vocab, u32 chunks, u32 requests, Header* header, const u32* __restrict__ sets,
                const double* __restrict__ uniforms, const float* __restrict__ model_max,
                const float* __restrict__ model_sum, const float* __restrict__ model_products,
                const float* __restrict__ sample_max, const float* __restrict__ sample_sum,
                const Newest* __restrict__ newest, const Cut* __restrict__ cuts, double* __restrict__ log_totals,
                SampledToken* __restrict__ all_results, u32* __restrict__ sampled_tokens, Seen* all_counted) {
    extern __shared__ double sums[];
    u32 index = blockIdx.x;
    const Request& request = reinterpret_cast<const Request*>(header + 1)[index];
    float* logits = all_logits + static_cast<u64>(index) * vocab;
    u64 first_chunk = static_cast<u64>(index) * chunks;
    Results results(all_results, *header, requests);
    u32 token = request.given;
    Row row{logits, sample_max + first_chunk, vocab, chunks, allowed_of(request, sets, chunks)};
    float best = largest_maximum(row);
    bool is_drawn = returns_drawn(request);
    Cut cut{0, ALL};
    double total = 0.0;
    if (best != minus_infinity() && (request.pick == RANDOM || is_drawn)) {
        cut = sampling_cut(request, vocab, cuts[index], best);
        total = weigh_kept(row, sample_sum + first_chunk, sums, request.temperature, best, cut);
    }
    bool none = best == minus_infinity() && (request.pick == GREEDY || request.pick == RANDOM);
    if (none) {
        token = 0;
    } else if (request.pick == GREEDY) {
        token = first_best(row, best);
    } else if (request.pick == RANDOM) {
        token = sample_random(row, sums, total, request, best, cut, uniforms[index]);
    }

    float logit;
    if (is_drawn) {
        float score = row.score(token);
        double log_total = log(total);
        bool kept = best != minus_infinity() && keeps(cut, score, token);
        if (lane() == 0) {
            log_totals[index] = log_total;
            results.records[index].logprob =
                kept ? log_drawn(score, best, request.temperature, log_total) : minus_infinity();
        }
        logit = logit_before(Edits(header, all_counted, index), request, newest[index], logits, token);
    } else {
        restore(logits, header, all_counted, newest, index);
        __syncwarp();
        logit = logits[token];
    }
    Row model{logits, model_max + first_chunk, vocab, chunks, nullptr};
    LogSoftmax logprob(model, model_sum + first_chunk);
    if (request.records & RECORDS_ENTROPY) {
        float entropy = entropy_of(model, model_sum + first_chunk, model_products + first_chunk, logprob);
        if (lane() == 0) {
            results.records[index].entropy = entropy;
        }
    }
    if (lane() == 0) {
        results.tokens[index] = {none ? NONE : token, logprob.of(safe(logit)), 0};  // sample_top writes the rank
        sampled_tokens[index] = token;
    }
}
