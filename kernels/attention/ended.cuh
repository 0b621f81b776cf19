// The end of a launch of the kernels for Hopper: how blocks wait for the partial states of all, what they zero, and how
// they leave. All blocks are resident, so they can wait for one another; this is faster than launching a second kernel
// that merges.
#pragma once

#include "attention/tile.cuh"
#include "attention/wide_tiles.cuh"

// Load-acquire: sees everything written before the value it reads.
__device__ __forceinline__ unsigned load_acquire(const unsigned* from) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// Publishes the block's partial states, if the plan has any. Called by all threads, which have written them.
__device__ __forceinline__ void tell_states(unsigned* words) {
    __syncthreads();
    if (words[PARTIAL_SLOTS] != 0 && threadIdx.x == 0) {
        __threadfence();
        atomicAdd(words + ENDED_BLOCKS, 1);
    }
}

// Waits until all blocks have published theirs. Called by all threads, behind `tell_states`.
__device__ __forceinline__ void wait_for_others(unsigned* words) {
    if (words[PARTIAL_SLOTS] != 0) {
        if (threadIdx.x == 0) {
            while (load_acquire(words + ENDED_BLOCKS) < gridDim.x) {
            }
        }
        __syncthreads();
    }
}

// Both.
__device__ __forceinline__ void wait_for_states(unsigned* words) {
    tell_states(words);
    wait_for_others(words);
}

// Called by one warpgroup of each block: zeroes the output rows past those of the plan, up to `rows_padded`. They see
// nothing.
__device__ __forceinline__ void zero_padding(const Job& job, unsigned rows_padded) {
    const unsigned width = job.group * job.kv_heads * VALUE_DIM / 2, padding = job.words[REAL_ROWS] * width;
    for (unsigned i = padding + blockIdx.x * GROUP_THREADS + threadIdx.x % GROUP_THREADS; i < rows_padded * width;
         i += gridDim.x * GROUP_THREADS) {
        reinterpret_cast<unsigned*>(job.out)[i] = 0;
    }
    if (job.lse) {
        const unsigned q_heads = job.group * job.kv_heads;
        for (unsigned i = job.words[REAL_ROWS] * q_heads + blockIdx.x * GROUP_THREADS + threadIdx.x % GROUP_THREADS;
             i < rows_padded * q_heads; i += gridDim.x * GROUP_THREADS) {
            job.lse[i] = NO_SCORE;
        }
    }
}

// Called by one warpgroup of each block, after its wait for the states: the last block resets the counters for the next
// launch.
__device__ __forceinline__ void leave(unsigned* words) {
    if (threadIdx.x % GROUP_THREADS == 0 && atomicAdd(words + LEFT_BLOCKS, 1) == gridDim.x - 1) {
        words[NARROW_TICKET] = 0;
        words[ENDED_BLOCKS] = 0;
        words[LEFT_BLOCKS] = 0;
        words[OPENED_ROWS] = 0;
    }
}
