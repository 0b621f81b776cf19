// Products with 4-bit weights by tensor cores of sm_80 and later, for f16 and bf16: what linear_4bit_wgmma.cu computes,
// with the same operands. A block of four warps multiplies 64 outputs, 16 a warp, by up to CAP places; codes and inputs
// come through a ring, which has the more panels the fewer places a tile has.
//
// Shapes, arithmetic, definition: as in linear_4bit_wgmma.cu. The sum over the inputs is the same chain for all tile
// sizes.
// Grid: any number of blocks of 128 threads; RING_BYTES and 128 more of dynamic shared memory.
// Limit: bandwidth of the weights for few places; shared memory and decoding for many.
//
// Defines: ELEMENT, FP4, GROUP, CAP (64), RING_BYTES, GATED (0).
#include "attention/mma.cuh"
#include "experts/store.cuh"
#include "four_bit/decode.cuh"
#include "four_bit/tiles.cuh"

constexpr unsigned BLOCK_THREADS = 128, MOST_STAGES = 8;

// Of a tile of COLUMNS columns. A row of inputs is two rows of 128 bytes, in panels of 64 inputs.
template <unsigned COLUMNS>
struct Stage {
    static constexpr unsigned INPUT_PANEL = COLUMNS * PANEL_ROW_BYTES;
    static constexpr unsigned BYTES = 2 * INPUT_PANEL + CODE_PANEL_BYTES;
    static constexpr unsigned FIT = RING_BYTES / BYTES, COUNT = FIT < MOST_STAGES ? FIT : MOST_STAGES;
    static_assert(COUNT >= 2 && BYTES % 16 == 0, "a panel comes while one is multiplied");
};

// Copies what a thread brings of each panel: chunks of 16 bytes.
template <unsigned COLUMNS>
struct Copies {
    // Rows of inputs copied at a time.
    static constexpr unsigned TOGETHER = BLOCK_THREADS / 16, TURNS = (COLUMNS + TOGETHER - 1) / TOGETHER;
    const ELEMENT* x;
    const unsigned char* codes;
    unsigned inputs[TURNS];
    unsigned inner, row, chunk;

    __device__ __forceinline__ Copies(const Operands& operands, const Rows& rows, unsigned output, const ELEMENT* x,
                                      const unsigned char* weights)
        : x(x),
          codes(weights + panel_at(rows.expert, output, operands.outputs, operands.inner)),
          inner(operands.inner),
          row(threadIdx.x / 16),
          chunk(threadIdx.x % 16) {
#pragma unroll
        for (unsigned i = 0; i < TURNS; i++) {
            const unsigned at = i * TOGETHER + row;
            inputs[i] = at < rows.count ? input_of(operands, rows.first + at) : 0xffffffff;
        }
    }

    // Copies panel `panel` to the stage at `to`; one group of copies, also where there is nothing left.
    __device__ __forceinline__ void copy(unsigned to, unsigned panel) const {
        if (panel < code_panels(inner)) {
            const unsigned from = panel * CODE_INPUTS + chunk * 8;
            const unsigned char* own = codes + static_cast<unsigned long long>(panel) * CODE_PANEL_BYTES;
#pragma unroll
            for (unsigned at = threadIdx.x * 16; at < CODE_PANEL_BYTES; at += BLOCK_THREADS * 16) {
                copy_16(to + 2 * Stage<COLUMNS>::INPUT_PANEL + at, own + at, true);
            }
#pragma unroll
            for (unsigned i = 0; i < TURNS; i++) {
                const unsigned at = i * TOGETHER + row;
                const bool exists = inputs[i] != 0xffffffff && from < inner;
                const ELEMENT* input = x + (exists ? static_cast<unsigned long long>(inputs[i]) * inner + from : 0);
                const unsigned place =
                    chunk / 8 * Stage<COLUMNS>::INPUT_PANEL + at * PANEL_ROW_BYTES + (chunk ^ at) % 8 * 16;
                copy_16(to + place, input, exists);
            }
        }
        copies_issued();
    }
};

