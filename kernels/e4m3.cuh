// Storing e4m3: two neighbouring elements at once where the GPU has an instruction for it (from sm_89 on). This header
// is apart from lanes.cuh so that kernels without 8-bit stores are the same source for sm_80 and sm_89.
#pragma once

#include "lanes.cuh"

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ unsigned short convert_e4m3x2(float low, float high) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
#endif

// The codes of two neighbouring elements, `low` at the lower address: those of from_f32, at once where the GPU can.
__device__ __forceinline__ unsigned short pack_e4m3(float low, float high) {
#if __CUDA_ARCH__ >= 890
    return convert_e4m3x2(low, high);
#else
    return static_cast<unsigned short>(from_f32<e4m3>(low).bits | from_f32<e4m3>(high).bits << 8);
#endif
}

template <int N>
__device__ __forceinline__ void store(e4m3* to, const Lanes<float, N>& x) {
    if constexpr (N % 2 == 0) {
        Lanes<unsigned short, N / 2> pairs;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            pairs.at[i] = pack_e4m3(x.at[2 * i], x.at[2 * i + 1]);
        }
        *reinterpret_cast<Lanes<unsigned short, N / 2>*>(to) = pairs;
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            to[i] = from_f32<e4m3>(x.at[i]);
        }
    }
}
