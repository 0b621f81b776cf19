// Copies by tensor map: the copy engine of Hopper brings boxes of a matrix in global memory, and zeros for what lies
// outside.
#pragma once

// A matrix, the size of its boxes and how they lie in shared memory, as the driver encodes them (`TensorMap` of
// crates/cuda/src/driver/tensor_map.rs). A parameter of the kernel (`__grid_constant__`).
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// Fetches the map, so that the first copy does not wait for it.
__device__ __forceinline__ void fetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies the box whose first element is `x` of row `y` and signals `barrier`, which waits for the bytes of a whole box.
// `to` is a multiple of 128, and of 1024 where boxes are swizzled.
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap& map, unsigned x, unsigned y, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}

// Copies a box, as `copy_box`, to every block of a cluster of `size` (cluster.cuh): it lands at `to` of that block's
// memory, and signals that block's `barrier`.
__device__ __forceinline__ void copy_box_to_cluster(unsigned to, const TensorMap& map, unsigned x, unsigned y,
                                                    unsigned barrier, unsigned size) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(static_cast<unsigned short>((1 << size) - 1))
        : "memory");
}
