// Barriers of the warp-specialised kernel: mbarriers in shared memory, by which copying threads signal that a slot is
// full and computing threads that it is empty, and named barriers among some of a block's warps. An mbarrier's phases
// alternate in parity: to wait for phase n, wait for parity n % 2.
#pragma once

// A phase ends after `arrivals` arrivals.
__device__ __forceinline__ void init_barrier(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the phase also wait for `bytes` from the copy engine.
__device__ __forceinline__ void expect_bytes(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Makes the phase also wait for `bytes` from the copy engine, and arrives for all 32 lanes of a warp.
__device__ __forceinline__ void arrive_expecting(unsigned barrier, unsigned bytes) {
    asm volatile(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;\n"
        "mbarrier.arrive.shared::cta.b64 _, [%0], 32;" ::"r"(barrier),
        "r"(bytes)
        : "memory");
}

// True for one lane of the warp, which is here as a whole. The compiler then knows that no other lane is: it gives
// copies their addresses without a loop over lanes.
__device__ __forceinline__ bool is_elected() {
    unsigned elected;
    asm volatile("{\n.reg .pred elected;\nelect.sync _|elected, 0xffffffff;\nselp.u32 %0, 1, 0, elected;\n}"
                 : "=r"(elected));
    return elected != 0;
}

// Arrives when all copies issued by this thread are complete. Does not block.
__device__ __forceinline__ void arrive_with_copies(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Blocks until the phase of `parity` has ended.
__device__ __forceinline__ void wait_barrier(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Orders this thread's earlier reads and writes of shared memory, and those it has synchronised with, before later
// accesses by the copy engine and by matrix instructions.
__device__ __forceinline__ void fence_proxies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Copies `bytes` with the copy engine and signals `barrier`. Addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// A position in a ring of LENGTH stages, and the parity of its phase.
template <unsigned LENGTH>
struct Cursor {
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ void next() {
        stage = stage + 1 == LENGTH ? 0 : stage + 1;
        parity ^= stage == 0;
    }
    // Passes `count` stages.
    __device__ __forceinline__ void pass(unsigned count) {
        stage += count;
        parity ^= stage / LENGTH % 2;
        stage %= LENGTH;
    }
};

// Blocks until `threads` threads (whole warps) have reached barrier `id`, 1 to 15.
__device__ __forceinline__ void meet(unsigned id, unsigned threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
