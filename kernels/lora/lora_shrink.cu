// h[r][p][j] = scale_p * sum over k of A_p[j][k] x[r][k], the first of the two products of a low-rank adapter, for all
// parts p of a stacked layer: A and scales are those of the adapter of row r. Rows without one are left alone; behind
// the rank of a part, up to that of the slot, h is 0.
//
// Shapes: h f32 [R, parts * most_rank], x ELEMENT [R, inputs], slots as in lora/slots.cuh, adapters u32 [rows of the
// step], logit_rows u32 [R] or null; most_rank a multiple of LANES, and no less than any slot's rank.
// Grid: x = tiles of TILE_ROWS rows, and for each of them blocks of 8 sums, one a warp. Neighbouring rows of one
// adapter share what is read of A; which rows stand beside a row does not change its sums, whose order `inputs` alone
// decides.
// Limit: bandwidth of the second-level cache, sizeof(ELEMENT) * inputs * (rank + rows) bytes a tile and part.
// Definition: `Backend::add_lora`; on the CPU, crates/cpu/src/lora.rs.
//
// Defines: ELEMENT.
#include "lora/slots.cuh"
#include "reduce.cuh"

// Lanes of a warp take N neighbours at a time.
template <int N>
__device__ __forceinline__ void add_products(float (&sums)[TILE_ROWS], const ELEMENT* a, const ELEMENT* x,
                                             unsigned rows, unsigned inputs) {
    for (unsigned k = threadIdx.x % 32 * N; k < inputs; k += 32 * N) {
        const Lanes<float, N> weights = load<N>(a + k);
#pragma unroll
        for (unsigned row = 0; row < TILE_ROWS; ++row) {
            if (row < rows) {
                const Lanes<float, N> lanes = load<N>(x + static_cast<unsigned long long>(row) * inputs + k);
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    sums[row] += weights.at[i] * lanes.at[i];
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(LORA_THREADS)
    lora_shrink(float* __restrict__ h, const ELEMENT* __restrict__ x, const LoraSlot* __restrict__ slots,
                const unsigned* __restrict__ adapters, const unsigned* __restrict__ logit_rows, unsigned rows,
                unsigned inputs, unsigned parts, unsigned most_rank) {
    const unsigned of_row = parts * most_rank, warps = LORA_THREADS / 32, blocks = (of_row + warps - 1) / warps;
    const unsigned j = blockIdx.x % blocks * warps + threadIdx.x / 32, part = j / most_rank, in_part = j % most_rank;
    const unsigned begin = blockIdx.x / blocks * TILE_ROWS, end = min(begin + TILE_ROWS, rows);
    const RowAdapters of = {adapters, logit_rows};
    if (part >= parts) {
        return;
    }
    for (unsigned first = begin; first < end;) {
        const unsigned slot = of.of(first), count = of.run(first, end);
        if (slot != NO_ADAPTER && in_part < slots[slot].rank) {
            const LoraSlot& term = slots[slot];
            float sums[TILE_ROWS] = {};
            if (in_part < term.ranks[part]) {
                const ELEMENT* a = term.a + static_cast<unsigned long long>(part * term.rank + in_part) * inputs;
                const ELEMENT* own = x + static_cast<unsigned long long>(first) * inputs;
                if (inputs % LANES == 0) {
                    add_products<LANES>(sums, a, own, count, inputs);
                } else {
                    add_products<1>(sums, a, own, count, inputs);
                }
            }
#pragma unroll
            for (unsigned row = 0; row < TILE_ROWS; ++row) {
                const float sum = warp_sum(sums[row]);
                if (row < count && threadIdx.x % 32 == 0) {
                    h[static_cast<unsigned long long>(first + row) * of_row + j] = term.scales[part] * sum;
                }
            }
        }
        first += count;
    }
}
