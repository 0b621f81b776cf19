// 4-bit codes (four_bit/panels.cuh) as pairs of f16 or bf16 in registers, exactly: INT4 less its zero point, FP4 as it
// is or times its scale, NVFP4 times its scale. Other scales are not in them, nor are factors: what sums are multiplied
// by in f32 is up to who sums them.
#pragma once

#include "four_bit/panels.cuh"

// Two sums at once.
template <class T>
__device__ __forceinline__ unsigned add_pairs(unsigned a, unsigned b);

template <>
__device__ __forceinline__ unsigned add_pairs<f16>(unsigned a, unsigned b) {
    unsigned sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

// sm_80 has no sum of bf16 but this.
template <>
__device__ __forceinline__ unsigned add_pairs<bf16>(unsigned a, unsigned b) {
    unsigned sum;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3f803f80), "r"(b));
    return sum;
}

// Two products at once. Subnormal operands count.
template <class T>
__device__ __forceinline__ unsigned multiply_pairs(unsigned a, unsigned b);

template <>
__device__ __forceinline__ unsigned multiply_pairs<f16>(unsigned a, unsigned b) {
    unsigned product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

template <>
__device__ __forceinline__ unsigned multiply_pairs<bf16>(unsigned a, unsigned b) {
    unsigned product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000));
    return product;
}

template <class T>
struct CodeConstants;

// 128 + a code is 0x4300 + the code. FP4's exponent is 126 less than that of bf16 with the same bits. TO_FP4 times an
// NVFP4 scale: its byte, (253 - 29) << 3 added, from bit 4 on.
template <>
struct CodeConstants<bf16> {
    static constexpr unsigned BASE = 0x43004300, TO_FP4 = 0x7e807e80, SHIFT = 0;
    static constexpr unsigned SCALE_BASE = 0x700, SCALE_UNIT = 0x00100010;
};

// 1024 + a code is 0x6400 + the code. FP4's exponent is 14 less, and lies three bits higher. TO_FP4 times an NVFP4
// scale: its byte from bit 7 on.
template <>
struct CodeConstants<f16> {
    static constexpr unsigned BASE = 0x64006400, TO_FP4 = 0x74007400, SHIFT = 3;
    static constexpr unsigned SCALE_BASE = 0, SCALE_UNIT = 0x00800080;
};

// Whether numbers of FP4 times their scales are numbers of T. Of NVFP4 a number has two significant bits and its scale
// four, and their product is a multiple of 2^-17 below 22. Powers of two are 2^-100 to 2, which f16 does not hold.
template <class T>
constexpr bool HOLDS_SCALES = FACTORS;
template <>
constexpr bool HOLDS_SCALES<bf16> = true;

// What decides how an output's codes are decoded: the zero point of INT4, the byte of the scale of FP4.
__device__ __forceinline__ unsigned code_mark(const unsigned char* panel, unsigned group, unsigned output) {
    return FP4 ? panel[scale_byte(group, output)] : panel_zero(panel, group, output);
}

// The pair that decodes an output's codes. INT4: -(BASE + zero), which is added to codes above BASE. FP4: what bits in
// the place of a T are multiplied by; if SCALED, the scale is in it.
template <class T, bool SCALED>
__device__ __forceinline__ unsigned code_pair(unsigned mark) {
    static_assert(!SCALED || (FP4 && HOLDS_SCALES<T>), "others have scales apart");
    static_assert(SCALED || !FACTORS, "scales of NVFP4 are in the operands");
    if (!FP4) {
        return (CodeConstants<T>::BASE | 0x80008000) + mark * 0x00010001;
    }
    if (FACTORS) {
        return (mark + CodeConstants<T>::SCALE_BASE) * CodeConstants<T>::SCALE_UNIT;
    }
    // TO_FP4 of bf16 is 2^126, with an exponent of 253; that of a scale of 1 is 127.
    return SCALED ? (mark + 126) * 0x00800080 : CodeConstants<T>::TO_FP4;
}

// (word & mask) | base in one instruction: given two constants, the compiler would take two.
__device__ __forceinline__ unsigned masked_over(unsigned word, unsigned mask, unsigned base) {
    unsigned bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word), "r"(mask), "r"(base));
    return bits;
}

// One word of codes as the left operand of a product of 16 inputs. `pairs`: `code_pair` of the two outputs of a thread.
template <class T>
__device__ __forceinline__ void decode(unsigned (&to)[4], unsigned word, const unsigned (&pairs)[2]) {
    using Constants = CodeConstants<T>;
    if (!FP4) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            to[i] = add_pairs<T>(masked_over(word >> 4 * i, 0x000f000f, Constants::BASE), pairs[i % 2]);
        }
        return;
    }
    constexpr unsigned SIGNS = 0x80008000, SIZES = 0x01c001c0;
#pragma unroll
    for (unsigned i = 0; i < 3; i++) {
        // With no shift both masks are one.
        to[i] = (word << 3 * i & SIGNS) | (word << (3 * i + Constants::SHIFT) & SIZES << Constants::SHIFT);
    }
    const unsigned high = Constants::SHIFT == 0 ? word >> 5 : word >> 2,
                   low = Constants::SHIFT == 0 ? word >> 4 : word >> 1;
    to[3] = (word << 1 & SIGNS) | (high & 0x01000100 << Constants::SHIFT) | (low & 0x00c000c0 << Constants::SHIFT);
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        to[i] = multiply_pairs<T>(to[i], pairs[i % 2]);
    }
}

// Keeps the compiler from decoding behind what follows.
__device__ __forceinline__ void decoded(unsigned (&w)[4]) {
    asm volatile("" : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])::"memory");
}

// The number of input `k` and output `output` of a panel, with its scale but without a factor.
__device__ __forceinline__ float number_at(const unsigned char* panel, unsigned output, unsigned k) {
    const unsigned thread = output / 16 * 32 + output % 8 * 4 + k % 8 / 2, i = output / 8 % 2 + k / 8 % 2 * 2;
    const unsigned* words = reinterpret_cast<const unsigned*>(panel + k / 64 * HALF_BYTES) + thread * 4;
    const unsigned pair = words[k % 64 / 16] >> k % 2 * 16;
    const float scale = panel_scale(panel, k / GROUP, output);
    if (!FP4) {
        return scale *
               (static_cast<float>(pair >> 4 * i & 15) - static_cast<float>(panel_zero(panel, k / GROUP, output)));
    }
    const unsigned sign = (i < 3 ? pair >> (15 - 3 * i) : pair >> 14) & 1;
    const unsigned size = i < 3 ? pair >> (6 - 3 * i) & 7 : (pair >> 13 & 1) << 2 | (pair >> 10 & 3);
    // In the place of an f32's exponent and mantissa the exponent is 126 less.
    return scale * (__uint_as_float(sign << 31 | size << 22) * __uint_as_float(253u << 23));
}
