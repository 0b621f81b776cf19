// h[r][c][p][j] = sum over k of A_p[j][k] x[r][k], k of chunk c of the inputs: the first of the two products of a
// low-rank adapter, for all parts p of a stacked layer. A is that of the adapter of row r. Rows without one, and what
// lies behind a part's rank rounded up to LANES, are left alone. lora_expand adds up the chunks and scales.
//
// Shapes: h f32 [R, chunks, parts * most_rank], x ELEMENT [R, inputs], slots as in lora/slots.cuh, adapters u32 [rows
// of the step], logit_rows u32 [R] or null; most_rank a multiple of LANES, and no less than any slot's rank.
// Grid: x = tiles of TILE_ROWS rows; for each of them parts; for each part blocks of SUMS ranks; for each of these
// chunks of CHUNK_INPUTS inputs; and for each chunk `groups` blocks that divide the runs of the tile. The warps of a
// block divide the chunk. Two-byte elements go through tensor cores, the ranks as rows of the left operand and the
// tile's rows as columns of the right one: no sum passes between lanes. Which rows stand beside a row does not change
// its sums, whose order `inputs` alone decides.
// The next kernel may begin at once. The slots' weights are read before the kernel in front has ended. `x` may change
// while this kernel runs: it is not `__restrict__`, so that no load of it passes the wait.
// Limit: the latency of memory.
// Definition: `Backend::add_lora`; on the CPU, crates/cpu/src/lora.rs.
//
// Defines: ELEMENT.
#include "attention/mma.cuh"
#include "lora/slots.cuh"
#include "overlap.cuh"

// Sums of a row that a block computes: rows of the left operand.
constexpr unsigned SUMS = 16;
constexpr unsigned WARPS = LORA_THREADS / 32;
constexpr unsigned WARP_INPUTS = CHUNK_INPUTS / WARPS;

// What lanes add up by themselves: LANES sums of each row.
constexpr unsigned VALUES = TILE_ROWS * LANES;

// What a warp multiplies.
struct Share {
    const ELEMENT* a;        // [up to SUMS, inputs]
    const ELEMENT* x;        // [rows, inputs]
    bool both;               // A has SUMS rows, not LANES
    unsigned rows, inputs;   // of the run; of a row
    unsigned begin, end;     // inputs of the warp
};

// The warp's sums, `to` [TILE_ROWS, SUMS]; of rows behind `rows` anything. `inputs` is a multiple of 8. A step is two
// tensor-core products: a lane has 8 neighbours, 16 bytes, of each row of the operands. Which of their places an input
// has does not matter, if it is the same in both.
template <class T>
__device__ __forceinline__ void multiply_share(float* to, const Share& share) {
    using Words = Lanes<unsigned, 4>;
    constexpr unsigned STEP_INPUTS = 32, STEPS = WARP_INPUTS / STEP_INPUTS;
    const unsigned row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    Words low[STEPS], high[STEPS], right[STEPS];
    const auto at = [&](unsigned step) { return share.begin + step * STEP_INPUTS + pair * 8; };
    const auto words = [&](const ELEMENT* from, unsigned row, unsigned k, bool real) {
        const unsigned long long apart = share.inputs;
        return real && k < share.end ? *reinterpret_cast<const Words*>(from + row * apart + k) : Words{};
    };
#pragma unroll
    for (unsigned step = 0; step < STEPS; ++step) {
        low[step] = words(share.a, row, at(step), true);
        high[step] = words(share.a, row + LANES, at(step), share.both);
    }
    wait_for_kernels_before();
#pragma unroll
    for (unsigned step = 0; step < STEPS; ++step) {
        right[step] = words(share.x, row, at(step), row < share.rows);
    }
    float sum[4] = {};
#pragma unroll
    for (unsigned step = 0; step < STEPS; ++step) {
#pragma unroll
        for (unsigned half = 0; half < 4; half += 2) {
            const unsigned left[4] = {low[step].at[half], high[step].at[half], low[step].at[half + 1],
                                      high[step].at[half + 1]};
            multiply<T>(sum, left, right[step].at[half], right[step].at[half + 1]);
        }
    }
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        to[(2 * pair + i % 2) * SUMS + row + i / 2 * LANES] = sum[i];
    }
}

// Adds up each of the values over the lanes of a warp, which halve what they hold in every step. Lane `lane` gets the
// sums of values 2 * lane and 2 * lane + 1.
__device__ __forceinline__ void add_lanes(float (&sums)[VALUES]) {
    static_assert(VALUES == 64, "a warp's 32 lanes end with two values each");
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned half = VALUES / 2, distance = 16; distance > 0; half /= 2, distance /= 2) {
        const bool upper = lane & distance;
#pragma unroll
        for (unsigned i = 0; i < VALUES / 2; ++i) {
            if (i < half) {
                const float given = upper ? sums[i] : sums[i + half];
                const float kept = upper ? sums[i + half] : sums[i];
                sums[i] = kept + __shfl_xor_sync(0xffffffff, given, distance);
            }
        }
    }
}

