// The last kernel of `sample`, when tokens are sampled: for each request that wants them, the rank of its token among
// all, and the most likely tokens, by falling score, then rising id, with log-probabilities; both by the model's own
// logits, or, for requests with LISTS_DRAWN, by the scores that the token is drawn from, of which it lists kept ones
// only. For requests with records of the distribution that their token is drawn from: how many tokens it keeps, the
// smallest score of them, and their ids, by rising id, if they are at most MOST_KEPT and wanted. Restores the model's
// logits where `sample_token` leaves that to it. Follows `by_score`, `log_softmax` and `drawn` of
// crates/cpu/src/sampling/clear.rs.
// Grid: one block of 256 to 1,024 threads per request; a block whose request wants nothing of this, or has no token,
// returns at once.
// Limit: latency. For the rank, only chunks whose maximum reaches the token's score are read, once; for the likely
// tokens, only those whose maximum is among the largest, up to 4 times; for the kept tokens, only those that the cut
// divides, once (twice for their ids), and 4 bytes for each chunk.
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

// Called by all threads: the keys and tokens of the `wanted` best of the row in `h.high` and `h.low`, in any order.
// `listed` is 0 before; `wanted` is from 1 to the vocabulary's tokens, or to BINS.
__device__ __noinline__ void list_best(const Row& row, Histogram& h, u32 wanted, u32& listed) {
    u32 lowest = wanted <= row.chunks ? bound_by_maxima(row, h, wanted) : key_of(minus_infinity());
    u32 highest = key_of(largest_maximum(row));
    Selection selection = select(row, h, lowest, highest, rate_of(1.0f), false, wanted);
    Cut cut{selection.key, last_of_equals(row, h, selection.key, selection.equals)};
    for (u32 c = threadIdx.x / WARP; c < row.chunks; c += blockDim.x / WARP) {
        if (key_of(row.maxima[c]) < cut.key) {
            continue;
        }
        Chunk chunk = row.chunk(c);
#pragma unroll
        for (u32 j = 0; j < PER_LANE; ++j) {
            u32 token = c * CHUNK + j * WARP + lane();
            if (token < row.vocab && keeps(cut, chunk.score[j], token)) {
                u32 at = atomicAdd(&listed, 1u);
                h.low[at] = token;
                h.high[at] = key_of(chunk.score[j]);
            }
        }
    }
    __syncthreads();
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
    __shared__ Row row;
    u32 index = blockIdx.x;
    const Request& request = reinterpret_cast<const Request*>(header + 1)[index];
    bool is_drawn = returns_drawn(request);
    bool lists_drawn = (request.records & LISTS_DRAWN) != 0;
    u32 asked = request.top;
    if (asked == NONE && !is_drawn) {
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
    if (is_drawn && !lists_drawn) {
        restore(logits, header, all_counted, newest, index);
        for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
            maxima[c] = model_max[first_chunk + c];
        }
        if (threadIdx.x == 0) {
            row.allowed = nullptr;
        }
        __syncthreads();
    }
    if (asked == NONE) {
        return;
    }

    u32 before = count_before(row, token);
    if (before > 0) {
        atomicAdd(&rank, before);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        results.tokens[index].rank = rank;
    }
    u32 wanted = min(asked, lists_drawn ? kept.count : vocab);
    if (wanted > 0) {
        list_best(row, h, wanted, listed);
        float best = largest_maximum(row);
        float temperature = lists_drawn ? request.temperature : 1.0f;
        double log_total =
            lists_drawn ? log_totals[index] : LogSoftmax(row, model_sum + first_chunk).log_sum;
        LikelyToken* likely = results.likely + static_cast<u64>(index) * header->top_width;
        for (u32 i = threadIdx.x; i < wanted; i += blockDim.x) {
            u32 place = 0;
            for (u32 other = 0; other < wanted; ++other) {
                place += h.high[other] > h.high[i] || (h.high[other] == h.high[i] && h.low[other] < h.low[i]);
            }
            float score = score_of(h.high[i]);
            bool none = best == minus_infinity();
            likely[place] = {h.low[i], none ? score : log_drawn(score, best, temperature, log_total)};
        }
    }
    if (lists_drawn) {
        __syncthreads();
        restore(logits, header, all_counted, newest, index);
    }
}
