// Blocks of a Hopper cluster: they meet, and read each other's shared memory. A cluster is `size` neighbouring blocks
// of a grid of one dimension; a block's rank is its index modulo `size`.
#pragma once

// Blocks until all threads of the cluster that have not ended are here. What they wrote before is visible behind.
__device__ __forceinline__ void meet_cluster(unsigned size) {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// The same, but nothing of what was written need be visible.
__device__ __forceinline__ void meet_cluster_again(unsigned size) {
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}

// Four numbers at `address`, a multiple of 16, in the shared memory of block `rank`.
__device__ __forceinline__ float4 load_of_peer(unsigned address, unsigned rank, unsigned size) {
    float4 numbers;
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];\n}"
                 : "=f"(numbers.x), "=f"(numbers.y), "=f"(numbers.z), "=f"(numbers.w)
                 : "r"(address), "r"(rank)
                 : "memory");
    return numbers;
}

// Arrives at the barrier of block `rank` that lies where `barrier` does here (attention/barrier.cuh).
__device__ __forceinline__ void arrive_at_peer(unsigned barrier, unsigned rank, unsigned size) {
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [at];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}
