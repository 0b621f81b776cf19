// The second kernel of `sample`: applies bias, penalties and bans to the logits [requests, vocab] of requests that have
// any, and recomputes the maxima and sums of the changed chunks, over allowed tokens (and the minima, where requests
// return the distribution that their token is drawn from). `sample_token` restores the model's logits, or else
// `sample_top`. Order and arithmetic follow `adjusted` of crates/cpu/src/sampling/scores.rs; nothing is contracted
// into fused operations.
// Grid: one block of 256 to 1,024 threads per request; a block without edits returns at once.
// Limit: latency, and the bandwidth of the changed chunks.
#include "sampling/edit.cuh"

// Calls `each` for every run of entries with the same token: one thread handles a whole run.
template <class Entry, class Each>
__device__ __forceinline__ void for_each_token(Entry* entries, u32 count, Each each) {
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        if (i > 0 && entries[i - 1].token == entries[i].token) {
            continue;
        }
        u32 end = i + 1;
        while (end < count && entries[end].token == entries[i].token) {
            ++end;
        }
        each(entries + i, entries + end);
    }
}

__device__ __forceinline__ float penalised(float score, const Request& request, u32 sampled, bool in_prompt) {
    if (sampled > 0 || in_prompt) {
        score = score > 0.0f ? __fdiv_rn(score, request.repetition) : __fmul_rn(score, request.repetition);
    }
    if (sampled > 0) {
        float frequency = __fmul_rn(request.frequency, static_cast<float>(sampled));
        score = __fsub_rn(score, __fadd_rn(frequency, request.presence));
    }
    return score;
}

// Dynamic shared memory: whether each chunk is changed, one byte per chunk [chunks].
extern "C" __global__ void __launch_bounds__(1024, 1)
    sample_edit(float* all_logits, u32 vocab, u32 chunks, Header* header, const u32* __restrict__ sampled_tokens,
                float* __restrict__ sample_max, float* __restrict__ sample_sum, float* __restrict__ sample_min,
                Newest* __restrict__ newest_of, Seen* all_counted, const u32* __restrict__ sets) {
    extern __shared__ bool changed[];
    u32 index = blockIdx.x;
    const Request& request = reinterpret_cast<const Request*>(header + 1)[index];
    if (!has_edits(request)) {
        return;
    }
    float* logits = all_logits + static_cast<u64>(index) * vocab;
    Edits edits(header, all_counted, index);
    u32 newest = request.unseen == NONE ? NONE : sampled_tokens[request.unseen];
    bool has_newest = newest != NONE;
    bool of_newest = has_newest && threadIdx.x == 0;
    for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
        changed[c] = false;
    }
    __syncthreads();

    // A token may be in several lists: save the same logit in all of them before changing any.
    edits.for_each([&](auto& entry) {
        entry.was = logits[entry.token];
        changed[entry.token / CHUNK] = true;
    });
    if (of_newest) {
        newest_of[index] = {newest, logits[newest]};
        changed[newest / CHUNK] = true;
    }
    __syncthreads();
    edits.for_each([&](auto& entry) { logits[entry.token] = safe(entry.was); });
    if (of_newest) {
        logits[newest] = safe(newest_of[index].was);
    }
    __syncthreads();

    for_each_token(edits.biases, edits.bias_count, [&](Bias* entry, Bias* end) {
        u32 token = entry->token;
        float score = logits[token];
        for (; entry < end; ++entry) {
            score = __fadd_rn(score, entry->bias);
        }
        logits[token] = score;
    });
    __syncthreads();

    bool found = false;
    for_each_token(edits.seens, edits.seen_count, [&](Seen* entry, Seen* end) {
        u32 token = entry->token;
        u32 more = token == newest ? 1 : 0;
        found |= more == 1;
        float score = logits[token];
        for (; entry < end; ++entry) {
            score = penalised(score, request, entry->sampled + more, entry->in_prompt != 0);
            more = 0;
        }
        logits[token] = score;
    });
    for (u32 i = threadIdx.x; i < edits.counted_count; i += blockDim.x) {
        const Seen& entry = edits.counted[i];
        u32 more = entry.token == newest ? 1 : 0;
        found |= more == 1;
        logits[entry.token] = penalised(logits[entry.token], request, entry.sampled + more, false);
    }
    found = __syncthreads_or(found);
    if (of_newest && !found) {
        logits[newest] = penalised(logits[newest], request, 1, false);
    }
    __syncthreads();

    for (u32 i = threadIdx.x; i < edits.ban_count; i += blockDim.x) {
        logits[edits.bans[i].token] = minus_infinity();
    }
    __syncthreads();

    for (u32 c = threadIdx.x / WARP; c < chunks; c += blockDim.x / WARP) {
        if (changed[c]) {
            Chunk chunk(logits, vocab, c);
            chunk.keep(allowed_of(request, sets, chunks), c);
            float max = chunk.max();
            float sum = chunk.sum(max, rate_of(request.temperature));
            u64 at = static_cast<u64>(index) * chunks + c;
            if (lane() == 0) {
                sample_max[at] = max;
                sample_sum[at] = sum;
            }
            if (returns_drawn(request)) {
                float min = chunk.min();
                if (lane() == 0) {
                    sample_min[at] = min;
                }
            }
        }
    }
}
