// expert_linear_fp8 by pairs of blocks (experts/pairs.cuh), with as many columns as a tile has places: for experts of
// more places than its smallest tiles have.
//
// Results, shapes, scales and arguments: as those of expert_linear_fp8, except that a box of weights has 64 outputs,
// and one of codes 16 places.
// The sum over the inputs is the same chain as there, for all columns.
// Grid: whole clusters of two blocks of (GROUPS + 1) * 128 threads; dynamic shared memory as `Fp8Tiles` of
// crates/cuda/src/compile/elements.rs counts it.
// Limit: bandwidth of the weights for few places; for many, tensor cores and the second-level cache.
// Definition: `Backend::expert_linear`; on the CPU, crates/cpu/src/gemm/grouped.rs.
//
// Defines: OUT, COLUMNS (64 or 192), GROUPS (2), STAGES, BLOCKS (0 or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "experts/pairs.cuh"
#include "fp8/layer.cuh"
#include "fp8/products.cuh"

constexpr unsigned COPIER_REGISTERS = 40, MULTIPLIER_REGISTERS = 232;
static_assert(COPIER_REGISTERS + GROUPS * MULTIPLIER_REGISTERS <= 168 * (GROUPS + 1), "the registers of a block");

// Runs the thread that copies weights, and with BLOCKS the scales of inputs.
__device__ __forceinline__ void copy_weights(PairWork work, const Layer& layer, const Maps& maps, const Space& space,
                                             Ring& shared) {
    const unsigned panels = layer.panels();
    RingCursor cursor;
#pragma unroll 1
    for (; work.more(); work.next()) {
        const PairTile tile = work.tile();
        const unsigned bytes = bytes_of(tile) + (BLOCKS ? SCALES * 4 : 0);
#pragma unroll 1
        for (unsigned panel = 0; panel < panels; panel++) {
            const unsigned full = shared_address(&shared.full[cursor.stage]);
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
            arrive_expecting(full, bytes);
            for (unsigned group = 0; group < tile.groups; group++) {
                copy_box(space.stage(cursor.stage) + group * GROUP_BYTES, maps.w, panel * PANEL_INPUTS,
                         tile.rows.expert * layer.width + (tile.group + group) * GROUP_OUTPUTS, full);
            }
            if (BLOCKS) {
                copy_box(shared_address(space.scales(cursor.stage)), maps.x_scales,
                         tile.rows.first / SCALE_ALIGNMENT * SCALE_ALIGNMENT, panel, full);
            }
            cursor.next();
        }
    }
}

// The sums of a warpgroup, for all places that a tile may have.
using Sums = float[COLUMNS / 8][4];

// Adds the products of a tile of N columns to the first of `sum`. While a warpgroup adds a panel's part, the tensor
// cores make that of the other one.
template <unsigned N>
__device__ __forceinline__ void sum_columns(Sums& sum, const Layer& layer, const Tile& tile, const Space& space,
                                            Ring& shared, RingCursor& cursor) {
    const unsigned group = threadIdx.x / GROUP_THREADS - 1, panels = layer.panels();
    float part[N / 8][4];
    float w_scales[2];
#pragma unroll 1
    for (unsigned panel = 0; panel < panels; panel++) {
        if (BLOCKS) {
#pragma unroll
            for (unsigned i = 0; i < 2; i++) {
                const unsigned output = min(tile.output + own_output() + i * 8, layer.width - 1);
                w_scales[i] = layer.w_scales[(tile.matrix * panels + panel) * layer.width + output];
            }
        }
        wait_barrier(shared_address(&shared.full[cursor.stage]), cursor.parity);
        const unsigned at = space.stage(cursor.stage);
        const unsigned long long w = descriptor(at + group * GROUP_BYTES), x = descriptor(at + WEIGHT_BYTES);
        begin_products();
#pragma unroll
        for (unsigned k = 0; k < PANEL_INPUTS / 32; k++) {
            multiply_fp8<N>(part, w + k * 2, x + k * 2, k > 0);
        }
        products_issued();
        wait_products<0>();
        settled(part);
        const float* scales = space.scales(cursor.stage) + tile.row % SCALE_ALIGNMENT + threadIdx.x % 4 * 2;
        if (!BLOCKS) {
            release(shared, cursor.stage);
        }
#pragma unroll
        for (unsigned n = 0; n < N / 8; n++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                sum[n][i] += BLOCKS ? part[n][i] * (scales[n * 8 + i % 2] * w_scales[i / 2]) : part[n][i];
            }
        }
        if (BLOCKS) {
            // All lanes have read the scales.
            __syncwarp();
            release(shared, cursor.stage);
        }
        cursor.next();
    }
}

// The same, of the fewest columns that hold all places, at least N.
template <unsigned N>
__device__ __forceinline__ void sum_fitting(Sums& sum, const Layer& layer, const Tile& tile, const Space& space,
                                            Ring& shared, RingCursor& cursor) {
    if constexpr (N < COLUMNS) {
        if (tile.end_row - tile.row > N) {
            return sum_fitting<N + STEP>(sum, layer, tile, space, shared, cursor);
        }
    }
    sum_columns<N>(sum, layer, tile, space, shared, cursor);
}

extern "C" __global__ void __launch_bounds__((GROUPS + 1) * GROUP_THREADS, 1) __cluster_dims__(PAIR, 1, 1)
    expert_linear_fp8_pairs(OUT* out, const __grid_constant__ TensorMap w, const float* __restrict__ w_scales,
                            const __grid_constant__ TensorMap x, const float* __restrict__ x_scales,
                            const __grid_constant__ TensorMap x_scale_map, const float* __restrict__ bias,
                            const unsigned* __restrict__ firsts, unsigned experts, unsigned outputs, unsigned inner,
                            unsigned biased) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Ring shared;
    __shared__ TileEnds ends;
    const Layer layer = {out, w_scales, x_scales, bias, outputs, inner, biased, 0};
    const Maps maps = {w, x, x_scale_map};
    const Operands operands = {firsts, nullptr, experts, outputs, inner, 0};
    const Space space(dynamic);
    init_pairs(shared, ends, operands);
    PairWork work(operands, ends);
    const unsigned warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // uniform for the compiler
    if (warp < GROUP_THREADS / 32) {
        fewer_registers<COPIER_REGISTERS>();
        if (threadIdx.x == 0) {
            copy_weights(work, layer, maps, space, shared);
        } else if (warp == 1) {
            copy_inputs(work, x, PANEL_INPUTS, layer.panels(), space.stage(0), shared);
        }
    } else {
        more_registers<MULTIPLIER_REGISTERS>();
        const unsigned group = warp / 4 - 1;
        RingCursor cursor;
#pragma unroll 1
        for (; work.more(); work.next()) {
            const PairTile of = work.tile();
            if (group >= of.groups) {
                pass_tile(layer.panels(), shared, cursor);
                continue;
            }
            const Tile tile = {of.rows.expert, (of.group + group) * GROUP_OUTPUTS, outputs, of.rows.first,
                               of.rows.first + of.rows.count};
            Sums sum = {};
            sum_fitting<STEP>(sum, layer, tile, space, shared, cursor);
            store_tile(layer, tile, tile.output, space, sum);
        }
    }
    // No block ends while the other may signal it or copy to it.
    meet_cluster(PAIR);
}
#endif
