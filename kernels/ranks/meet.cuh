// Where the ranks of one model meet: GPUs of one host that read each other's memory. A rank's blocks each write their
// own part of its mailbox, meet the blocks of the same number on the other ranks, and read theirs. Halves of the
// mailbox are used in turn: a block writes one again only after the next meeting, at which all have read it. So the
// same places must belong to the same block in every exchange, whatever its grid: place p to block p / (OWN *
// blockDim.x) of the grid's, which are MOST_BLOCKS or all that there are places for.
//
// Defines: RANKS (1, 2, 4 or 8).
#pragma once

constexpr unsigned MOST_BLOCKS = 64;

// Neighbouring floats that one thread moves.
constexpr unsigned OWN = 4;

// Turns of a wait after which a block looks whether it is in vain: in host memory, which is far.
constexpr unsigned TURNS = 1024;

// One rank's memory, as all ranks see it.
struct RankMemory {
    // Two halves of `half` floats.
    float* mailbox;
    // [RANKS][MOST_BLOCKS]: the number of the meeting to which a rank's block has come last.
    unsigned* came;
};

// What a kernel is told of all ranks.
struct Meeting {
    const RankMemory* ranks;
    // [MOST_BLOCKS] of this rank: how many meetings each block has had.
    unsigned* had;
    // In host memory. Not zero: a rank has failed, and the others stop waiting for it.
    const volatile unsigned* aborted;
    unsigned rank, half;
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

// Returns when block blockIdx.x of every rank has come to meeting `number`: what they wrote before is then visible
// here.
__device__ __forceinline__ void meet(const Meeting& at, unsigned number) {
    __syncthreads();
    if (threadIdx.x < RANKS) {
        fence_for_all();
        store_release(at.ranks[threadIdx.x].came + at.rank * MOST_BLOCKS + blockIdx.x, number);
        const unsigned* came = at.ranks[at.rank].came + threadIdx.x * MOST_BLOCKS + blockIdx.x;
        // Numbers wrap around; a rank is at most one meeting ahead.
        for (unsigned turn = 1; static_cast<int>(load_acquire(came) - number) < 0; turn++) {
            if (turn % TURNS == 0 && *at.aborted != 0) {
                break;
            }
        }
    }
    __syncthreads();
}
