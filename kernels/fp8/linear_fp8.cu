// A linear layer of e4m3 weights and activations on Hopper. One block per multiprocessor: a warp copies panels of both
// into a ring, GROUPS warpgroups multiply 64 outputs each. Tensor cores add up 128 inputs, whose sums are then added in f32:
// over all inputs, their own sums would lose 2 to 6 % of a mean result.
//
// out[r][n] = x_scales[r] * w_scales[n] * sum over k of x[r][k] w[n][k] (+ bias[n]) (+ the old out[r][n], if `accumulates`).
//
// Shapes: out OUT [R, N]; w and x panels (fp8/panels.cuh); w_scales and bias f32 [N rounded up to 64]; x_scales f32 [R].
// A tile has GROUPS * 64 outputs and COLUMNS rows. The sum over the inputs is the same chain for all sizes, so a row's result
// depends on that row alone.
// Grid: any number of blocks of (GROUPS + 1) * 128 threads; dynamic shared memory for the ring and the results on their way
// (`Fp8Tiles` of src/backend/cuda/compile/elements.rs).
// Limit: bandwidth of the weights for few rows; for many that of the second-level cache, as tiles are small: two parts of
// the sums are in registers.
// Definition: `Backend::linear`; on the CPU, src/backend/cpu/gemm/quantised/clear.rs.
//
// Defines: OUT, COLUMNS (8, 16, 64 or 128), GROUPS (1 or 2), STAGES.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "attention/barrier.cuh"
#include "attention/mma.cuh"
#include "fp8/panels.cuh"
#include "fp8/products.cuh"
#include "lanes.cuh"
#include "registers.cuh"

constexpr unsigned GROUP_THREADS = 128, OUTPUTS = GROUPS * PANEL_OUTPUTS;  // outputs of a tile
constexpr unsigned WEIGHT_BYTES = GROUPS * PANEL_BYTES, STAGE_BYTES = WEIGHT_BYTES + COLUMNS * PANEL_INPUTS;
constexpr unsigned COPIER_REGISTERS = 40, MULTIPLIER_REGISTERS = 232;
// Tiles of so many neighbouring outputs follow each other before the next rows: their weights stay in the second-level cache.
constexpr unsigned BAND = 16;
// Results pass through shared memory so many rows at a time; its rows are padded, so that their writes touch all banks.
constexpr unsigned STAGED_ROWS = COLUMNS < 64 ? COLUMNS : 64, STAGED_WIDTH = PANEL_OUTPUTS + 4;

struct Ring {
    unsigned long long full[STAGES], empty[STAGES];
};

using RingCursor = Cursor<STAGES>;

struct Layer {
    OUT* out;
    const char* w;
    const float* w_scales;
    const char* x;
    const float* x_scales;
    const float* bias;
    unsigned rows, outputs, inner, biased, accumulates;

    __device__ __forceinline__ unsigned atoms() const {
        return (rows + 7) / 8;
    }
};

// The tiles of this block: every gridDim.x-th.
struct Tiles {
    unsigned across, down, index;

    __device__ __forceinline__ explicit Tiles(const Layer& layer)
        : across((layer.outputs + OUTPUTS - 1) / OUTPUTS), down((layer.rows + COLUMNS - 1) / COLUMNS), index(blockIdx.x) {}
    __device__ __forceinline__ bool more() const {
        return index < across * down;
    }
    __device__ __forceinline__ void next() {
        index += gridDim.x;
    }
    __device__ __forceinline__ unsigned band() const {
        return index / (BAND * down);
    }
    __device__ __forceinline__ unsigned width() const {
        return min(BAND, across - band() * BAND);
    }
    // First output, and first row.
    __device__ __forceinline__ unsigned output() const {
        return (band() * BAND + index % (BAND * down) % width()) * OUTPUTS;
    }
    __device__ __forceinline__ unsigned row() const {
        return index % (BAND * down) / width() * COLUMNS;
    }
};