// Adds the products of one panel to those of a warp. `x`: address of its inputs; `panel`: its codes. Each group has a
// sum of its own, which is multiplied by its scale, unless scales are in the operands.
template <unsigned COLUMNS>
__device__ __forceinline__ void add_panel(float (&sum)[COLUMNS / 8][4], unsigned x, const unsigned char* panel) {
    constexpr unsigned STEPS = GROUP / 16;  // products of a group
    const unsigned lane = threadIdx.x % 32, output = threadIdx.x / 32 * 16 + lane / 4;
    const uint4* codes = reinterpret_cast<const uint4*>(panel) + threadIdx.x;
    unsigned words[4];
#pragma unroll
    for (unsigned group = 0; group < CODE_GROUPS; group++) {
        const unsigned pairs[2] = {code_pair<ELEMENT, FACTORS>(code_mark(panel, group, output)),
                                   code_pair<ELEMENT, FACTORS>(code_mark(panel, group, output + 8))};
        float of_group[COLUMNS / 8][4] = {};
        float(&part)[COLUMNS / 8][4] = FACTORS ? sum : of_group;
#pragma unroll
        for (unsigned step = group * STEPS; step < (group + 1) * STEPS; step++) {
            if (step % 4 == 0) {
                const uint4 next = codes[step / 4 * BLOCK_THREADS];
                words[0] = next.x, words[1] = next.y, words[2] = next.z, words[3] = next.w;
            }
            unsigned a[4];
            decode<ELEMENT>(a, words[step % 4], pairs);
            const unsigned inputs = x + step / 4 * Stage<COLUMNS>::INPUT_PANEL, k = step % 4;
#pragma unroll
            for (unsigned n = 0; n < COLUMNS / 8; n += 2) {
                unsigned b[4];
                // For eight columns the second pair of matrices is the first again.
                const unsigned row = n * 8 + (COLUMNS == 8 ? 0 : lane / 16 * 8) + lane % 8;
                load_matrices(b, inputs + row * PANEL_ROW_BYTES + ((k * 2 + lane / 8 % 2) ^ lane % 8) * 16);
                multiply<ELEMENT>(part[n], a, b[0], b[1]);
                if (COLUMNS > 8) {
                    multiply<ELEMENT>(part[(n + 1) % (COLUMNS / 8)], a, b[2], b[3]);
                }
            }
        }
        if (FACTORS) {
            continue;
        }
        const float scales[2] = {panel_scale(panel, group, output), panel_scale(panel, group, output + 8)};
#pragma unroll
        for (unsigned n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                sum[n][i] += part[n][i] * scales[i / 2];
            }
        }
    }
}

// Multiplies one tile of COLUMNS columns and stores its results. Called by all threads of the block. `offset`: of the
// ring in `dynamic`.
template <unsigned COLUMNS>
__device__ __forceinline__ void multiply_tile(const Operands& operands, const Rows& rows, const Results& results,
                                              unsigned output, const ELEMENT* x, const unsigned char* weights,
                                              unsigned char* dynamic, unsigned offset) {
    using Own = Stage<COLUMNS>;
    const unsigned panels = code_panels(operands.inner), ring = shared_address(dynamic) + offset;
    const Copies<COLUMNS> copies(operands, rows, output, x, weights);
    float sum[COLUMNS / 8][4] = {};
#pragma unroll
    for (unsigned stage = 0; stage + 1 < Own::COUNT; stage++) {
        copies.copy(ring + stage * Own::BYTES, stage);
    }
    unsigned stage = 0;
#pragma unroll 1
    for (unsigned panel = 0; panel < panels; panel++) {
        wait_copies<static_cast<int>(Own::COUNT) - 2>();
        __syncthreads();
        const unsigned empty = stage == 0 ? Own::COUNT - 1 : stage - 1;
        copies.copy(ring + empty * Own::BYTES, panel + Own::COUNT - 1);
        add_panel<COLUMNS>(sum, ring + stage * Own::BYTES,
                           dynamic + offset + stage * Own::BYTES + 2 * Own::INPUT_PANEL);
        stage = stage + 1 == Own::COUNT ? 0 : stage + 1;
    }
    wait_copies<0>();
    __syncthreads();
    if (FACTORS) {
        const unsigned own = output + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        const float factors[2] = {panel_factor(weights, rows.expert, own, operands.outputs, operands.inner),
                                  panel_factor(weights, rows.expert, own + 8, operands.outputs, operands.inner)};
#pragma unroll
        for (unsigned n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                sum[n][i] *= factors[i / 2];
            }
        }
    }
    store_sums(results, operands, rows, output + threadIdx.x / 32 * 16, sum);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    linear_4bit(void* out, const ELEMENT* __restrict__ x, const unsigned char* __restrict__ weights,
                const float* __restrict__ bias, const unsigned* __restrict__ firsts, const unsigned* __restrict__ rows,
                unsigned experts, unsigned outputs, unsigned inner, unsigned places, unsigned gathers, unsigned biased,
                unsigned sums, unsigned accumulates) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    __shared__ TileEnds ends;
    const Operands operands = {firsts, rows, experts, outputs, inner, gathers};
    const Results results = {out, bias, biased, sums, SILU, accumulates};
    const unsigned begin = shared_address(dynamic), offset = (begin + 127) / 128 * 128 - begin;
    count_any_tiles(ends, operands, places, CAP);
    __syncthreads();
    const unsigned across = code_groups(outputs), down = ends.of[experts - 1];
#pragma unroll 1
    for (unsigned index = blockIdx.x; index < across * down; index += gridDim.x) {
        const TileIndex at = tile_index(operands, index, across, down);
        const Rows tile = rows_of(ends, operands, at.places, CAP);
        const unsigned output = at.outputs * CODE_OUTPUTS;
        if (tile.count <= 8) {
            multiply_tile<8>(operands, tile, results, output, x, weights, dynamic, offset);
        } else if (tile.count <= 16) {
            multiply_tile<16>(operands, tile, results, output, x, weights, dynamic, offset);
        } else if (tile.count <= 32) {
            multiply_tile<32>(operands, tile, results, output, x, weights, dynamic, offset);
        } else {
            multiply_tile<64>(operands, tile, results, output, x, weights, dynamic, offset);
        }
    }
}
