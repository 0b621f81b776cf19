// x[r][i] = x[r][i] * sigmoid(y[r][i]), in place; the factor is sigmoid(y[r][0]) if `y` has one column.
//
// Shapes: x ELEMENT [R, width], y ELEMENT [R, gates], where `gates` is `width` or 1.
// Grid: x = row, y = blocks over the elements of the row.
// Limit: bandwidth, 3 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::sigmoid_times`; on the CPU, `sigmoid_times` of crates/cpu/src/gated_norm.rs.
#include "lanes.cuh"
#include "sigmoid.cuh"

template <int N>
__device__ __forceinline__ void sigmoid_row(ELEMENT* x, const ELEMENT* y, unsigned width, unsigned gates) {
    const bool is_shared = gates == 1;
    const float shared = sigmoid<ELEMENT>(to_f32(y[0]));
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        Lanes<float, N> lanes = load<N>(x + i);
        Lanes<float, N> own = {};
        if (!is_shared) {
            own = load<N>(y + i);
        }
        for (int lane = 0; lane < N; ++lane) {
            lanes.at[lane] *= is_shared ? shared : sigmoid<ELEMENT>(own.at[lane]);
        }
        store<N>(x + i, lanes);
    }
}

extern "C" __global__ void sigmoid_times(ELEMENT* x, const ELEMENT* __restrict__ y, unsigned width, unsigned gates) {
    ELEMENT* row = x + static_cast<unsigned long long>(blockIdx.x) * width;
    const ELEMENT* gate = y + static_cast<unsigned long long>(blockIdx.x) * gates;
    if (width % LANES == 0) {
        sigmoid_row<LANES>(row, gate, width, gates);
    } else {
        sigmoid_row<1>(row, gate, width, gates);
    }
}
