// expert_linear by tensor cores of sm_80 and later, for f16 and bf16: what expert_linear_wgmma.cu computes, with the
// same operands. A block of four warps multiplies 64 rows of the product, 16 a warp, by up to CAP places; weights and
// inputs come through a ring of STAGES panels.
//
// Shapes, definition: as in expert_linear_wgmma.cu. The sum over the inputs is the same chain for all tile sizes.
// Grid: any number of blocks of 128 threads; SHARED_BYTES of dynamic shared memory.
// Limit: bandwidth of the weights for few places, tensor cores and shared memory for many.
//
// Defines: ELEMENT, GATED (0 or 1).
#include "attention/mma.cuh"
#include "experts/store.cuh"

constexpr unsigned CAP = 64, BLOCK_THREADS = 128, STAGES = 3;
constexpr unsigned INPUT_BYTES = CAP * PANEL_ROW_BYTES, STAGE_BYTES = WEIGHT_PANEL_BYTES + INPUT_BYTES;

// Copies what a thread brings of each panel: chunks of 16 bytes, one column of chunks a thread.
struct Copies {
    static constexpr unsigned TOGETHER = BLOCK_THREADS / 8;  // rows copied at a time
    const ELEMENT* x;
    const char* weights[PANEL / TOGETHER];
    unsigned inputs[CAP / TOGETHER];
    unsigned inner, columns, row, chunk;

    __device__ __forceinline__ Copies(const Operands& operands, const Rows& rows, unsigned product, unsigned columns,
                                      const ELEMENT* x, const char* all)
        : x(x), inner(operands.inner), columns(columns), row(threadIdx.x / 8), chunk(threadIdx.x % 8) {
#pragma unroll
        for (unsigned i = 0; i < PANEL / TOGETHER; i++) {
            // Rows are swizzled already, and missing ones are zeros.
            weights[i] = all + row_at(operands, rows.expert, product + i * TOGETHER + row) + chunk * 16;
        }
#pragma unroll
        for (unsigned i = 0; i < CAP / TOGETHER; i++) {
            const unsigned at = i * TOGETHER + row;
            inputs[i] = at < rows.count ? input_of(operands, rows.first + at) : 0xffffffff;
        }
    }

    // Copies panel `panel` to the stage at `to`; one group of copies, also where there is nothing left.
    __device__ __forceinline__ void copy(unsigned to, unsigned panel) const {
        const unsigned from = panel * PANEL + chunk * 8;
        if (panel * PANEL < inner) {
#pragma unroll
            for (unsigned i = 0; i < PANEL / TOGETHER; i++) {
                const char* weight = weights[i] + static_cast<unsigned long long>(panel) * WEIGHT_PANEL_BYTES;
                copy_16(to + (i * TOGETHER + row) * PANEL_ROW_BYTES + chunk * 16, weight, true);
            }
#pragma unroll
            for (unsigned i = 0; i < CAP / TOGETHER; i++) {
                if (i * TOGETHER < columns) {
                    const bool exists = inputs[i] != 0xffffffff && from < inner;
                    const ELEMENT* input = x + (exists ? static_cast<unsigned long long>(inputs[i]) * inner + from : 0);
                    copy_16(to + WEIGHT_PANEL_BYTES + (i * TOGETHER + row) * PANEL_ROW_BYTES + (chunk ^ row % 8) * 16,
                            input, exists);
                }
            }
        }
        copies_issued();
    }
};

// Multiplies one tile of COLUMNS columns and stores its results. Called by all threads of the block.
template <unsigned COLUMNS>
__device__ __forceinline__ void multiply_tile(const Operands& operands, const Rows& rows, const Results& results,
                                              unsigned product, const ELEMENT* x, const char* weights, unsigned ring) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, panels = panels_of(operands.inner);
    const Copies copies(operands, rows, product, COLUMNS, x, weights);
    float sum[COLUMNS / 8][4] = {};
#pragma unroll
    for (unsigned stage = 0; stage + 1 < STAGES; stage++) {
        copies.copy(ring + stage * STAGE_BYTES, stage);
    }
    unsigned stage = 0;
#pragma unroll 1
    for (unsigned panel = 0; panel < panels; panel++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        const unsigned empty = stage == 0 ? STAGES - 1 : stage - 1;
        copies.copy(ring + empty * STAGE_BYTES, panel + STAGES - 1);
        const unsigned w = ring + stage * STAGE_BYTES + (warp * 16 + lane % 16) * PANEL_ROW_BYTES;
        const unsigned inputs = ring + stage * STAGE_BYTES + WEIGHT_PANEL_BYTES;
#pragma unroll
        for (unsigned k = 0; k < PANEL / 16; k++) {
            unsigned a[4];
            load_matrices(a, w + ((k * 2 + lane / 16) ^ lane % 8) * 16);
#pragma unroll
            for (unsigned n = 0; n < COLUMNS / 8; n += 2) {
                unsigned b[4];
                load_matrices(b, inputs + (n * 8 + lane / 16 * 8 + lane % 8) * PANEL_ROW_BYTES +
                                     ((k * 2 + lane / 8 % 2) ^ lane % 8) * 16);
                multiply<ELEMENT>(sum[n], a, b[0], b[1]);
                multiply<ELEMENT>(sum[n + 1], a, b[2], b[3]);
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    wait_copies<0>();
    __syncthreads();
    store_sums(results, operands, rows, product + warp * 16, sum);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    expert_linear(void* out, const ELEMENT* __restrict__ x, const char* __restrict__ weights,
                  const float* __restrict__ bias, const unsigned* __restrict__ firsts,
                  const unsigned* __restrict__ rows, unsigned experts, unsigned outputs, unsigned inner,
                  unsigned gathers, unsigned biased, unsigned sums, unsigned gate) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    __shared__ TileEnds ends;
    const Operands operands = {firsts, rows, experts, outputs, inner, gathers};
    const Results results = {out, bias, biased, sums, gate};
    const unsigned ring = (shared_address(dynamic) + 127) / 128 * 128;
    count_tiles(ends, operands, CAP);
    __syncthreads();
    const unsigned across = panels_of(outputs), tiles = ends.of[experts - 1] * across;
#pragma unroll 1
    for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Rows tile = rows_of(ends, operands, index / across, CAP);
        const unsigned product = index % across * PANEL;
        if (tile.count <= 16) {
            multiply_tile<16>(operands, tile, results, product, x, weights, ring);
        } else if (tile.count <= 32) {
            multiply_tile<32>(operands, tile, results, product, x, weights, ring);
        } else {
            multiply_tile<64>(operands, tile, results, product, x, weights, ring);
        }
    }
}
