// Random numbers that follow from a stream and an index alone, so that every device and the host make the same ones:
// `Uniform` of crates/backend/src/weights.rs.
#pragma once

#include "element.cuh"

constexpr unsigned long long GOLDEN = 0x9e3779b97f4a7c15ull;

// SplitMix64's finaliser, as in crates/core/src/mix.rs. GOLDEN is its increment.
__device__ __forceinline__ unsigned long long mix(unsigned long long z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Numbers around `centre`, at most `reach` from it.
struct Uniform {
    unsigned long long stream;
    float centre, reach;

    __device__ __forceinline__ float at(unsigned long long i) const {
        const unsigned upper = static_cast<unsigned>(mix(stream + i + GOLDEN) >> 40);
        const float unit = static_cast<float>(upper) / 8388608.0f - 1.0f;
        // Rounded twice, as on the CPU: no fused multiply-add.
        return __fadd_rn(centre, __fmul_rn(reach, unit));
    }
};
