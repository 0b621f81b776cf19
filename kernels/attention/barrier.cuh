// Barriers of the warp-specialised kernel: mbarriers in shared memory, by which those who load tell those who compute
// that a slot is full, and hear that it is empty; and named barriers of some of a block's warps. An mbarrier's phases
// alternate in parity: who waits for phase n waits for parity n % 2.
#pragma once

// `arrivals` end a phase.
__device__ __forceinline__ void init_barrier(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Has the phase wait for `bytes` of the copy engine too, and arrives for all 32 lanes of a warp.
__device__ __forceinline__ void arrive_expecting(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;\nmbarrier.arrive.shared::cta.b64 _, [%0], 32;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Once all copies that this thread has issued are done; does not wait for them.
__device__ __forceinline__ void arrive_with_copies(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Until the phase of `parity` has ended.
__device__ __forceinline__ void wait_barrier(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\nbra again;\nover:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Orders what this thread has read and written in shared memory, and what it was told of, before what the copy engine
// and matrix instructions do there next.
__device__ __forceinline__ void fence_proxies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Waits until `threads` threads are at barrier `id`, of 1 to 15; whole warps.
__device__ __forceinline__ void meet(unsigned id, unsigned threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
