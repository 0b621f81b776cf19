// The last kernel of `sample`, when tokens are sampled: for each request that wants them, the rank of its token among
// all, and the most likely tokens, by falling score, then rising id, with log-probabilities; both by the model's own
// logits, or, for requests with LISTS_DRAWN, by the scores that the token is drawn from, of which it lists kept ones
// only. For requests with records of the distribution that their token is drawn from: how many tokens it keeps, the
// smallest score of them, and their ids, by rising id, if they are at most MOST_KEPT and wanted. For requests with a
// confidence of k tokens, by the model's logits x of the k most likely ones:
//   confidence = log sum over all tokens of e^(x - max x) + mean of max x - x
// Restores the model's logits where `sample_token` leaves that to it. Follows `by_score`, `log_softmax`, `drawn` and
// `confidence` of crates/cpu/src/sampling/clear.rs.
// Grid: one block of 256 to 1,024 threads per request; a block whose request wants nothing of this, or has no token,
// returns at once.
// Limit: latency. For the rank, only chunks whose maximum reaches the token's score are read, once; for the likely
// tokens and the confidence, only those whose maximum is among the largest, once, or up to 5 times where more than FEW
// tokens reach those maxima; for the kept tokens, only those that the cut divides, once (twice for their ids), and 4
// bytes for each chunk.
#include "sampling/edit.cuh"
#include "sampling/kept.cuh"

// Called by all threads: this thread's share of the tokens before `token` by falling score, then rising id.
__device__ __forceinline__ u32 count_before(const Row& row, u32 token) {
    u32 key = key_of(row.score(token));
    u32 before = 0;
    for (u32 c = threadIdx.x / WARP; c < row.chunks; c += blockDim.x / WARP) {
        if (key_of(row.maxima[c]) < key) {
            continue;
        }
        Chunk chunk = row.chunk(c);
#pragma unroll
        for (u32 j = 0; j < PER_LANE; ++j) {
            u32 other = key_of(chunk.score[j]);
            before += other > key || (other == key && c * CHUNK + j * WARP + lane() < token);
        }
    }
    return before;
}

// Up to so many tokens are listed before their order is known; it is found by comparing each to all others.
constexpr u32 FEW = 512;

// Called by all threads: adds the tokens with a key from `lowest` up for which is_listed(score, token) holds to
// `h.low`, their keys to `h.high`, in any order, and counts them in `listed`. Beyond `most` they are only counted.
template <class IsListed>
__device__ __forceinline__ void list_tokens(const Row& row, Histogram& h, u32 lowest, u32 most, u32& listed,
                                            IsListed is_listed) {
    for (u32 c = threadIdx.x / WARP; c < row.chunks; c += blockDim.x / WARP) {
        if (key_of(row.maxima[c]) < lowest) {
            continue;
        }
        Chunk chunk = row.chunk(c);
#pragma unroll
        for (u32 j = 0; j < PER_LANE; ++j) {
            u32 token = c * CHUNK + j * WARP + lane();
            if (token < row.vocab && is_listed(chunk.score[j], token)) {
                u32 at = atomicAdd(&listed, 1u);
                if (at < most) {
                    h.low[at] = token;
                    h.high[at] = key_of(chunk.score[j]);
                }
            }
        }
    }
    __syncthreads();
}

// Called by all threads: the keys and tokens of the `wanted` best of the row in `h.high` and `h.low`, in any order, and
// of up to FEW tokens in all. `listed` is 0 before; `wanted` is from 1 to the vocabulary's tokens, or to BINS.
__device__ __noinline__ void list_best(const Row& row, Histogram& h, u32 wanted, u32& listed) {
    u32 lowest = key_of(minus_infinity());
    if (wanted <= row.chunks) {
        lowest = bound_by_maxima(row, h, wanted);
        list_tokens(row, h, lowest, FEW, listed, [&](float score, u32) { return key_of(score) >= lowest; });
        bool are_few = listed <= FEW;
        __syncthreads();
        if (are_few) {
            return;
        }
        if (threadIdx.x == 0) {
            listed = 0;
        }
    }
    u32 highest = key_of(largest_maximum(row));
    Selection selection = select(row, h, lowest, highest, rate_of(1.0f), false, wanted);
    Cut cut{selection.key, last_of_equals(row, h, selection.key, selection.equals)};
    list_tokens(row, h, cut.key, BINS, listed, [&](float score, u32 token) { return keeps(cut, score, token); });
}

// Called by all threads: writes the `wanted` best of the listed tokens to `likely`, by falling score, then rising id,
// and the keys of the `averaged` best ones to `h.count`, in that order. `log_total`: of the weights of all tokens at
// `temperature`. No barrier at the end.
__device__ __noinline__ void order_listed(const Row& row, Histogram& h, u32 listed, u32 wanted, u32 averaged,
                                          float temperature, double log_total, LikelyToken* likely) {
    float best = largest_maximum(row);
    for (u32 i = threadIdx.x; i < listed; i += blockDim.x) {
        u32 place = 0;
        for (u32 other = 0; other < listed; ++other) {
            place += h.high[other] > h.high[i] || (h.high[other] == h.high[i] && h.low[other] < h.low[i]);
        }
        if (place < wanted) {
            float score = score_of(h.high[i]);
            bool none = best == minus_infinity();
            likely[place] = {h.low[i], none ? score : log_drawn(score, best, temperature, log_total)};
        }
        if (place < averaged) {
            h.count[place] = h.high[i];
        }
    }
}

