// Counts and lists the tokens of a row that a cut keeps.
#pragma once

#include "sampling/select.cuh"

// In shared memory: what a cut keeps of a row.
struct KeptTokens {
    u32 count;
    u32 lowest;  // the key of the smallest score; that of +inf if none is kept
};

// Called by all threads: counts the kept tokens, those of chunk c in `h.count[c]`. `kept` is {0, key of +inf} before;
// the best score is above -inf. `minima` [chunks]: the smallest score of each chunk; -inf where it is not known. Reads
// the chunks that the cut divides. No barrier at the end.
__device__ __noinline__ void count_kept(const Row& row, const float* minima, Cut cut, Histogram& h, KeptTokens& kept) {
    for (u32 c = threadIdx.x / WARP; c < row.chunks; c += blockDim.x / WARP) {
        u32 count = 0;
        float lowest = infinity();
        u32 min_key = key_of(minima[c]);
        if (min_key > cut.key || (min_key == cut.key && cut.last == ALL)) {
            count = min(CHUNK, row.vocab - c * CHUNK);
            lowest = minima[c];
        } else if (key_of(row.maxima[c]) >= cut.key) {
            Chunk chunk = row.chunk(c);
#pragma unroll
            for (u32 j = 0; j < PER_LANE; ++j) {
                bool keep = keeps(cut, chunk.score[j], c * CHUNK + j * WARP + lane());
                count += __popc(__ballot_sync(ALL_LANES, keep));
                lowest = keep ? fminf(lowest, chunk.score[j]) : lowest;
            }
            for (u32 step = WARP / 2; step > 0; step /= 2) {
                lowest = fminf(lowest, __shfl_xor_sync(ALL_LANES, lowest, step));
            }
        }
        if (lane() == 0) {
            h.count[c] = count;
            if (count > 0) {
                atomicAdd(&kept.count, count);
                atomicMin(&kept.lowest, key_of(lowest));
            }
        }
    }
}

// Called by all threads, after `count_kept` and a barrier: the ids of the kept tokens, by rising id. No barrier at the
// end.
__device__ __noinline__ void list_kept(const Row& row, Cut cut, Histogram& h, u32* ids) {
    // Where the ids of each chunk begin: `h.low[c]`.
    if (threadIdx.x < WARP) {
        u32 before = 0;
        for (u32 first = 0; first < row.chunks; first += WARP) {
            u32 c = first + lane();
            u32 count = c < row.chunks ? h.count[c] : 0;
            u32 running = before + running_sum(count);
            if (c < row.chunks) {
                h.low[c] = running - count;
            }
            before = __shfl_sync(ALL_LANES, running, WARP - 1);
        }
    }
    __syncthreads();
    for (u32 c = threadIdx.x / WARP; c < row.chunks; c += blockDim.x / WARP) {
        if (h.count[c] == 0) {
            continue;
        }
        Chunk chunk = row.chunk(c);
        u32* next = ids + h.low[c];
#pragma unroll
        for (u32 j = 0; j < PER_LANE; ++j) {
            u32 token = c * CHUNK + j * WARP + lane();
            bool keep = keeps(cut, chunk.score[j], token);
            u32 hits = __ballot_sync(ALL_LANES, keep);
            if (keep) {
                next[__popc(hits & ((1u << lane()) - 1))] = token;
            }
            next += __popc(hits);
        }
    }
}
