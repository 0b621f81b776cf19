// A linear layer of e4m3 weights and activations on Hopper (fp8/tile.cuh), or some neighbouring outputs of it.
//
// out[r][n] = x_scales[r] * w_scales[n] * sum over k of x[r][k] w[n][k] (+ bias[n]) (+ the old out[r][n], if
// `accumulates`), for n of first .. end; with BLOCKS the scales are those of each 128 inputs, whose sums they multiply.
//
// Shapes: out OUT [R, N]; codes, scales and bias as in fp8/tile.cuh, of one matrix of N outputs.
// A tile has OUTPUTS outputs and COLUMNS rows. The sum over the inputs is the same chain for all sizes, so a row's
// result depends on that row alone.
// Grid: any number of blocks of (GROUPS + 1) * 128 threads; dynamic shared memory as `Fp8Tiles` of
// crates/cuda/src/compile/elements.rs counts it.
// Limit: bandwidth of the weights for few rows; for many that of the second-level cache, as tiles are small: two parts
// of the sums are in registers.
// Definition: `Backend::linear`; on the CPU, crates/cpu/src/gemm/quantised/clear.rs.
//
// Defines: OUT, COLUMNS (8, 16, 64 or 128), GROUPS (1 or 2), STAGES, BLOCKS (0 or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "fp8/tile.cuh"

// Tiles of so many neighbouring outputs follow each other before the next rows: their weights stay in the second-level
// cache.
constexpr unsigned BAND = 16;

// The tiles of this block: every gridDim.x-th.
struct Work {
    unsigned rows, first, end, across, down, index;

    __device__ __forceinline__ Work(unsigned rows, unsigned first, unsigned end)
        : rows(rows),
          first(first),
          end(end),
          across((end - first + OUTPUTS - 1) / OUTPUTS),
          down((rows + COLUMNS - 1) / COLUMNS),
          index(blockIdx.x) {}
    __device__ __forceinline__ bool more() const {
        return index < across * down;
    }
    __device__ __forceinline__ void next() {
        index += gridDim.x;
    }
    __device__ __forceinline__ Tile tile() const {
        const unsigned band = index / (BAND * down), within = index % (BAND * down),
                       width = min(BAND, across - band * BAND);
        const unsigned output = first + (band * BAND + within % width) * OUTPUTS;
        return {0, output, end, within / width * COLUMNS, rows};
    }
};

extern "C" __global__ void __launch_bounds__((GROUPS + 1) * GROUP_THREADS, 1)
    linear_fp8(OUT* out, const __grid_constant__ TensorMap w, const float* __restrict__ w_scales,
               const __grid_constant__ TensorMap x, const float* __restrict__ x_scales,
               const __grid_constant__ TensorMap x_scale_map, const float* __restrict__ bias, unsigned rows,
               unsigned outputs, unsigned inner, unsigned first, unsigned end, unsigned biased, unsigned accumulates) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Ring shared;
    const Layer layer = {out, w_scales, x_scales, bias, outputs, inner, biased, accumulates};
    const Maps maps = {w, x, x_scale_map};
    init_ring(shared);
    __syncthreads();
    run_tiles(layer, maps, Work(rows, first, end), Space(dynamic), shared);
}
#endif