// Called by one warp: the confidence by the `count` best keys, in their order. `log_sum`: of the weights of all tokens.
__device__ __forceinline__ float confidence_of(const u32* keys, u32 count, double log_sum) {
    u32 none = key_of(minus_infinity());
    double best = score_of(keys[0]);
    double tokens = sum_of_chunks(count, [&](u32 i) { return keys[i] > none ? 1.0 : 0.0; });
    double below = sum_of_chunks(count, [&](u32 i) { return keys[i] > none ? best - score_of(keys[i]) : 0.0; });
    return tokens > 0.0 ? static_cast<float>(log_sum + below / tokens) : 0.0f;
}

// Dynamic shared memory: maxima and minima, f32 [2, chunks].
extern "C" __global__ void __launch_bounds__(1024)
    sample_top(float* all_logits, u32 vocab, u32 chunks, u32 requests, Header* header, const u32* __restrict__ sets,
               const float* __restrict__ model_max, const float* __restrict__ model_sum,
               const float* __restrict__ sample_max, const float* __restrict__ sample_min,
               const Newest* __restrict__ newest, const Cut* __restrict__ cuts, const double* __restrict__ log_totals,
               SampledToken* __restrict__ all_results, Seen* all_counted) {
    extern __shared__ float maxima[];
    float* minima = maxima + chunks;
    __shared__ Histogram h;
    __shared__ KeptTokens kept;
    __shared__ u32 listed;
    __shared__ u32 rank;
    __shared__ double log_sum;  // of the model's weights
    __shared__ Row row;
    u32 index = blockIdx.x;
    const Request& request = reinterpret_cast<const Request*>(header + 1)[index];
    bool is_drawn = returns_drawn(request);
    bool lists_drawn = (request.records & LISTS_DRAWN) != 0;
    u32 asked = request.top;
    u32 averaged = min(request.confidence, vocab);
    if (asked == NONE && averaged == 0 && !is_drawn) {
        return;
    }
    Results results(all_results, *header, requests);
    float* logits = all_logits + static_cast<u64>(index) * vocab;
    u32 token = results.tokens[index].token;
    if (token == NONE) {
        if (is_drawn) {
            restore(logits, header, all_counted, newest, index);
        }
        return;
    }
    u64 first_chunk = static_cast<u64>(index) * chunks;
    if (threadIdx.x == 0) {
        listed = 0;
        rank = 1;
        kept = {0, key_of(infinity())};
        row = {logits, maxima, vocab, chunks, is_drawn ? allowed_of(request, sets, chunks) : nullptr};
    }
    for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
        maxima[c] = is_drawn ? sample_max[first_chunk + c] : model_max[first_chunk + c];
        minima[c] = is_drawn ? sample_min[first_chunk + c] : 0.0f;
    }
    __syncthreads();

    if (is_drawn) {
        float best = largest_maximum(row);
        Cut cut{0, ALL};
        if (best != minus_infinity()) {
            cut = sampling_cut(request, vocab, cuts[index], best);
            count_kept(row, minima, cut, h, kept);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            results.records[index].kept = kept.count;
            results.records[index].lowest = score_of(kept.lowest);
        }
        if ((request.records & RECORDS_IDS) && kept.count > 0 && kept.count <= MOST_KEPT) {
            list_kept(row, cut, h, results.ids + static_cast<u64>(index) * header->ids_width);
        }
        __syncthreads();
    }
    auto use_model = [&] {
        restore(logits, header, all_counted, newest, index);
        for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
            maxima[c] = model_max[first_chunk + c];
        }
        if (threadIdx.x == 0) {
            row.allowed = nullptr;
            listed = 0;
        }
        __syncthreads();
    };
    if (is_drawn && !lists_drawn) {
        use_model();
    }

    u32 wanted = 0;
    if (asked != NONE) {
        wanted = min(asked, lists_drawn ? kept.count : vocab);
        u32 before = count_before(row, token);
        if (before > 0) {
            atomicAdd(&rank, before);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            results.tokens[index].rank = rank;
        }
    }
    LikelyToken* likely = results.likely + static_cast<u64>(index) * header->top_width;
    if (lists_drawn) {
        if (wanted > 0) {
            list_best(row, h, wanted, listed);
            order_listed(row, h, listed, wanted, 0, request.temperature, log_totals[index], likely);
        }
        wanted = 0;
        __syncthreads();
        use_model();
    }
    if (max(wanted, averaged) == 0) {
        return;
    }
    list_best(row, h, max(wanted, averaged), listed);
    if (threadIdx.x < WARP) {
        LogSoftmax logprob(row, model_sum + first_chunk);
        if (lane() == 0) {
            log_sum = logprob.log_sum;
        }
    }
    __syncthreads();
    order_listed(row, h, listed, wanted, averaged, 1.0f, log_sum, likely);
    if (averaged == 0) {
        return;
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        float confidence = confidence_of(h.count, averaged, log_sum);
        if (lane() == 0) {
            results.records[index].confidence = confidence;
        }
    }
}
