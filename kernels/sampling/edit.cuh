// Where the edits of an ask lie, for the kernel that applies them and the one that takes them back.
#pragma once

#include "sampling/sample.cuh"

struct Edits {
    Bias* biases;
    Seen* seens;
    Ban* bans;
    u32 bias_count;
    u32 seen_count;
    u32 ban_count;

    __device__ __forceinline__ Edits(Header* header, const Request& request) {
        u32* first = reinterpret_cast<u32*>(header) + request.first;
        biases = reinterpret_cast<Bias*>(first);
        seens = reinterpret_cast<Seen*>(biases + request.biases);
        bans = reinterpret_cast<Ban*>(seens + request.seens);
        bias_count = request.biases;
        seen_count = request.seens;
        ban_count = request.bans;
    }

    // Every entry of the three lists, which all have a token and its logit, divided among the block's threads.
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
    }
};

__device__ __forceinline__ bool has_edits(const Request& request) {
    return request.biases + request.seens + request.bans != 0 || request.unseen != NONE;
}
