// Rounds each row of x to e4m3 by a scale of its own: scales[r] = min(largest |x[r]|, most) / 448, or 1 where that is zero;
// codes of x[r] / scales[r], rounded to nearest even, at most 448. A NaN in a row makes its scale, and so all of it, NaN.
//
// Shapes: to: panels (fp8/panels.cuh) of x ELEMENT [R, inner]; scales f32 [R].
// Grid: one block of THREADS threads per row, which reads it twice, the second time from the cache.
// Limit: bandwidth, sizeof(ELEMENT) + 1 bytes per element.
// Definition: `Backend::linear` with a quantised matrix; on the CPU, `round_row` of src/backend/quantised/rounding.rs.
//
// Defines: ELEMENT.
#include "fp8/panels.cuh"
#include "lanes.cuh"
#include "reduce.cuh"

constexpr unsigned SIGNLESS = 0x7fffffff;

// Largest bits over the block, returned in every thread: of numbers without sign, those of the largest; of a NaN more.
__device__ __forceinline__ unsigned block_most(unsigned bits) {
    __shared__ unsigned warps[THREADS / 32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        bits = max(bits, __shfl_xor_sync(0xffffffff, bits, distance));
    }
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = bits;
    }
    __syncthreads();
    for (unsigned warp = 0; warp < THREADS / 32; ++warp) {
        bits = max(bits, warps[warp]);
    }
    return bits;
}

template <int N>
__device__ __forceinline__ float row_scale(const ELEMENT* x, unsigned inner, float most) {
    unsigned bits = 0;
    for (unsigned k = threadIdx.x * N; k < inner; k += THREADS * N) {
        const Lanes<float, N> lanes = load<N>(x + k);
        for (float value : lanes.at) {
            bits = max(bits, __float_as_uint(value) & SIGNLESS);
        }
    }
    const float largest = __uint_as_float(block_most(bits));
    const float scale = (largest > most ? most : largest) / 448.0f;
    return scale == 0.0f ? 1.0f : scale;
}

template <int N>
__device__ __forceinline__ void round_row(e4m3* to, const ELEMENT* x, unsigned inner, float scale, unsigned atoms) {
    // Panels are filled up with zeros.
    for (unsigned k = threadIdx.x * N; k < panels_of(inner) * PANEL_INPUTS; k += THREADS * N) {
        Lanes<float, N> lanes = {};
        if (k < inner) {
            lanes = load<N>(x + k);
            for (float& value : lanes.at) {
                value = value / scale;
            }
        }
        store<N>(to + activation_at(blockIdx.x, k, atoms), lanes);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    round_rows(e4m3* __restrict__ to, float* __restrict__ scales, const ELEMENT* __restrict__ x, unsigned inner, float most) {
    const ELEMENT* row = x + static_cast<unsigned long long>(blockIdx.x) * inner;
    const unsigned atoms = (gridDim.x + 7) / 8;
    const bool whole = inner % LANES == 0;
    const float scale = whole ? row_scale<LANES>(row, inner, most) : row_scale<1>(row, inner, most);
    if (threadIdx.x == 0) {
        scales[blockIdx.x] = scale;
    }
    if (whole) {
        round_row<LANES>(to, row, inner, scale, atoms);
    } else {
        round_row<1>(to, row, inner, scale, atoms);
    }
}
