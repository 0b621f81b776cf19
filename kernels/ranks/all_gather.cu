// out[r] = [x[r] of rank 0, x[r] of rank 1, ..], for elements [first, first + count) of x. Half the blocks write x to
// every other rank, chunk by chunk, half bring what has come to its rows.
//
// Shapes: out f32 [rows, RANKS * width], x f32 [rows, width]; memory as in exchange.cuh.
// Grid: the same on every rank; blocks of 512 threads. Blocks wait only for blocks of a lower number on other ranks.
// Limit: the link: (RANKS - 1) * 4 bytes per element of x leave each GPU.
// Definition: `Ranked::all_gather`; on the CPU, crates/cpu/src/fabric.rs.
//
// Defines: RANKS (2, 4 or 8).
#include "ranks/exchange.cuh"

template <int N>
__device__ __forceinline__ void gather(const Exchange& at, float* out, const float* x, unsigned long long first,
                                       unsigned count, unsigned width, unsigned chunk) {
    const unsigned number = number_of(at), chunks = (count + chunk - 1) / chunk;
    const unsigned blocks = gridDim.x / 2, block = blockIdx.x % blocks;
    const bool sends = blockIdx.x < blocks;
    const float* own = x + first;
    for (unsigned c = block; c < chunks; c += blocks) {
        const unsigned begin = c * chunk, end = min(begin + chunk, count);
        if (sends) {
#pragma unroll 4
            for (unsigned i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
                const Lanes<float, N> sent = load<N>(own + i);
#pragma unroll
                for (unsigned other = 1; other < RANKS; other++) {
                    store<N>(floats_of(at, number, at.rank, (at.rank + other) % RANKS) + i, sent);
                }
            }
            tell(at, number, c);
        } else {
            hear(at, number, c);
#pragma unroll 2
            for (unsigned i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
                const unsigned long long row = (first + i) / width, column = (first + i) % width;
#pragma unroll
                for (unsigned sender = 0; sender < RANKS; sender++) {
                    const float* from = sender == at.rank ? own : floats_of(at, number, sender, at.rank);
                    store<N>(out + (row * RANKS + sender) * width + column, load<N>(from + i));
                }
            }
        }
    }
    end_exchange(at, number);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    all_gather(float* out, const float* x, unsigned long long first, unsigned count, unsigned width, unsigned chunk,
               const RankMemory* ranks, unsigned* last, const unsigned* aborted, unsigned rank, unsigned most_lines,
               unsigned most_floats) {
    if (count == 0) {
        return;
    }
    const Exchange at = {ranks, last, aborted, rank, most_lines, most_floats};
    if (width % 4 == 0) {
        gather<4>(at, out, x, first, count, width, chunk);
    } else {
        gather<1>(at, out, x, first, count, width, chunk);
    }
}
