// rms_norm whose results are rounded to e4m3, as round_rows would round them: the next product need not.
//
// out[r][i] = x[r][i] / sqrt(mean(x[r]^2) + eps) * weight[i], stored if `keeps`; codes and scales of out[r]
// (fp8/rounding.cuh).
//
// Shapes: as those of ops/rms_norm.cu and fp8/round_rows.cu.
// Grid: one block of THREADS threads per row, with shared memory for `width` floats.
// Limit: bandwidth, 5 bytes per element, and sizeof(ELEMENT) more if `keeps`.
// Definition: `Backend::rms_norm`, and `round_row` of crates/backend/src/quantised/rounding.rs.
//
// Defines: ELEMENT, BLOCKS (0 or 1).
#include "fp8/rounding.cuh"
#include "ops/rms_norm.cuh"

// Where the norm of a row lies, and what it is made of.
struct NormedRow {
    ELEMENT* out;
    const float* row;
    const float* weight;
    float scale;
    unsigned keeps;
};

// N numbers of it.
template <int N>
struct Normed {
    NormedRow of;
    using Loaded = Lanes<ELEMENT, N>;
    // The row is in shared memory.
    static constexpr unsigned FEW = FEW_HELD / 2, HELD = FEW;

    __device__ __forceinline__ Loaded load(unsigned k) const {
        return as_elements<N>(rms_normed<N>(of.row, of.weight, k, of.scale));
    }
    __device__ __forceinline__ Lanes<ELEMENT, N> value(const Loaded& loaded) const {
        return loaded;
    }
    __device__ __forceinline__ void keep(unsigned k, const Lanes<ELEMENT, N>& made) const {
        if (of.keeps) {
            *reinterpret_cast<Lanes<ELEMENT, N>*>(of.out + k) = made;
        }
    }
    __device__ __forceinline__ Lanes<ELEMENT, N> again(unsigned k) const {
        return load(k);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm_fp8(ELEMENT* out, e4m3* __restrict__ to, float* __restrict__ scales, const float* __restrict__ x,
                 const float* __restrict__ weight, unsigned width, float eps, unsigned keeps, unsigned stride,
                 unsigned apart, unsigned fixed, float bound) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    float* row = reinterpret_cast<float*>(dynamic);
    const unsigned long long index = blockIdx.x, at = index * width;
    const float scale =
        width % LANES == 0 ? rms_scale<LANES>(x + at, width, eps, row) : rms_scale<1>(x + at, width, eps, row);
    // A thread's numbers may be others than those it wrote.
    __syncthreads();
    const NormedRow normed = {out + at, row, weight, scale, keeps};
    round_row<Normed>(to + index * stride, scales + index, apart, width, {fixed, bound}, normed);
}
