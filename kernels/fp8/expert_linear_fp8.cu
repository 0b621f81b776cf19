// Every expert's matrix of e4m3 times the rounded inputs of its places, on Hopper (fp8/tile.cuh). Places are sorted by
// expert; a tile has up to COLUMNS places of one expert.
//
// out[p][n] = x_scales[p] * w_scales[e][n] * sum over k of x[p][k] w[e][n][k] (+ bias[e][n]), e the expert of place p;
// with BLOCKS the scales are those of each 128 inputs, whose sums they multiply.
//
// Shapes: out OUT [places, N]; codes, scales and bias as in fp8/tile.cuh, of `experts` matrices of N outputs; firsts
// [experts + 1] (experts/tile.cuh).
// The sum over the inputs is the same chain for all sizes of tiles, so a result depends on its input and its expert
// alone.
// Grid: any number of blocks of (GROUPS + 1) * 128 threads; dynamic shared memory as `Fp8Tiles` of
// crates/cuda/src/compile/elements.rs counts it.
// Limit: bandwidth of the weights for few places, that of the second-level cache for many.
// Definition: `Backend::expert_linear`; on the CPU, crates/cpu/src/gemm/grouped.rs.
//
// Defines: OUT, COLUMNS (8, 16, 64 or 128), GROUPS (1 or 2), STAGES, BLOCKS (0 or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "experts/tile.cuh"
#include "fp8/tile.cuh"

// The tiles of this block: every gridDim.x-th, those of the same places one after another.
struct Work {
    const Operands& operands;
    const TileEnds& ends;
    unsigned across, count, index;

    __device__ __forceinline__ Work(const Operands& operands, const TileEnds& ends)
        : operands(operands),
          ends(ends),
          across((operands.outputs + OUTPUTS - 1) / OUTPUTS),
          count(ends.of[operands.experts - 1] * across),
          index(blockIdx.x) {}
    __device__ __forceinline__ bool more() const {
        return index < count;
    }
    __device__ __forceinline__ void next() {
        index += gridDim.x;
    }
    __device__ __forceinline__ Tile tile() const {
        const Rows rows = rows_of(ends, operands, index / across, COLUMNS);
        const unsigned output = index % across * OUTPUTS;
        return {rows.expert, output, operands.outputs, rows.first, rows.first + rows.count};
    }
};

extern "C" __global__ void __launch_bounds__((GROUPS + 1) * GROUP_THREADS, 1)
    expert_linear_fp8(OUT* out, const __grid_constant__ TensorMap w, const float* __restrict__ w_scales,
                      const __grid_constant__ TensorMap x, const float* __restrict__ x_scales,
                      const __grid_constant__ TensorMap x_scale_map, const float* __restrict__ bias,
                      const unsigned* __restrict__ firsts, unsigned experts, unsigned outputs, unsigned inner,
                      unsigned biased) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Ring shared;
    __shared__ TileEnds ends;
    const Layer layer = {out, w_scales, x_scales, bias, outputs, inner, biased, 0};
    const Maps maps = {w, x, x_scale_map};
    // The inputs are of places already, which round_rows has gathered.
    const Operands operands = {firsts, nullptr, experts, outputs, inner, 0};
    init_ring(shared);
    count_tiles(ends, operands, COLUMNS);
    __syncthreads();
    run_tiles(layer, maps, Work(operands, ends), Space(dynamic), shared);
}
#endif
