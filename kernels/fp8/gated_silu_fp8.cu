// gated_silu whose results are rounded to e4m3, as round_rows would round them: the next product need not.
//
// out[r][i] = silu(x[r][i]) * x[r][width + i], stored if `keeps`; codes and scales of out[r] (fp8/rounding.cuh).
//
// Shapes: as those of ops/gated_silu.cu and fp8/round_rows.cu.
// Grid: one block per row, of at most THREADS threads, whole warps.
// Limit: bandwidth, 2 * sizeof(ELEMENT) + 1 bytes per output, and sizeof(ELEMENT) more if `keeps`.
// Definition: `Backend::gated`, and `round_row` of crates/backend/src/quantised/rounding.rs.
//
// Defines: ELEMENT, BLOCKS (0 or 1).
#include "fp8/rounding.cuh"
#include "ops/gated_silu.cuh"

// Where the gate of a row lies.
struct GatedRow {
    ELEMENT* out;
    const ELEMENT* x;
    unsigned width, keeps;
};

// N outputs of it.
template <int N>
struct Gated {
    GatedRow row;
    static constexpr unsigned FEW = FEW_HELD, HELD = MOST_HELD;

    struct Loaded {
        Lanes<ELEMENT, N> gate, up;
    };

    __device__ __forceinline__ Loaded load(unsigned k) const {
        return {read<N>(row.x + k), read<N>(row.x + row.width + k)};
    }
    __device__ __forceinline__ Lanes<ELEMENT, N> value(const Loaded& loaded) const {
        Lanes<ELEMENT, N> made;
#pragma unroll
        for (int i = 0; i < N; i++) {
            made.at[i] = from_f32<ELEMENT>(gate_silu(to_f32(loaded.gate.at[i]), to_f32(loaded.up.at[i])));
        }
        return made;
    }
    __device__ __forceinline__ void keep(unsigned k, const Lanes<ELEMENT, N>& made) const {
        if (row.keeps) {
            *reinterpret_cast<Lanes<ELEMENT, N>*>(row.out + k) = made;
        }
    }
    __device__ __forceinline__ Lanes<ELEMENT, N> again(unsigned k) const {
        return value(load(k));
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    gated_silu_fp8(ELEMENT* out, e4m3* __restrict__ to, float* __restrict__ scales, const ELEMENT* __restrict__ x,
                   unsigned width, unsigned keeps, unsigned stride, unsigned apart, unsigned fixed, float bound) {
    const unsigned long long index = blockIdx.x, at = index * width;
    const GatedRow row = {out + at, x + 2 * at, width, keeps};
    round_row<Gated>(to + index * stride, scales + index, apart, width, {fixed, bound}, row);
}
