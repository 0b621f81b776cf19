// Locates the edits of a request (logit bias, penalties, bans) for the kernels that apply them, undo them and count
// tokens.
#pragma once

#include "sampling/sample.cuh"

struct Edits {
    Bias* biases;
    Seen* seens;
    Ban* bans;
    Seen* counted;  // tokens counted on the device since the requests were loaded; unordered, none is among `seens`
    u32 bias_count;
    u32 seen_count;
    u32 ban_count;
    u32 counted_count;

    // `all_counted` [requests, MOST_COUNTED].
    __device__ __forceinline__ Edits(Header* header, Seen* all_counted, u32 index) {
        const Request& request = reinterpret_cast<const Request*>(header + 1)[index];
        u32* first = reinterpret_cast<u32*>(header) + request.first;
        biases = reinterpret_cast<Bias*>(first);
        seens = reinterpret_cast<Seen*>(biases + request.biases);
        bans = reinterpret_cast<Ban*>(seens + request.seens);
        bias_count = request.biases;
        seen_count = request.seens;
        ban_count = request.bans;
        counted = all_counted + static_cast<u64>(index) * MOST_COUNTED;
        counted_count = request.counted;
    }

    // Calls `each` for every entry of the four lists, divided among the block's threads. All entries have `token` and
    // `was`.
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

// Requests with penalties always have an `unseen` token once a step was advanced.
__device__ __forceinline__ bool has_edits(const Request& request) {
    return request.biases + request.seens + request.bans != 0 || request.unseen != NONE;
}

// Called by all threads of a block: writes the model's logits back where `sample_edit` changed them. No barrier at the
// end.
__device__ __forceinline__ void restore(float* logits, Header* header, Seen* all_counted, const Newest* newest,
                                        u32 index) {
    const Request& request = reinterpret_cast<const Request*>(header + 1)[index];
    if (!has_edits(request)) {
        return;
    }
    Edits(header, all_counted, index).for_each([&](const auto& entry) { logits[entry.token] = entry.was; });
    if (request.unseen != NONE && threadIdx.x == 0) {
        logits[newest[index].token] = newest[index].was;
    }
}