// Runs the thread that copies.
__device__ __forceinline__ void copy_tiles(const Layer& layer, Tiles tiles, unsigned ring, Ring& shared) {
    const unsigned panels = panels_of(layer.inner), groups = (layer.outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS;
    RingCursor cursor;
#pragma unroll 1
    for (; tiles.more(); tiles.next()) {
        const unsigned group = tiles.output() / PANEL_OUTPUTS, atom = tiles.row() / 8;
        // The last tiles may not have outputs for all warpgroups, nor all rows.
        const unsigned real = min(GROUPS, groups - group), bytes = min(COLUMNS / 8, layer.atoms() - atom) * 1024;
#pragma unroll 1
        for (unsigned panel = 0; panel < panels; panel++) {
            const unsigned full = shared_address(&shared.full[cursor.stage]), to = ring + cursor.stage * STAGE_BYTES;
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
            arrive_expecting(full, real * PANEL_BYTES + bytes);
            for (unsigned i = 0; i < real; i++) {
                const unsigned long long from = static_cast<unsigned long long>(group + i) * panels + panel;
                copy_bulk(to + i * PANEL_BYTES, layer.w + from * PANEL_BYTES, PANEL_BYTES, full);
            }
            const unsigned long long from = static_cast<unsigned long long>(panel) * layer.atoms() + atom;
            copy_bulk(to + WEIGHT_BYTES, layer.x + from * 1024, bytes, full);
            cursor.next();
        }
    }
}

// A part of a tile's sums: those of one panel.
struct Part {
    float sum[COLUMNS / 8][4];
    unsigned stage;
};

// Starts the products of the next panel.
__device__ __forceinline__ void start_part(Part& part, unsigned ring, Ring& shared, RingCursor& cursor) {
    wait_barrier(shared_address(&shared.full[cursor.stage]), cursor.parity);
    part.stage = cursor.stage;
    const unsigned at = ring + cursor.stage * STAGE_BYTES, group = threadIdx.x / GROUP_THREADS - 1;
    const unsigned long long w = descriptor(at + group * PANEL_BYTES), x = descriptor(at + WEIGHT_BYTES);
    begin_products();
#pragma unroll
    for (unsigned k = 0; k < PANEL_INPUTS / 32; k++) {
        multiply_fp8<COLUMNS>(part.sum, w + k * 2, x + k * 2, k > 0);
    }
    products_issued();
    cursor.next();
}

// Adds a part whose products are done.
__device__ __forceinline__ void add_part(float (&sum)[COLUMNS / 8][4], Part& part, Ring& shared) {
    settled(part.sum);
    if (threadIdx.x % 32 == 0) {
        arrive(shared_address(&shared.empty[part.stage]));
    }
#pragma unroll
    for (unsigned n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            sum[n][i] += part.sum[n][i];
        }
    }
}

// Two parts in turn: while one is added, the tensor cores make the other.
__device__ __forceinline__ void sum_panels(float (&sum)[COLUMNS / 8][4], unsigned panels, unsigned ring, Ring& shared, RingCursor& cursor) {
    Part one, other;
    start_part(one, ring, shared, cursor);
#pragma unroll 1
    for (unsigned pair = 0; pair < (panels - 1) / 2; pair++) {
        start_part(other, ring, shared, cursor);
        wait_products<1>();
        add_part(sum, one, shared);
        start_part(one, ring, shared, cursor);
        wait_products<1>();
        add_part(sum, other, shared);
    }
    if (panels % 2 == 0) {
        start_part(other, ring, shared, cursor);
        wait_products<1>();
        add_part(sum, one, shared);
        wait_products<0>();
        add_part(sum, other, shared);
    } else {
        wait_products<0>();
        add_part(sum, one, shared);
    }
}

