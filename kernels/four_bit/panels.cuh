// Matrices of 4-bit codes as panels, the form in which all kernels here read them: 64 outputs times 128 inputs, missing
// ones of code 0, [matrix][ceil(outputs / 64)][ceil(inner / 128)]. A panel is a piece of PANEL_BYTES:
//
//   codes   [2 halves of 64 inputs][128 threads][4 words]: word `s` of a thread is what it brings to the 16 inputs `s`
//           of that half as the left operand of a tensor-core product of 16 outputs a warp (attention/mma.cuh)
//   scales  [128 / GROUP][64]: INT4: f32; FP4: a byte, the exponent of a power of two with 127 added
//   zeros   [128 / GROUP][64] bytes, only INT4: the code that stands for 0
//
// No scale of an output that exists is 0 or below 2^-100: groups of such a scale have codes that stand for 0.
// Of a word, register i of the operand has two neighbouring inputs, the first in the lower 16 bits. INT4: four bits at
// 4 i. FP4 (e2m1): its sign at 15 - 3 i and the other three at 6 - 3 i, for i = 3 its sign at 14 and the others at 13,
// 11 and 10: so that three of four registers are one shift and one mask. Packed by crates/cuda/src/memory/four_bit.rs.
//
// Defines: FP4 (0: INT4, 1: FP4), GROUP (32, 64 or 128; FP4: 32).
#pragma once

#include "element.cuh"

constexpr unsigned CODE_INPUTS = 128, CODE_OUTPUTS = 64;  // of a panel
constexpr unsigned CODE_BYTES = CODE_INPUTS * CODE_OUTPUTS / 2, HALF_BYTES = CODE_BYTES / 2;
constexpr unsigned CODE_GROUPS = CODE_INPUTS / GROUP;
constexpr unsigned ZEROS_AT = CODE_BYTES + CODE_GROUPS * CODE_OUTPUTS * (FP4 ? 1 : 4);
constexpr unsigned CODE_PANEL_BYTES = ZEROS_AT + CODE_GROUPS * CODE_OUTPUTS * (FP4 ? 0 : 1);

__device__ __forceinline__ unsigned code_panels(unsigned inner) {
    return (inner + CODE_INPUTS - 1) / CODE_INPUTS;
}

__device__ __forceinline__ unsigned code_groups(unsigned outputs) {
    return (outputs + CODE_OUTPUTS - 1) / CODE_OUTPUTS;
}

// Offset in bytes of the first panel of outputs from `output` on, a multiple of 64, of matrix `matrix`.
__device__ __forceinline__ unsigned long long panel_at(unsigned matrix, unsigned output, unsigned outputs,
                                                       unsigned inner) {
    const unsigned group = matrix * code_groups(outputs) + output / CODE_OUTPUTS;
    return static_cast<unsigned long long>(group) * code_panels(inner) * CODE_PANEL_BYTES;
}

// The scale of group `group` and output `output` of the panel at `panel`.
__device__ __forceinline__ float panel_scale(const unsigned char* panel, unsigned group, unsigned output) {
    const unsigned at = group * CODE_OUTPUTS + output;
    if (FP4) {
        return __uint_as_float(static_cast<unsigned>(panel[CODE_BYTES + at]) << 23);
    }
    return reinterpret_cast<const float*>(panel + CODE_BYTES)[at];
}

__device__ __forceinline__ unsigned panel_zero(const unsigned char* panel, unsigned group, unsigned output) {
    return FP4 ? 0 : panel[ZEROS_AT + group * CODE_OUTPUTS + output];
}
