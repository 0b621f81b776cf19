// Matrices of 4-bit codes as panels, the form in which all kernels here read them: 64 outputs times 128 inputs, missing
// ones of code 0, [matrix][ceil(outputs / 64)][ceil(inner / 128)]. A panel is a piece of CODE_PANEL_BYTES:
//
//   codes   [2 halves of 64 inputs][128 threads][4 words]: word `s` of a thread is what it brings to the 16 inputs `s`
//           of that half as the left operand of a tensor-core product of 16 outputs a warp (attention/mma.cuh)
//   scales  [128 / GROUP][64]: INT4: f32; FP4: a byte, the exponent of a power of two with 127 added. NVFP4: bytes of
//           five bits, the exponent with 29 added, and three of the mantissa, in words of two groups and the two
//           outputs of a thread: [4 pairs of groups][4 warps][8][2 groups][2 outputs, 8 apart]
//   zeros   [128 / GROUP][64] bytes, only INT4: the code that stands for 0
//
// NVFP4, which is FP4 in groups of 16, has an f32 factor for each output: 64 of them lie behind the panels of 64
// outputs. An element is number * scale * factor. Scales are at most 3.5 there, so that TO_FP4 of four_bit/decode.cuh
// times a scale is a number of f16 and of bf16.
//
// No scale of an output that exists is 0 or below 2^-100: groups of such a scale have codes that stand for 0.
// Of a word, register i of the operand has two neighbouring inputs, the first in the lower 16 bits. INT4: four bits at
// 4 i. FP4 (e2m1): its sign at 15 - 3 i and the other three at 6 - 3 i, for i = 3 its sign at 14 and the others at 13,
// 11 and 10: so that three of four registers are one shift and one mask. Packed by crates/cuda/src/memory/four_bit.rs.
//
// Defines: FP4 (0: INT4, 1: FP4), GROUP (32, 64 or 128; FP4: 16 or 32).
#pragma once

#include "element.cuh"

constexpr unsigned CODE_INPUTS = 128, CODE_OUTPUTS = 64;  // of a panel
constexpr unsigned CODE_BYTES = CODE_INPUTS * CODE_OUTPUTS / 2, HALF_BYTES = CODE_BYTES / 2;
constexpr unsigned CODE_GROUPS = CODE_INPUTS / GROUP;
constexpr unsigned ZEROS_AT = CODE_BYTES + CODE_GROUPS * CODE_OUTPUTS * (FP4 ? 1 : 4);
constexpr unsigned CODE_PANEL_BYTES = ZEROS_AT + CODE_GROUPS * CODE_OUTPUTS * (FP4 ? 0 : 1);
constexpr bool FACTORS = FP4 && GROUP == 16;  // NVFP4
constexpr unsigned FACTOR_BYTES = FACTORS ? CODE_OUTPUTS * 4 : 0;

__device__ __forceinline__ unsigned code_panels(unsigned inner) {
    return (inner + CODE_INPUTS - 1) / CODE_INPUTS;
}

__device__ __forceinline__ unsigned code_groups(unsigned outputs) {
    return (outputs + CODE_OUTPUTS - 1) / CODE_OUTPUTS;
}

// Bytes of 64 outputs.
__device__ __forceinline__ unsigned long long code_group_bytes(unsigned inner) {
    return static_cast<unsigned long long>(code_panels(inner)) * CODE_PANEL_BYTES + FACTOR_BYTES;
}

// Offset in bytes of the first panel of outputs from `output` on, a multiple of 64, of matrix `matrix`.
__device__ __forceinline__ unsigned long long panel_at(unsigned matrix, unsigned output, unsigned outputs,
                                                       unsigned inner) {
    return (matrix * code_groups(outputs) + output / CODE_OUTPUTS) * code_group_bytes(inner);
}

// Where in a panel the byte is that is the scale of group `group` and output `output`, of FP4.
__device__ __forceinline__ unsigned scale_byte(unsigned group, unsigned output) {
    const unsigned word = group / 2 * 32 + output / 16 * 8 + output % 8;
    return CODE_BYTES +
           (FACTORS ? word * 4 + group % 2 * 2 + output / 8 % 2 : group * CODE_OUTPUTS + output);
}

// The scale of group `group` and output `output` of the panel at `panel`.
__device__ __forceinline__ float panel_scale(const unsigned char* panel, unsigned group, unsigned output) {
    if (FACTORS) {
        // An f32's exponent has 127 added.
        return __uint_as_float((static_cast<unsigned>(panel[scale_byte(group, output)]) << 20) + (98u << 23));
    }
    if (FP4) {
        return __uint_as_float(static_cast<unsigned>(panel[scale_byte(group, output)]) << 23);
    }
    return reinterpret_cast<const float*>(panel + CODE_BYTES)[group * CODE_OUTPUTS + output];
}

// The factor of output `output` of matrix `matrix`; of one behind the padded outputs, any.
__device__ __forceinline__ float panel_factor(const unsigned char* weights, unsigned matrix, unsigned output,
                                              unsigned outputs, unsigned inner) {
    if (output / CODE_OUTPUTS >= code_groups(outputs)) {
        return 0.0f;
    }
    const unsigned char* own = weights + panel_at(matrix, output, outputs, inner);
    return reinterpret_cast<const float*>(own + code_panels(inner) * CODE_PANEL_BYTES)[output % CODE_OUTPUTS];
}

__device__ __forceinline__ unsigned panel_zero(const unsigned char* panel, unsigned group, unsigned output) {
    return FP4 ? 0 : panel[ZEROS_AT + group * CODE_OUTPUTS + output];
}
