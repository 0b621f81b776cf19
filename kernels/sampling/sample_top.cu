// The last kernel of `sample`, when tokens are sampled and the model's own logits restored: for each request that wants
// them, the rank of its token among all, and the most likely tokens, by falling score, then rising id, with
// log-probabilities. Follows `by_score` and `log_softmax` of crates/cpu/src/sampling/clear.rs.
// Grid: one block of 256 to 1,024 threads per request; a block whose request wants neither, or has no token,
// returns at once.
// Limit: latency. For the rank, only chunks whose maximum reaches the token's score are read, once; for the likely
// tokens, only those whose maximum is among the largest, up to 4 times.
#include "sampling/select.cuh"

// Called by all threads: this thread's share of the tokens before `token` by falling score, then rising id.
__device__ __forceinline__ u32 count_before(const Row& row, u32 token) {
    u32 key = key_of(safe(row.logits[token]));
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

// Dynamic shared memory: maxima, f32 [chunks].
extern "C" __global__ void __launch_bounds__(1024)
    sample_top(const float* __restrict__ logits, u32 vocab, u32 chunks, u32 requests, const Header* __restrict__ header,
               const float* __restrict__ model_max, const float* __restrict__ model_sum,
               SampledToken* __restrict__ results) {
    extern __shared__ float maxima[];
    __shared__ Histogram h;
    __shared__ u32 listed;
    __shared__ u32 rank;
    __shared__ Row row;
    u32 index = blockIdx.x;
    u32 asked = reinterpret_cast<const Request*>(header + 1)[index].top;
    u32 token = results[index].token;
    if (asked == NONE || token == NONE) {
        return;
    }
    u64 first_chunk = static_cast<u64>(index) * chunks;
    for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
        maxima[c] = model_max[first_chunk + c];
    }
    if (threadIdx.x == 0) {
        listed = 0;
        rank = 1;
        row = {logits + static_cast<u64>(index) * vocab, maxima, vocab, chunks, nullptr};
    }
    __syncthreads();

    u32 before = count_before(row, token);
    if (before > 0) {
        atomicAdd(&rank, before);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        results[index].rank = rank;
    }
    u32 wanted = min(asked, vocab);
    if (wanted == 0) {
        return;
    }

    u32 lowest = wanted <= chunks ? bound_by_maxima(row, h, wanted) : key_of(minus_infinity());
    u32 highest = key_of(largest_maximum(row));
    Selection selection = select(row, h, lowest, highest, rate_of(1.0f), false, wanted);
    Cut cut{selection.key, last_of_equals(row, h, selection.key, selection.equals)};

    // Reuses the histogram as the list: tokens in `low`, keys in `high`.
    for (u32 c = threadIdx.x / WARP; c < chunks; c += blockDim.x / WARP) {
        if (key_of(maxima[c]) < cut.key) {
            continue;
        }
        Chunk chunk = row.chunk(c);
#pragma unroll
        for (u32 j = 0; j < PER_LANE; ++j) {
            u32 token = c * CHUNK + j * WARP + lane();
            if (token < vocab && keeps(cut, chunk.score[j], token)) {
                u32 at = atomicAdd(&listed, 1u);
                h.low[at] = token;
                h.high[at] = key_of(chunk.score[j]);
            }
        }
    }
    __syncthreads();
    LogSoftmax logprob(row, model_sum + first_chunk);
    LikelyToken* all_likely = reinterpret_cast<LikelyToken*>(results + requests);
    LikelyToken* likely = all_likely + static_cast<u64>(index) * header->top_width;
    for (u32 i = threadIdx.x; i < wanted; i += blockDim.x) {
        u32 place = 0;
        for (u32 other = 0; other < wanted; ++other) {
            place += h.high[other] > h.high[i] || (h.high[other] == h.high[i] && h.low[other] < h.low[i]);
        }
        likely[place] = {h.low[i], logprob.of(score_of(h.high[i]))};
    }
}
