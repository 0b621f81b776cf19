// out[r][n] += sum over j of B[n][j] h[r][j], j rising, where h[r][j] = scale_p * sum over c of h[r][c][p][j]: the
// second of the two products of a low-rank adapter. B is that of the adapter of row r, p the part of a stacked layer
// that output n belongs to. Rows without an adapter, and parts for which theirs has nothing, are left alone.
//
// Shapes: out OUT [R, outputs], h f32 [R, chunks, parts * most_rank] as lora_shrink leaves it, slots as in
// lora/slots.cuh, adapters u32 [rows of the step], logit_rows u32 [R] or null, part_of u8 [outputs], or null where
// there is one part.
// Grid: x = tiles of TILE_ROWS rows; for each of them blocks over the outputs, one a thread; and for each of these
// `groups` blocks that divide the runs of the tile. Rows of a run share what is read of B; which rows stand beside a
// row does not change its sums. The sums of lora_shrink are added up RANKS at a time, in shared memory.
// B is read before lora_shrink, the kernel in front, has ended. `h` and `out` change while this kernel runs: they are
// not `__restrict__`, so that no load of them passes the wait.
// Limit: bandwidth, sizeof(ELEMENT) * rank bytes an output and run, and 2 * sizeof(OUT) an output and row; of few rows,
// the latency of memory.
// Definition: `Backend::add_lora`; on the CPU, crates/cpu/src/lora.rs.
//
// Defines: ELEMENT, OUT.
#include "lora/slots.cuh"
#include "overlap.cuh"

// Ranks whose sums are in shared memory at a time.
constexpr unsigned RANKS = 2 * LANES;

using Quad = Lanes<float, 4>;

// Blocks of a multiprocessor: as many as have the registers they need.
#if __CUDA_ARCH__ >= 900
constexpr unsigned BLOCKS = sizeof(ELEMENT) == 2 ? 4 : 3;
#else
constexpr unsigned BLOCKS = 2;
#endif

extern "C" __global__ void __launch_bounds__(LORA_THREADS, BLOCKS)
    lora_expand(OUT* out, const float* h, const LoraSlot* __restrict__ slots,
                const unsigned* __restrict__ adapters, const unsigned* __restrict__ logit_rows,
                const unsigned char* __restrict__ part_of, unsigned rows, unsigned outputs, unsigned parts,
                unsigned most_rank, unsigned chunks, unsigned groups) {
    static_assert(TILE_ROWS * RANKS <= LORA_THREADS, "a thread adds up one sum of a part");
    __shared__ Quad quads[MOST_PARTS * TILE_ROWS * RANKS / 4];
    __shared__ unsigned used[MOST_PARTS];
    float* staged = reinterpret_cast<float*>(quads);
    const unsigned of_row = parts * most_rank, blocks = (outputs + LORA_THREADS - 1) / LORA_THREADS;
    const unsigned group = blockIdx.x % groups, tile = blockIdx.x / groups;
    const unsigned n = tile % blocks * LORA_THREADS + threadIdx.x, begin = tile / blocks * TILE_ROWS;
    TileRuns run(adapters, logit_rows, begin, rows, group, groups);
    const unsigned part = part_of && n < outputs ? part_of[n] : 0;
    if (threadIdx.x < MOST_PARTS) {
        used[threadIdx.x] = 0;
    }
    __syncthreads();
    if (n < outputs) {
        used[part] = 1;
    }
    __syncthreads();
    while (run.next()) {
        const LoraSlot& term = slots[run.slot];
        const unsigned rank = n < outputs ? term.ranks[part] : 0;
        const ELEMENT* b = term.b + static_cast<unsigned long long>(n) * term.rank;
        const unsigned long long first = begin + run.first;
        OUT* to = out + first * outputs + n;
        float sums[TILE_ROWS] = {}, before[TILE_ROWS] = {};
        for (unsigned from = 0; from < term.rank; from += RANKS) {
            Lanes<ELEMENT, LANES> weights[RANKS / LANES];
#pragma unroll
            for (unsigned i = 0; i < RANKS / LANES; ++i) {
                if (from + i * LANES < rank) {
                    weights[i] = *reinterpret_cast<const Lanes<ELEMENT, LANES>*>(b + from + i * LANES);
                }
            }
            wait_for_kernels_before();
            if (from == 0 && rank > 0) {
#pragma unroll
                for (unsigned row = 0; row < TILE_ROWS; ++row) {
                    if (row < run.count) {
                        before[row] = to_f32(to[static_cast<unsigned long long>(row) * outputs]);
                    }
                }
            }
            for (unsigned p = 0; p < parts; ++p) {
                const unsigned row = threadIdx.x / RANKS, j = from + threadIdx.x % RANKS;
                if (used[p] && row < run.count && j / LANES * LANES < term.ranks[p]) {
                    const float* own = h + (first + row) * chunks * of_row + p * most_rank + j;
                    float sum = 0.0f;
#pragma unroll 8
                    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
                        sum += own[static_cast<unsigned long long>(chunk) * of_row];
                    }
                    staged[p * TILE_ROWS * RANKS + threadIdx.x] = term.scales[p] * sum;
                }
            }
            __syncthreads();
#pragma unroll
            for (unsigned i = 0; i < RANKS / LANES; ++i) {
                if (from + i * LANES < rank) {
#pragma unroll
                    for (unsigned quad = 0; quad < LANES / 4; ++quad) {
                        const Quad* own = quads + part * TILE_ROWS * RANKS / 4 + i * LANES / 4 + quad;
#pragma unroll
                        for (unsigned row = 0; row < TILE_ROWS; ++row) {
                            if (row < run.count) {
                                const Quad lanes = own[row * RANKS / 4];
#pragma unroll
                                for (unsigned j = 0; j < 4; ++j) {
                                    sums[row] += to_f32(weights[i].at[quad * 4 + j]) * lanes.at[j];
                                }
                            }
                        }
                    }
                }
            }
            __syncthreads();  // the next sums overwrite `staged`
        }
        if (rank > 0) {
#pragma unroll
            for (unsigned row = 0; row < TILE_ROWS; ++row) {
                if (row < run.count) {
                    to[static_cast<unsigned long long>(row) * outputs] = from_f32<OUT>(before[row] + sums[row]);
                }
            }
        }
    }
    // The kernel behind waits for this one alone.
    wait_for_kernels_before();
}
