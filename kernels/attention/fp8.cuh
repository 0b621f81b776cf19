// Conversions for 8-bit keys and values (e4m3) on their way to tensor cores. They are widened to f16, which is exact;
// queries and weights are converted to f16 too.
#pragma once

#include "attention/mma.cuh"

// Four e4m3 values to two registers of f16.
#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ void widen(unsigned (&to)[2], unsigned from) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(to[0]), "=r"(to[1])
        : "r"(from));
}
#else
__device__ __forceinline__ void widen(unsigned (&to)[2], unsigned from) {
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        const float low = to_f32(e4m3{static_cast<unsigned char>(from >> 16 * i)});
        const float high = to_f32(e4m3{static_cast<unsigned char>(from >> (16 * i + 8))});
        to[i] = pack<f16>(low, high);
    }
}
#endif

// Packs two neighbouring elements as f16, saturating at the largest finite value.
__device__ __forceinline__ unsigned pack_finite(float low, float high) {
    unsigned pair;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Converts two elements of a query to f16.
template <class T>
__device__ __forceinline__ unsigned as_f16(unsigned pair);

template <>
__device__ __forceinline__ unsigned as_f16<f16>(unsigned pair) {
    return pair;
}

template <>
__device__ __forceinline__ unsigned as_f16<bf16>(unsigned pair) {
    return pack_finite(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
}

// Whether queries are converted: to f16, if they are multiplied with e4m3.
template <class Query, class Key>
constexpr bool CONVERTED = sizeof(Key) == 1;
template <class Key>
constexpr bool CONVERTED<f16, Key> = false;

__device__ __forceinline__ void load_8(unsigned (&to)[2], unsigned from) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(from) : "memory");
}

__device__ __forceinline__ void load_16(unsigned (&to)[4], unsigned from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void store_16(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
