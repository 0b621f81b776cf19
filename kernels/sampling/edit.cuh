// Where the edits of a request lie, for the kernels that apply them, take them back and count tokens.
#pragma once

#include "sampling/sample.cuh"

struct Edits {
    Bias* biases;
    Seen* seens;
    Ban* bans;
    Seen* counted;  // in no order; no token of theirs is among `seens`
    u32 bias_count;
    u32 seen_count;
    u32 ban_count;
    u32 counted_count;

    // `all_counted` [requests, MOST_COUNTED].
    __device__ __forceinline__ Edits(Header* header, Seen* all_counted, u32 req) {
        const Request& request = reinterpret_cast<const Request*>(header + 1)[req];
        u32* first = reinterpret_cast<u32*>(header) + request.first;
        biases = reinterpret_cast<Bias*>(first);
        seens = reinterpret_cast<Seen*>(biases + request.biases);
        bans = reinterpret_cast<Ban*>(seens + request.seens);
        bias_count = request.biases;
        seen_count = request.seens;
        ban_count = request.bans;
        counted = all_counted + static_cast<u64>(req) * MOST_COUNTED;
        counted_count = request.counted;
    }

    // Every entry of the four lists, which all have a token and its logit, divided among the block's threads.
    template <class Each>
    __device__ __forceinline__ void for_each(Each each) const {
        for (u32 i = threadIdx.x; i < bias_count; i += blockDim.x) {
            each(biases[i]);
        }
        for (u32 i = threadIdx.x; i < seen_count; i += blockDim.x) {
            each(seens[i]);
        }
        for (u32 i = threadIdx.x; i < ban_count; i += blockDim.x) {
            each(bans[i]);
        }
        for (u32 i = threadIdx.x; i < counted_count; i += blockDim.x) {
            each(counted[i]);
        }
    }
};

__device__ __forceinline__ bool has_penalties(const Request& request) {
    return request.repetition != 1.0f || request.frequency != 0.0f || request.presence != 0.0f;
}

// Whoever counts tokens has one that is unseen.
__device__ __forceinline__ bool has_edits(const Request& request) {
    return request.biases + request.seens + request.bans != 0 || request.unseen != NONE;
}
