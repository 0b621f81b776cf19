// h[r][p][j] = scale_p * sum over k of A_p[j][k] x[r][k], the first of the two products of a low-rank adapter, for all
// parts p of a stacked layer: A and scales are those of the adapter of row r. Rows without one are left alone; behind
// the rank of a part, up to that of the slot, h is 0.
//
// Shapes: h f32 [R, parts * most_rank], x ELEMENT [R, inputs], slots as in lora/slots.cuh, adapters u32 [rows of the
// step], logit_rows u32 [R] or null; most_rank a multiple of SUMS, and no less than any slot's rank.
// Grid: x = tiles of TILE_ROWS rows, and for each of them blocks of SUMS sums. The warps of a block divide the inputs,
// so that few rows end soon. Neighbouring rows of one adapter share what is read of A, and sums what is read of x;
// which rows stand beside a row does not change its sums, whose order `inputs` alone decides.
// Limit: multiplications, TILE_ROWS * SUMS for TILE_ROWS + SUMS numbers read; of few rows, the latency of memory.
// Definition: `Backend::add_lora`; on the CPU, crates/cpu/src/lora.rs.
//
// Defines: ELEMENT.
#include "lora/slots.cuh"

// Sums of a row that a block computes: LANES, to which ranks are rounded up.
constexpr unsigned SUMS = LANES;
constexpr unsigned WARPS = LORA_THREADS / 32;
constexpr unsigned VALUES = TILE_ROWS * SUMS;

// Lanes of a warp take N neighbours at a time; the warps take turns.
template <int N>
__device__ __forceinline__ void add_products(float (&sums)[VALUES], const ELEMENT* a, const ELEMENT* x, unsigned rows,
                                             unsigned inputs) {
    for (unsigned k = threadIdx.x * N; k < inputs; k += LORA_THREADS * N) {
        Lanes<float, N> lanes[TILE_ROWS];
#pragma unroll
        for (unsigned row = 0; row < TILE_ROWS; ++row) {
            if (row < rows) {
                lanes[row] = load<N>(x + static_cast<unsigned long long>(row) * inputs + k);
            }
        }
#pragma unroll
        for (unsigned j = 0; j < SUMS; ++j) {
            const Lanes<float, N> weights = load<N>(a + static_cast<unsigned long long>(j) * inputs + k);
#pragma unroll
            for (unsigned row = 0; row < TILE_ROWS; ++row) {
                if (row < rows) {
#pragma unroll
                    for (int i = 0; i < N; ++i) {
                        sums[row * SUMS + j] += weights.at[i] * lanes[row].at[i];
                    }
                }
            }
        }
    }
}

// Adds up each of the values over the lanes of a warp, which halve what they hold in every step. Lane `lane` gets the
// sums of values 2 * lane and 2 * lane + 1.
__device__ __forceinline__ void add_lanes(float (&sums)[VALUES]) {
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

extern "C" __global__ void __launch_bounds__(LORA_THREADS)
    lora_shrink(float* __restrict__ h, const ELEMENT* __restrict__ x, const LoraSlot* __restrict__ slots,
                const unsigned* __restrict__ adapters, const unsigned* __restrict__ logit_rows, unsigned rows,
                unsigned inputs, unsigned parts, unsigned most_rank) {
    static_assert(VALUES == 64, "a warp's 32 lanes end with two values each");
    __shared__ float of_warps[WARPS * VALUES];
    const unsigned of_row = parts * most_rank, blocks = of_row / SUMS;
    const unsigned j = blockIdx.x % blocks * SUMS, part = j / most_rank, in_part = j % most_rank;
    const unsigned begin = blockIdx.x / blocks * TILE_ROWS, end = min(begin + TILE_ROWS, rows);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const RowAdapters of = {adapters, logit_rows};
    for (unsigned first = begin; first < end;) {
        const unsigned slot = of.of(first), count = of.run(first, end);
        // The same for all threads of the block.
        if (slot != NO_ADAPTER && in_part < slots[slot].rank) {
            const LoraSlot& term = slots[slot];
            float sums[VALUES] = {};
            if (in_part < term.ranks[part]) {
                // Behind the part's own rank A has zeros.
                const ELEMENT* a = term.a + static_cast<unsigned long long>(part * term.rank + in_part) * inputs;
                const ELEMENT* own = x + static_cast<unsigned long long>(first) * inputs;
                if (inputs % 4 == 0) {
                    add_products<4>(sums, a, own, count, inputs);
                } else {
                    add_products<1>(sums, a, own, count, inputs);
                }
            }
            add_lanes(sums);
            of_warps[warp * VALUES + 2 * lane] = sums[0];
            of_warps[warp * VALUES + 2 * lane + 1] = sums[1];
            __syncthreads();
            const unsigned row = threadIdx.x / SUMS;
            if (threadIdx.x < VALUES && row < count) {
                float sum = 0.0f;
#pragma unroll
                for (unsigned other = 0; other < WARPS; ++other) {
                    sum += of_warps[other * VALUES + threadIdx.x];
                }
                h[static_cast<unsigned long long>(first + row) * of_row + j + threadIdx.x % SUMS] =
                    term.scales[part] * sum;
            }
            __syncthreads();  // the next run overwrites `of_warps`
        }
        first += count;
    }
}
