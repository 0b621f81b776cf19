// The last kernel of `sample`: one token per request, the best, the one given, or at random by the inverse of the
// cumulative distribution in vocabulary order at the request's uniform; its log-probability by the model's own logits,
// which it puts back first where `sample_edit` changed them. Follows `sample_row` and `inverse_cdf` of
// backend/cpu/sampling/clear.rs.
// Grid: one block of one warp per request. Limited by latency: it reads 16 bytes for 512 tokens, and one chunk of
// logits.
#include "sampling/edit.cuh"
#include "sampling/row.cuh"

// The first token of the largest score; token 0 where all are -inf.
__device__ __forceinline__ u32 first_best(const Row& row, float best) {
    u32 c = 0;
    for (u32 first = 0, hits = 0; hits == 0; first += WARP) {
        u32 at = first + lane();
        hits = __ballot_sync(ALL_LANES, at < row.chunks && row.maxima[at] == best);
        c = first + __ffs(hits) - 1;
    }
    Chunk chunk(row.logits, row.vocab, c);
    u32 token = 0;
#pragma unroll
    for (u32 j = PER_LANE; j-- > 0;) {
        u32 hits = __ballot_sync(ALL_LANES, chunk.score[j] == best);
        token = hits != 0 ? c * CHUNK + j * WARP + __ffs(hits) - 1 : token;
    }
    return token;
}

// The first token of chunk `c` that `cut` keeps and at which the running sum of weights, relative to the chunk's
// maximum, exceeds `target`; without one, the last token kept.
__device__ __forceinline__ u32 find_token(const Row& row, u32 c, float rate, Cut cut, double target) {
    Chunk chunk(row.logits, row.vocab, c);
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

// `sums` is shared memory, one a chunk; each lane reads what it wrote.
__device__ __forceinline__ u32 draw(const Row& row, const float* draw_sum, double* sums, const Request& request,
                                    float best, Cut cut, double uniform) {
    for (u32 c = lane(); c < row.chunks; c += WARP) {
        bool kept = key_of(row.maxima[c]) >= cut.key;
        sums[c] = kept ? draw_sum[c] * scale_of(row.maxima[c], best, request.temperature) : 0.0;
    }
    auto sum_at = [&](u32 c) { return sums[c]; };
    double target = uniform * sum_of_chunks(row.chunks, sum_at);
    Place place = find_place(row.chunks, sum_at, target);
    double scale = scale_of(row.maxima[place.chunk], best, request.temperature);
    return find_token(row, place.chunk, rate_of(request.temperature), cut, (target - place.before) / scale);
}

// Dynamic shared memory: sums, f64 [chunks].
extern "C" __global__ void __launch_bounds__(WARP)
    sample_draw(float* all_logits, u32 vocab, u32 chunks, Header* header, const double* __restrict__ uniforms,
                const float* __restrict__ model_max, const float* __restrict__ model_sum,
                const float* __restrict__ draw_max, const float* __restrict__ draw_sum,
                const Newest* __restrict__ newest, const Cut* __restrict__ cuts, Drawn* __restrict__ results,
                u32* __restrict__ drawn, Seen* all_counted) {
    extern __shared__ double sums[];
    u32 req = blockIdx.x;
    const Request& request = reinterpret_cast<const Request*>(header + 1)[req];
    float* logits = all_logits + static_cast<u64>(req) * vocab;
    u64 first_chunk = static_cast<u64>(req) * chunks;
    u32 token = request.given;
    Row row{logits, draw_max + first_chunk, vocab, chunks};
    float best = largest_maximum(row);
    if (request.pick == GREEDY || (request.pick == RANDOM && best == minus_infinity())) {
        token = first_best(row, best);
    } else if (request.pick == RANDOM) {
        Cut all{key_of(lowest_drawn(best, request.temperature)), ALL};
        Cut cut = has_filter(request, vocab) ? cuts[req] : all;
        token = draw(row, draw_sum + first_chunk, sums, request, best, cut, uniforms[req]);
    }

    if (has_edits(request)) {
        Edits(header, all_counted, req).for_each([&](const auto& entry) { logits[entry.token] = entry.was; });
        if (request.unseen != NONE && lane() == 0) {
            logits[newest[req].token] = newest[req].was;
        }
        __syncwarp();
    }
    LogSoftmax logprob({logits, model_max + first_chunk, vocab, chunks}, model_sum + first_chunk);
    if (lane() == 0) {
        results[req] = {token, logprob.of(safe(logits[token]))};
        drawn[req] = token;
    }
}
