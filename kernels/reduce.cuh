// Sums over a warp and over a block. The order of additions is fixed, so results are bitwise reproducible.
#pragma once

// Threads per block of every kernel that calls block_sum.
constexpr unsigned THREADS = 256;

// Sum over the 32 lanes, returned in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(0xffffffff, x, distance);
    }
    return x;
}

// Sum over the block, returned in every thread. All THREADS threads must call it.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float warps[THREADS / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = x;
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (unsigned warp = 0; warp < THREADS / 32; ++warp) {
        sum += warps[warp];
    }
    __syncthreads();  // the next call overwrites `warps`
    return sum;
}
