// out[r][n] += sum over j of B[n][j] h[r][p][j], j rising, the second of the two products of a low-rank adapter: B is
// that of the adapter of row r, p the part of a stacked layer that output n belongs to. Rows without an adapter, and
// parts for which theirs has nothing, are left alone.
//
// Shapes: out OUT [R, outputs], h f32 [R, parts * most_rank] as lora_shrink leaves it, slots as in lora/slots.cuh,
// adapters u32 [rows of the step], logit_rows u32 [R] or null, part_of u8 [outputs], or null where there is one part.
// Grid: x = tiles of TILE_ROWS rows, and for each of them blocks over the outputs, one a thread. Neighbouring rows of
// one adapter share what is read of B; which rows stand beside a row does not change its sums.
// Limit: bandwidth, sizeof(ELEMENT) * rank bytes an output and tile, and 2 * sizeof(OUT) an output and row.
// Definition: `Backend::add_lora`; on the CPU, crates/cpu/src/lora.rs.
//
// Defines: ELEMENT, OUT.
#include "lora/slots.cuh"

extern "C" __global__ void __launch_bounds__(LORA_THREADS)
    lora_expand(OUT* __restrict__ out, const float* __restrict__ h, const LoraSlot* __restrict__ slots,
                const unsigned* __restrict__ adapters, const unsigned* __restrict__ logit_rows,
                const unsigned char* __restrict__ part_of, unsigned rows, unsigned outputs, unsigned parts,
                unsigned most_rank) {
    const unsigned of_row = parts * most_rank, blocks = (outputs + LORA_THREADS - 1) / LORA_THREADS;
    const unsigned n = blockIdx.x % blocks * LORA_THREADS + threadIdx.x;
    const unsigned begin = blockIdx.x / blocks * TILE_ROWS, end = min(begin + TILE_ROWS, rows);
    const RowAdapters of = {adapters, logit_rows};
    if (n >= outputs) {
        return;
    }
    const unsigned part = part_of ? part_of[n] : 0;
    for (unsigned first = begin; first < end;) {
        const unsigned slot = of.of(first), count = of.run(first, end);
        const unsigned rank = slot == NO_ADAPTER ? 0 : slots[slot].ranks[part];
        if (rank > 0) {
            const LoraSlot& term = slots[slot];
            const ELEMENT* b = term.b + static_cast<unsigned long long>(n) * term.rank;
            const float* own = h + static_cast<unsigned long long>(first) * of_row + part * most_rank;
            float sums[TILE_ROWS] = {};
            for (unsigned j = 0; j < rank; j += LANES) {
                const Lanes<float, LANES> weights = load<LANES>(b + j);
#pragma unroll
                for (unsigned row = 0; row < TILE_ROWS; ++row) {
                    if (row < count) {
                        const Lanes<float, LANES> lanes = load<LANES>(own + row * of_row + j);
#pragma unroll
                        for (unsigned i = 0; i < LANES; ++i) {
                            sums[row] += weights.at[i] * lanes.at[i];
                        }
                    }
                }
            }
#pragma unroll
            for (unsigned row = 0; row < TILE_ROWS; ++row) {
                if (row < count) {
                    OUT* to = out + static_cast<unsigned long long>(first + row) * outputs + n;
                    *to = from_f32<OUT>(to_f32(*to) + sums[row]);
                }
            }
        }
        first += count;
    }
}
