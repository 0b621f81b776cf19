// A linear layer with 4-bit weights on Hopper, for f16 and bf16. The warps of one warpgroup have the copy engine bring
// panels of codes and boxes of inputs into a ring; GROUPS others turn codes into operands in registers and multiply 64
// outputs each. A narrow matrix is read by all multiprocessors at once: the inputs of a tile are split over the
// `splits` blocks of a cluster, whose sums are added in their order. The ring takes codes before the kernel in front
// has ended.
//
// out[r] = matrix x[r] (+ bias) (+ the old out[r], if `accumulates`). An element of the matrix is scale * (code -
// zero), of NVFP4 factor * scale * number. Sums are those of four_bit/sums.cuh, exact but for their own rounding.
//
// Shapes: x ELEMENT [rows, inner], inner a multiple of 8, as boxes of 64 inputs, swizzled (attention/wgmma.cuh), of
// CAP rows; weights as in four_bit/panels.cuh; bias f32 [outputs]; out ELEMENT (f32 if `sums`)
// [rows, outputs].
// A tile has OUTPUTS outputs and CAP rows. Its sum over the inputs is the same chain for all sizes; `splits` and
// RESCALES change it.
// Grid: with splits, as many blocks for each tile; else any number, of (GROUPS + 1) * 128 threads; dynamic shared
// memory for the ring (`FourBitTiles` of crates/cuda/src/compile/four_bit.rs).
// Limit: bandwidth of the weights for few rows; tensor cores, and the second-level cache's bandwidth, for many.
// Definition: `Backend::linear`; on the CPU, crates/cpu/src/gemm/quantised/clear.rs.
//
// Defines: ELEMENT, FP4, GROUP, CAP (8, 16, 32, 64, 128, 192 or 256), GROUPS (1 to 4), STAGES, BLOCKS (per
// multiprocessor), RESCALES, GATED (0).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "attention/barrier.cuh"
#include "attention/mma.cuh"
#include "cluster.cuh"
#include "experts/store.cuh"
#include "experts/tile.cuh"
#define MOST_STEPS 4
#include "four_bit/sums.cuh"
#include "overlap.cuh"
#include "registers.cuh"
#include "tensor_map.cuh"

