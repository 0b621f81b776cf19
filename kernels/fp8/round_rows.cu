// Rounds rows of x to e4m3 by scales of their own (fp8/rounding.cuh): codes of x[r] * (1 / scale), rounded to nearest
// even, at most 448. A NaN makes the scale, and so all codes of its row or block, NaN.
//
// Shapes: to e4m3 [R, inner], rows `stride` bytes apart, a multiple of 16; scales f32 [R], or with BLOCKS [ceil(inner /
// 128)] rows of R, `apart` elements from each other; x ELEMENT [rows, inner]; row r of the result is row rows[r] of x
// if `gathers`, else row r.
// Grid: one block per row, of at most THREADS threads, whole warps.
// Limit: bandwidth, sizeof(ELEMENT) + 1 bytes per element.
// Definition: `Backend::linear` with a quantised matrix; on the CPU, `round_row` of
// crates/backend/src/quantised/rounding.rs.
//
// Defines: ELEMENT, BLOCKS (0 or 1).
#include "fp8/rounding.cuh"

// N inputs of a row in memory.
template <int N>
struct Row {
    const ELEMENT* __restrict__ x;
    using Loaded = Lanes<ELEMENT, N>;
    static constexpr unsigned FEW = FEW_HELD, HELD = MOST_HELD;

    __device__ __forceinline__ Loaded load(unsigned k) const {
        return read<N>(x + k);
    }
    __device__ __forceinline__ Lanes<ELEMENT, N> value(const Loaded& loaded) const {
        return loaded;
    }
    __device__ __forceinline__ void keep(unsigned, const Lanes<ELEMENT, N>&) const {}
    __device__ __forceinline__ Lanes<ELEMENT, N> again(unsigned k) const {
        return load(k);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    round_rows(e4m3* __restrict__ to, float* __restrict__ scales, const ELEMENT* __restrict__ x,
               const unsigned* __restrict__ rows, unsigned gathers, unsigned inner, unsigned stride, unsigned apart,
               unsigned fixed, float bound) {
    const unsigned long long row = blockIdx.x,
                             from = (gathers ? rows[row] : row) * static_cast<unsigned long long>(inner);
    round_row<Row>(to + row * stride, scales + row, apart, inner, {fixed, bound}, x + from);
}
