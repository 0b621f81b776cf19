// x becomes the sum of that of all ranks, folded pair by pair as a balanced tree in rank order: the same bits on each.
//
// Shapes: x f32 [count]; mailboxes as in meet.cuh, whose halves are multiples of four floats.
// Grid: the same number of blocks on every rank, at most MOST_BLOCKS and as many as run at once.
// Limit: the link: (RANKS - 1) * 4 bytes per element are read from other GPUs. For two ranks no order of exchange reads
// less of f32; for more the two steps of scatter and gather would (2 * (RANKS - 1) / RANKS).
// Definition: `Ranked::all_reduce`; on the CPU, src/backend/cpu/fabric.rs.
//
// Defines: RANKS.
#include "lanes.cuh"
#include "ranks/meet.cuh"

template <int N>
__device__ __forceinline__ Lanes<float, N> sum_of_ranks(const Meeting& at, unsigned long long place) {
    Lanes<float, N> parts[RANKS];
#pragma unroll
    for (unsigned rank = 0; rank < RANKS; rank++) {
        parts[rank] = load<N>(at.ranks[rank].mailbox + place);
    }
#pragma unroll
    for (unsigned apart = 1; apart < RANKS; apart *= 2) {
#pragma unroll
        for (unsigned rank = 0; rank < RANKS; rank += 2 * apart) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                parts[rank].at[i] += parts[rank + apart].at[i];
            }
        }
    }
    return parts[0];
}

template <int N>
__device__ __forceinline__ void reduce(float* x, unsigned long long count, const Meeting& at) {
    unsigned number = at.had[blockIdx.x];
    const unsigned own = (blockIdx.x * blockDim.x + threadIdx.x) * OWN, step = gridDim.x * blockDim.x * OWN;
    for (unsigned long long first = 0; first < count; first += at.half) {
        const unsigned some = static_cast<unsigned>(min(static_cast<unsigned long long>(at.half), count - first));
        number++;
        const unsigned long long half = number % 2 * static_cast<unsigned long long>(at.half);
        float* mailbox = at.ranks[at.rank].mailbox + half;
        for (unsigned begin = own; begin < some; begin += step) {
            for (unsigned i = begin; i < min(begin + OWN, some); i += N) {
                store<N>(mailbox + i, load<N>(x + first + i));
            }
        }
        meet(at, number);
        for (unsigned begin = own; begin < some; begin += step) {
            for (unsigned i = begin; i < min(begin + OWN, some); i += N) {
                store<N>(x + first + i, sum_of_ranks<N>(at, half + i));
            }
        }
    }
    if (threadIdx.x == 0) {
        at.had[blockIdx.x] = number;
    }
}

extern "C" __global__ void __launch_bounds__(512)
    all_reduce(float* x, unsigned long long count, const RankMemory* ranks, unsigned* had, const unsigned* aborted,
               unsigned rank, unsigned half) {
    const Meeting at = {ranks, had, aborted, rank, half};
    if (count % 4 == 0) {
        reduce<4>(x, count, at);
    } else {
        reduce<1>(x, count, at);
    }
}
