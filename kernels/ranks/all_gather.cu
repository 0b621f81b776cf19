// out[r] = [x[r] of rank 0, x[r] of rank 1, ..]
//
// Shapes: out f32 [rows, RANKS * width], x f32 [rows, width]; mailboxes as in meet.cuh.
// Grid: as that of all_reduce.cu.
// Limit: the link: (RANKS - 1) * 4 bytes per element of x are read from other GPUs.
// Definition: `Ranked::all_gather`; on the CPU, src/backend/cpu/fabric.rs.
//
// Defines: RANKS.
#include "lanes.cuh"
#include "ranks/meet.cuh"

template <int N>
__device__ __forceinline__ void gather(float* out, const float* x, unsigned long long count, unsigned width,
                                       const Meeting& at) {
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
                const unsigned long long row = (first + i) / width, column = (first + i) % width;
#pragma unroll
                for (unsigned rank = 0; rank < RANKS; rank++) {
                    store<N>(out + (row * RANKS + rank) * width + column, load<N>(at.ranks[rank].mailbox + half + i));
                }
            }
        }
    }
    if (threadIdx.x == 0) {
        at.had[blockIdx.x] = number;
    }
}

extern "C" __global__ void __launch_bounds__(512)
    all_gather(float* out, const float* x, unsigned long long rows, unsigned width, const RankMemory* ranks,
               unsigned* had, const unsigned* aborted, unsigned rank, unsigned half) {
    const Meeting at = {ranks, had, aborted, rank, half};
    if (width % 4 == 0) {
        gather<4>(out, x, rows * width, width, at);
    } else {
        gather<1>(out, x, rows * width, width, at);
    }
}
