// out[i] = centre + reach * u(i), with u uniform in [-1, 1): generates random weights on the device, bitwise equal to
// those of the CPU.
//
// Shapes: out ELEMENT [elements]. An element depends on its stream and index alone, not on the grid.
// Grid: a grid-stride loop over the elements.
// Limit: bandwidth, sizeof(ELEMENT) bytes per element, plus about 20 integer operations.
// Definition: `Uniform` of crates/backend/src/weights.rs.
#include "element.cuh"

// SplitMix64's finaliser, as in crates/core/src/mix.rs. GOLDEN is its increment.
__device__ __forceinline__ unsigned long long mix(unsigned long long z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

constexpr unsigned long long GOLDEN = 0x9e3779b97f4a7c15ull;

extern "C" __global__ void random_weights(ELEMENT* out, unsigned long long elements, unsigned long long stream,
                                          float centre, float reach) {
    unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements;
         i += stride) {
        unsigned upper = static_cast<unsigned>(mix(stream + i + GOLDEN) >> 40);
        float uniform = static_cast<float>(upper) / 8388608.0f - 1.0f;
        // Rounded twice, as on the CPU: no fused multiply-add.
        out[i] = from_f32<ELEMENT>(__fadd_rn(centre, __fmul_rn(reach, uniform)));
    }
}
