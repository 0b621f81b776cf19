// Element types of weights, keys, values and activations, with conversions to and from float. f16, bf16 and e4m3 are
// stored as their bits, since no CUDA toolkit header is included. A compilation unit selects its types with -D, for
// example -DELEMENT=bf16.
#pragma once

struct f16 {
    unsigned short bits;
};

struct bf16 {
    unsigned short bits;
};

// OCP e4m3fn: 1 sign, 4 exponent and 3 mantissa bits, at most 448, subnormal step 2^-9, no infinity. f16, bf16 and f32
// represent every value exactly.
struct e4m3 {
    unsigned char bits;
};

using f32 = float;

__device__ __forceinline__ float to_f32(float x) {
    return x;
}

__device__ __forceinline__ float to_f32(bf16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

__device__ __forceinline__ float to_f32(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// Shifts the bits into f32 position and multiplies by 2^120 to correct the exponent bias: exact for subnormals too, and
// needs no sm_89 instruction.
__device__ __forceinline__ float to_f32(e4m3 x) {
    const unsigned magnitude = x.bits & 0x7f, sign = (x.bits & 0x80u) << 24;
    return magnitude == 0x7f ? __uint_as_float(0x7fffffff)
                             : __uint_as_float(sign | magnitude << 20) * __uint_as_float(247u << 23);
}

// Rounds to nearest even. Conversion to e4m3 saturates at 448.
template <class T>
__device__ __forceinline__ T from_f32(float x);

template <>
__device__ __forceinline__ float from_f32<float>(float x) {
    return x;
}

template <>
__device__ __forceinline__ f16 from_f32<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

template <>
__device__ __forceinline__ bf16 from_f32<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

template <>
__device__ __forceinline__ e4m3 from_f32<e4m3>(float x) {
    const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return {0x7f};
    }
    const float most = fminf(__uint_as_float(magnitude), 448.0f);
    // Adding 2^23 times the spacing of e4m3 values rounds to a multiple of that spacing.
    const float far = __uint_as_float(max(__float_as_uint(most) & 0x7f800000, 121u << 23)) * 1048576.0f;
    const float rounded = (most + far) - far;
    return {static_cast<unsigned char>(sign | __float_as_uint(rounded * __uint_as_float(7u << 23)) >> 20)};
}

// Packs two neighbouring elements into one register, `low` at the lower address.
template <class T>
__device__ __forceinline__ unsigned pack(float low, float high);

template <>
__device__ __forceinline__ unsigned pack<f16>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

template <>
__device__ __forceinline__ unsigned pack<bf16>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