// N neighbouring results of a row: scaled, with what is added to them.
template <int N>
__device__ __forceinline__ void finish(const Layer& layer, const float* sums, unsigned row, unsigned output) {
    OUT* out = layer.out + static_cast<unsigned long long>(row) * layer.outputs + output;
    Lanes<float, N> result = load<N>(sums);
    const Lanes<float, N> scales = load<N>(layer.w_scales + output);
    const float scale = layer.x_scales[row];
    Lanes<float, N> added = {};
    if (layer.biased) {
        added = load<N>(layer.bias + output);
    }
    if (layer.accumulates) {
        const Lanes<float, N> old = load<N>(out);
#pragma unroll
        for (int i = 0; i < N; i++) {
            added.at[i] += old.at[i];
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        result.at[i] = result.at[i] * scale * scales.at[i] + added.at[i];
    }
    store<N>(out, result);
}

// Stores a warpgroup's sums by way of shared memory `staged` [STAGED_ROWS][STAGED_WIDTH], in rows of 64 outputs: a thread has
// four of them. `sum` is as attention/mma.cuh describes, for outputs down and rows across.
__device__ __forceinline__ void store_tile(const Layer& layer, const Tiles& tiles, float* staged, const float (&sum)[COLUMNS / 8][4]) {
    const unsigned thread = threadIdx.x % GROUP_THREADS, group = threadIdx.x / GROUP_THREADS - 1, lane = thread % 32;
    const unsigned down = thread / 32 * 16 + lane / 4, across = lane % 4 * 2, four = thread % 16 * 4;
    const unsigned output = tiles.output() + group * PANEL_OUTPUTS + four;
    const bool aligned = layer.outputs % 4 == 0;
#pragma unroll
    for (unsigned first = 0; first < COLUMNS; first += STAGED_ROWS) {
#pragma unroll
        for (unsigned n = 0; n < STAGED_ROWS / 8; n++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                staged[(n * 8 + across + i % 2) * STAGED_WIDTH + down + i / 2 * 8] = sum[first / 8 + n][i];
            }
        }
        meet(1 + group, GROUP_THREADS);
#pragma unroll
        for (unsigned n = 0; n < STAGED_ROWS; n += 8) {
            const unsigned in = n + thread / 16, row = tiles.row() + first + in;
            const float* sums = staged + in * STAGED_WIDTH + four;
            if (row < layer.rows && aligned && output < layer.outputs) {
                finish<4>(layer, sums, row, output);
            } else if (row < layer.rows) {
                for (unsigned i = 0; i < 4 && output + i < layer.outputs; i++) {
                    finish<1>(layer, sums + i, row, output + i);
                }
            }
        }
        meet(1 + group, GROUP_THREADS);
    }
}

extern "C" __global__ void __launch_bounds__((GROUPS + 1) * GROUP_THREADS, 1)
    linear_fp8(OUT* out, const char* __restrict__ w, const float* __restrict__ w_scales, const char* __restrict__ x,
               const float* __restrict__ x_scales, const float* __restrict__ bias, unsigned rows, unsigned outputs, unsigned inner,
               unsigned biased, unsigned accumulates) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Ring shared;
    const Layer layer = {out, w, w_scales, x, x_scales, bias, rows, outputs, inner, biased, accumulates};
    const unsigned begin = shared_address(dynamic), ring = (begin + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES;
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            // `arrive_expecting` arrives for a warp.
            init_barrier(shared_address(&shared.full[i]), 32);
            init_barrier(shared_address(&shared.empty[i]), GROUPS * GROUP_THREADS / 32);
        }
        fence_proxies();
    }
    __syncthreads();
    Tiles tiles(layer);
    const unsigned warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // uniform for the compiler
    if (warp < GROUP_THREADS / 32) {
        fewer_registers<COPIER_REGISTERS>();
        if (threadIdx.x == 0) {
            copy_tiles(layer, tiles, ring, shared);
        }
    } else {
        more_registers<MULTIPLIER_REGISTERS>();
        const unsigned group = threadIdx.x / GROUP_THREADS - 1;
        float* staged = reinterpret_cast<float*>(dynamic + (ring - begin) + STAGES * STAGE_BYTES) + group * STAGED_ROWS * STAGED_WIDTH;
        RingCursor cursor;
#pragma unroll 1
        for (; tiles.more(); tiles.next()) {
            float sum[COLUMNS / 8][4] = {};
            sum_panels(sum, panels_of(inner), ring, shared, cursor);
            store_tile(layer, tiles, staged, sum);
        }
    }
}
#endif