constexpr unsigned MULTIPLIERS = GROUPS * GROUP_THREADS, ALL_THREADS = MULTIPLIERS + GROUP_THREADS;
// All threads of a block begin with as many as a multiprocessor has for each.
constexpr unsigned BEGIN_REGISTERS = 65536 / (ALL_THREADS * BLOCKS) / 8 * 8, COPIER_REGISTERS = 40;
constexpr unsigned SHARED_OUT = (BEGIN_REGISTERS * (GROUPS + 1) - COPIER_REGISTERS) / GROUPS / 8 * 8;
constexpr unsigned MULTIPLIER_REGISTERS = SHARED_OUT < 240 ? SHARED_OUT : 240;
constexpr unsigned OUTPUTS = GROUPS * CODE_OUTPUTS;
// A stage has inputs in two panels of 64, which are aligned to 1024 bytes, and behind them GROUPS panels of codes.
constexpr unsigned INPUT_PANEL_BYTES = CAP * 128, INPUT_BYTES = 2 * INPUT_PANEL_BYTES;
constexpr unsigned STAGE_BYTES = (INPUT_BYTES + GROUPS * CODE_PANEL_BYTES + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES;
// A warp copies inputs, each of the others the codes of every CODE_WARPS-th warpgroup.
constexpr unsigned CODE_WARPS = GROUPS < 3 ? GROUPS : 3;
static_assert(GROUPS * CAP * CODE_OUTPUTS * 4 <= STAGES * STAGE_BYTES, "sums lie where the ring was");

struct Ring {
    unsigned long long full[STAGES], empty[STAGES];
};

using RingCursor = Cursor<STAGES>;

struct Layer {
    const unsigned char* weights;
    unsigned outputs, inner, rows, splits;
};

// OUTPUTS outputs of CAP rows.
struct Tile {
    unsigned output, row;
};

// What this block multiplies: its split of every tile of its cluster. Tiles of the same weights follow each other.
struct Work {
    unsigned count, down;  // tiles, and those of the same outputs
    unsigned split, first, end;  // panels
    unsigned index, step;

    __device__ __forceinline__ explicit Work(const Layer& layer) {
        const unsigned splits = layer.splits, panels = code_panels(layer.inner);
        down = (layer.rows + CAP - 1) / CAP, count = (layer.outputs + OUTPUTS - 1) / OUTPUTS * down;
        split = blockIdx.x % splits, first = panels * split / splits, end = panels * (split + 1) / splits;
        index = blockIdx.x / splits, step = gridDim.x / splits;
    }
    __device__ __forceinline__ bool more() const {
        return index < count;
    }
    __device__ __forceinline__ void next() {
        index += step;
    }
    __device__ __forceinline__ Tile tile() const {
        return {index / down * OUTPUTS, index % down * CAP};
    }
};

// The ring in shared memory, as four_bit/sums.cuh has it.
struct Stages {
    Ring& ring;
    const unsigned char* begin;  // aligned to 1024
    unsigned address;  // of it

    __device__ __forceinline__ unsigned x(unsigned stage) const {
        return address + stage * STAGE_BYTES;
    }
    __device__ __forceinline__ const unsigned char* codes(unsigned stage) const {
        return begin + stage * STAGE_BYTES + INPUT_BYTES + threadIdx.x / GROUP_THREADS * CODE_PANEL_BYTES;
    }
    __device__ __forceinline__ void wait(unsigned stage, unsigned parity) const {
        wait_barrier(shared_address(&ring.full[stage]), parity);
    }
    __device__ __forceinline__ void release(unsigned stage) const {
        if (threadIdx.x % 32 == 0) {
            arrive(shared_address(&ring.empty[stage]));
        }
    }
};

// Runs a thread that copies the codes of warpgroups `first`, `first` + CODE_WARPS... Weights do not depend on the
// kernel in front.
__device__ __forceinline__ void copy_codes(const Layer& layer, Work work, unsigned first, const Stages& stages) {
    RingCursor cursor;
    const unsigned long long apart = code_group_bytes(layer.inner);
#pragma unroll 1
    for (; work.more(); work.next()) {
        // The last tile may not have outputs for all warpgroups.
        const unsigned before = work.tile().output / CODE_OUTPUTS + first, all = code_groups(layer.outputs);
        const unsigned real = before < all ? (min(all - before, GROUPS - first) + CODE_WARPS - 1) / CODE_WARPS : 0;
        const unsigned char* from = layer.weights + before * apart + work.first * CODE_PANEL_BYTES;
        unsigned left = work.end - work.first;
#pragma unroll 1
        for (; left > 0; left--) {
            const unsigned full = shared_address(&stages.ring.full[cursor.stage]);
            const unsigned to = stages.x(cursor.stage) + INPUT_BYTES + first * CODE_PANEL_BYTES;
            wait_barrier(shared_address(&stages.ring.empty[cursor.stage]), cursor.parity ^ 1);
            arrive_expecting(full, real * CODE_PANEL_BYTES);
            if (real > 0) {
                copy_bulk(to, from, CODE_PANEL_BYTES, full);
            }
            if (GROUPS > CODE_WARPS && real > 1) {
                copy_bulk(to + CODE_WARPS * CODE_PANEL_BYTES, from + CODE_WARPS * apart, CODE_PANEL_BYTES, full);
            }
            from += CODE_PANEL_BYTES;
            cursor.next();
        }
    }
}

// Runs the thread that copies inputs.
__device__ __forceinline__ void copy_inputs(const TensorMap& x, Work work, const Stages& stages) {
    RingCursor cursor;
    fetch_map(x);
    wait_for_kernels_before();
#pragma unroll 1
    for (; work.more(); work.next()) {
        const unsigned row = work.tile().row;
#pragma unroll 1
        for (unsigned panel = work.first; panel < work.end; panel++) {
            const unsigned full = shared_address(&stages.ring.full[cursor.stage]), to = stages.x(cursor.stage);
            wait_barrier(shared_address(&stages.ring.empty[cursor.stage]), cursor.parity ^ 1);
            arrive_expecting(full, INPUT_BYTES);
            const unsigned byte = panel * CODE_INPUTS * 2;
            copy_box(to, x, byte, row, full);
            copy_box(to + INPUT_PANEL_BYTES, x, byte + 128, row, full);
            cursor.next();
        }
    }
}

// Adds the sums of a cluster's blocks in their order and stores them; each block does so for some of the rows.
__device__ __forceinline__ void join_splits(const float (&sum)[CAP / 8][4], const Layer& layer, const Work& work,
                                            const Operands& operands, const Results& results, unsigned char* ring) {
    const unsigned thread = threadIdx.x % GROUP_THREADS, group = threadIdx.x / GROUP_THREADS, warp = thread / 32;
    const Tile tile = work.tile();
    const unsigned rows = min(layer.rows - tile.row, CAP);
    float4* own = reinterpret_cast<float4*>(ring) + group * (CAP / 8) * GROUP_THREADS + thread;
    // All warpgroups have read the ring.
    meet(1, MULTIPLIERS);
#pragma unroll
    for (unsigned n = 0; n < CAP / 8; n++) {
        own[n * GROUP_THREADS] = {sum[n][0], sum[n][1], sum[n][2], sum[n][3]};
    }
    meet_cluster(layer.splits);
#pragma unroll 1
    for (unsigned n = work.split; n * 8 < rows; n += layer.splits) {
        float all[1][4] = {};
#pragma unroll 4
        for (unsigned split = 0; split < layer.splits; split++) {
            const float4 part = load_of_peer(shared_address(own + n * GROUP_THREADS), split, layer.splits);
            all[0][0] += part.x, all[0][1] += part.y, all[0][2] += part.z, all[0][3] += part.w;
        }
        store_sums(results, operands, {0, tile.row + n * 8, rows - n * 8},
                   tile.output + group * CODE_OUTPUTS + warp * 16, all);
    }
    // No block ends while another one reads its sums.
    meet_cluster_again(layer.splits);
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, BLOCKS)
    linear_4bit_wgmma(void* out, const __grid_constant__ TensorMap x, const unsigned char* __restrict__ weights,
                      const float* __restrict__ bias, unsigned outputs, unsigned inner, unsigned rows, unsigned splits,
                      unsigned biased, unsigned sums, unsigned accumulates) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Ring ring;
    const unsigned begin = shared_address(dynamic), aligned = (begin + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES;
    const Layer layer = {weights, outputs, inner, rows, splits};
    const Operands operands = {nullptr, nullptr, 1, outputs, inner, 0};
    const Results results = {out, bias, biased, sums, SILU, accumulates};
    Work work(layer);
    const Stages stages = {ring, dynamic + (aligned - begin), aligned};
    begin_next_kernel();
    if (threadIdx.x < STAGES) {
        // `arrive_expecting` arrives for a warp.
        init_barrier(shared_address(&ring.full[threadIdx.x]), (1 + CODE_WARPS) * 32);
        init_barrier(shared_address(&ring.empty[threadIdx.x]), MULTIPLIERS / 32);
        fence_proxies();
    }
    __syncthreads();
    const unsigned warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // uniform for the compiler
    if (warp >= MULTIPLIERS / 32) {
        fewer_registers<COPIER_REGISTERS>();
        const unsigned copier = warp - MULTIPLIERS / 32;
        if (threadIdx.x % 32 == 0) {
            if (copier == 0) {
                copy_inputs(x, work, stages);
            } else if (copier <= CODE_WARPS) {
                copy_codes(layer, work, copier - 1, stages);
            }
        }
        __syncwarp();
        if (splits > 1) {
            meet_cluster(splits);
            meet_cluster_again(splits);
        }
    } else {
        more_registers<MULTIPLIER_REGISTERS>();
        wait_for_kernels_before();
        RingCursor cursor;
#pragma unroll 1
        for (; work.more(); work.next()) {
            float sum[CAP / 8][4] = {};
            sum_panels<CAP>(sum, cursor, work.end - work.first, stages, INPUT_PANEL_BYTES);
            const Tile tile = work.tile();
            multiply_by_factors<CAP>(sum, weights, 0, tile.output + warp / 4 * CODE_OUTPUTS, outputs, inner);
            if (splits > 1) {
                join_splits(sum, layer, work, operands, results, dynamic + (aligned - begin));
            } else {
                store_sums(results, operands, {0, tile.row, min(rows - tile.row, CAP)}, tile.output + warp * 16, sum);
            }
        }
    }
}
#endif