// The same as multiply_share, for any element and number of inputs; lanes take N neighbours at a time.
template <int N>
__device__ __forceinline__ void add_share(float* to, const Share& share) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned long long apart = share.inputs;
    wait_for_kernels_before();
    for (unsigned first = 0; first < (share.both ? SUMS : LANES); first += LANES) {
        float sums[VALUES] = {};
        for (unsigned k = share.begin + lane * N; k < share.end; k += 32 * N) {
            Lanes<float, N> lanes[TILE_ROWS];
#pragma unroll
            for (unsigned row = 0; row < TILE_ROWS; ++row) {
                if (row < share.rows) {
                    lanes[row] = load<N>(share.x + row * apart + k);
                }
            }
#pragma unroll
            for (unsigned j = 0; j < LANES; ++j) {
                const Lanes<float, N> weights = load<N>(share.a + (first + j) * apart + k);
#pragma unroll
                for (unsigned row = 0; row < TILE_ROWS; ++row) {
                    if (row < share.rows) {
#pragma unroll
                        for (int i = 0; i < N; ++i) {
                            sums[row * LANES + j] += weights.at[i] * lanes[row].at[i];
                        }
                    }
                }
            }
        }
        add_lanes(sums);
        float* own = to + 2 * lane / LANES * SUMS + first + 2 * lane % LANES;
        own[0] = sums[0];
        own[1] = sums[1];
    }
}

template <class T>
__device__ __forceinline__ void sum_share(float* to, const Share& share) {
    if constexpr (sizeof(T) == 2) {
        if (share.inputs % 8 == 0) {
            return multiply_share<T>(to, share);
        }
    } else if (share.inputs % 4 == 0) {
        return add_share<4>(to, share);
    }
    add_share<1>(to, share);
}

extern "C" __global__ void __launch_bounds__(LORA_THREADS)
    lora_shrink(float* h, const ELEMENT* x, const LoraSlot* __restrict__ slots,
                const unsigned* __restrict__ adapters, const unsigned* __restrict__ logit_rows, unsigned rows,
                unsigned inputs, unsigned parts, unsigned most_rank, unsigned groups) {
    __shared__ float of_warps[WARPS * TILE_ROWS * SUMS];
    begin_next_kernel();
    const unsigned blocks = (most_rank + SUMS - 1) / SUMS, chunks = (inputs + CHUNK_INPUTS - 1) / CHUNK_INPUTS;
    unsigned rest = blockIdx.x;
    const unsigned group = rest % groups;
    rest /= groups;
    const unsigned chunk = rest % chunks;
    rest /= chunks;
    const unsigned in_part = rest % blocks * SUMS;
    rest /= blocks;
    const unsigned part = rest % parts, begin = rest / parts * TILE_ROWS;
    const unsigned warp = threadIdx.x / 32, warp_begin = chunk * CHUNK_INPUTS + warp * WARP_INPUTS;
    TileRuns run(adapters, logit_rows, begin, rows, group, groups);
    while (run.next()) {
        const LoraSlot& term = slots[run.slot];
        // The same for all threads of the block.
        if (in_part < term.ranks[part]) {
            const bool both = in_part + LANES < term.ranks[part];
            const unsigned long long first = begin + run.first;
            const Share share = {term.a + static_cast<unsigned long long>(part * term.rank + in_part) * inputs,
                                 x + first * inputs,
                                 both,
                                 run.count,
                                 inputs,
                                 warp_begin,
                                 min(warp_begin + WARP_INPUTS, inputs)};
            sum_share<ELEMENT>(of_warps + warp * TILE_ROWS * SUMS, share);
            __syncthreads();
            const unsigned row = threadIdx.x / SUMS, j = threadIdx.x % SUMS;
            if (row < run.count && j < (both ? SUMS : LANES)) {
                float sum = 0.0f;
#pragma unroll
                for (unsigned other = 0; other < WARPS; ++other) {
                    sum += of_warps[other * TILE_ROWS * SUMS + threadIdx.x];
                }
                h[((first + row) * chunks + chunk) * parts * most_rank + part * most_rank + in_part + j] = sum;
            }
            __syncthreads();  // the next run overwrites `of_warps`
        }
    }
    // lora_expand waits for this kernel alone, and adds to what those in front wrote.
    wait_for_kernels_before();
}
