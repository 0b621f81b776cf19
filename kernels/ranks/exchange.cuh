// How the ranks of one model exchange buffers: GPUs of one host, each of which writes into the memory of the others. An
// exchange has a number, the same on all ranks; numbers of even and odd exchanges have memory of their own. A rank
// hears from every other one in each exchange, so those have then ended the exchange before, and what it writes next
// belongs to memory that nobody reads any more. A launch without elements is no exchange: it only loads the kernel.
//
// Defines: RANKS (1, 2, 4 or 8).
#pragma once

#include "lanes.cuh"

// The most blocks of an exchange: four on each of 128 multiprocessors.
constexpr unsigned MOST_BLOCKS = 512;

// The most chunks of a buffer, each of which has a word that says who has written it.
constexpr unsigned MOST_CHUNKS = 1024;

// Turns of a wait after which a thread looks whether it is in vain: in host memory, which is far.
constexpr unsigned TURNS = 1024;

constexpr unsigned OTHERS = RANKS - 1;

// A line is 128 bytes, which eight neighbouring threads of a warp store, 16 each: fifteen words and, as the last one,
// the number of the exchange. NVLink brings a line as a whole (NCCL relies on that, too): who sees the number sees the
// words, so that neither a barrier nor a fence is needed. A warp stores and loads four lines at once. This is a
// thread's part.
struct alignas(16) LinePart {
    unsigned long long words[2];
};

constexpr unsigned LINE_PARTS = 8;

// Lines of a warp, and their words.
constexpr unsigned WARP_LINES = 4;
constexpr unsigned WARP_WORDS = WARP_LINES * (2 * LINE_PARTS - 1);

// One rank's memory, as all ranks see it. Each of the others has a place of its own (`place_of`).
struct RankMemory {
    // [2][OTHERS][most lines][LINE_PARTS]
    LinePart* lines;
    // [2][OTHERS][most floats]
    float* floats;
    // [OTHERS][MOST_CHUNKS]: the number of the last exchange in which a chunk was written.
    unsigned* written;
    // Of `round_trip` alone.
    unsigned* bell;
};

// What a kernel is told of all ranks.
struct Exchange {
    const RankMemory* ranks;
    // [MOST_BLOCKS] of this rank: the number of the last exchange, once for each block.
    unsigned* last;
    // In host memory. Not zero: a rank has failed, and the others stop waiting for it.
    const volatile unsigned* aborted;
    unsigned rank, most_lines, most_floats;
};

__device__ __forceinline__ void store_release(unsigned* to, unsigned value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* from) {
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ void fence_for_all() {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// Called by all lanes of a warp: `to` and `from` are of its four lines.
__device__ __forceinline__ void store_lines(LinePart* to, unsigned long long low, unsigned long long high) {
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high) : "memory");
}

__device__ __forceinline__ void load_lines(const LinePart* from, unsigned long long& low, unsigned long long& high) {
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(from) : "memory");
}

// The place of `sender` among the others of `receiver`.
__device__ __forceinline__ unsigned place_of(unsigned sender, unsigned receiver) {
    return sender < receiver ? sender : sender - 1;
}

// The number behind `number`. Memory starts as zeros, so 0 is none, and -1 neither: even and odd numbers alternate.
__device__ __forceinline__ unsigned next_number(unsigned number) {
    return number < 0xfffffffeu ? number + 1 : 1;
}

__device__ __forceinline__ unsigned number_of(const Exchange& at) {
    return next_number(at.last[blockIdx.x]);
}

// Called by all threads of a block at its end.
__device__ __forceinline__ void end_exchange(const Exchange& at, unsigned number) {
    __syncthreads();
    // Also for blocks that a smaller grid has not.
    for (unsigned block = blockIdx.x + threadIdx.x * gridDim.x; block < MOST_BLOCKS; block += blockDim.x * gridDim.x) {
        at.last[block] = number;
    }
}

// Where `sender` writes lines, or floats, of exchange `number` for `receiver`.
__device__ __forceinline__ LinePart* lines_of(const Exchange& at, unsigned number, unsigned sender, unsigned receiver) {
    const unsigned long long half = number % 2 * OTHERS + place_of(sender, receiver);
    return at.ranks[receiver].lines + half * at.most_lines * LINE_PARTS;
}

__device__ __forceinline__ float* floats_of(const Exchange& at, unsigned number, unsigned sender, unsigned receiver) {
    const unsigned long long half = number % 2 * OTHERS + place_of(sender, receiver);
    return at.ranks[receiver].floats + half * at.most_floats;
}

__device__ __forceinline__ unsigned* written_of(const Exchange& at, unsigned sender, unsigned receiver) {
    return at.ranks[receiver].written + place_of(sender, receiver) * MOST_CHUNKS;
}

// Tells all others that a chunk is written; called by all threads of a block, which have written it.
__device__ __forceinline__ void tell(const Exchange& at, unsigned number, unsigned chunk) {
    __syncthreads();
    if (threadIdx.x < RANKS && threadIdx.x != at.rank) {
        fence_for_all();
        store_release(written_of(at, at.rank, threadIdx.x) + chunk, number);
    }
}

// A sender is one exchange ahead at most. Any other number is old, however far away: a chunk may not have been written
// for long.
__device__ __forceinline__ bool has_come(unsigned found, unsigned number) {
    return found == number || found == next_number(number);
}

__device__ __forceinline__ void wait_for_number(const Exchange& at, const unsigned* word, unsigned number) {
    for (unsigned turn = 1; !has_come(load_acquire(word), number); turn++) {
        if (turn % TURNS == 0 && *at.aborted != 0) {
            break;
        }
    }
}

// Returns when all others have written a chunk; called by all threads of a block.
__device__ __forceinline__ void hear(const Exchange& at, unsigned number, unsigned chunk) {
    if (threadIdx.x < RANKS && threadIdx.x != at.rank) {
        wait_for_number(at, written_of(at, threadIdx.x, at.rank) + chunk, number);
    }
    __syncthreads();
}

// Stores sums, or adds them to what is there.
template <int N>
__device__ __forceinline__ void put(float* out, Lanes<float, N> sums, bool adds) {
    if (adds) {
        const Lanes<float, N> before = load<N>(out);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sums.at[i] = __fadd_rn(before.at[i], sums.at[i]);
        }
    }
    store<N>(out, sums);
}
