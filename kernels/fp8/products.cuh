// Products of panels of e4m3 by a Hopper warpgroup (sm_90a): both operands in shared memory, as fp8/tile.cuh has them.
#pragma once

#include "attention/wgmma.cuh"
#include "wgmma_sums.cuh"

// sum [64 x N] = w [64 x 32] x [N x 32]^T, plus the old sum if `more`. Descriptors as in attention/wgmma.cuh; the next
// 32 inputs are 32 bytes further. A sum over more than some hundred inputs is wrong in its first digits: see
// fp8/tile.cuh.
template <unsigned N>
__device__ __forceinline__ void multiply_fp8(float (&sum)[N / 8][4], unsigned long long w, unsigned long long x,
                                             bool more);

#define DEFINE_FP8(N, W, X, MORE) \
    template <> \
    __device__ __forceinline__ void multiply_fp8<N>(float (&sum)[N / 8][4], unsigned long long w, \
                                                    unsigned long long x, bool more) { \
        asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " MORE ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" REGISTERS_##N "}, " \
                     W ", " X ", more, 1, 1;\n}" \
                     : SUMS_##N(sum, 0) \
                     : "l"(w), "l"(x), "r"(static_cast<int>(more))); \
    }
DEFINE_FP8(8, "%4", "%5", "%6")
DEFINE_FP8(16, "%8", "%9", "%10")
DEFINE_FP8(32, "%16", "%17", "%18")
DEFINE_FP8(48, "%24", "%25", "%26")
DEFINE_FP8(64, "%32", "%33", "%34")
DEFINE_FP8(80, "%40", "%41", "%42")
DEFINE_FP8(96, "%48", "%49", "%50")
DEFINE_FP8(112, "%56", "%57", "%58")
DEFINE_FP8(128, "%64", "%65", "%66")
DEFINE_FP8(144, "%72", "%73", "%74")
DEFINE_FP8(160, "%80", "%81", "%82")
DEFINE_FP8(176, "%88", "%89", "%90")
DEFINE_FP8(192, "%96", "%97", "%98")
