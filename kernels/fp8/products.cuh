// Products of panels of e4m3 by a Hopper warpgroup (sm_90a): both operands in shared memory, as fp8/tile.cuh has them.
#pragma once

#include "attention/wgmma.cuh"

// sum [64 x N] = w [64 x 32] x [N x 32]^T, plus the old sum if `more`. Descriptors as in attention/wgmma.cuh; the next
// 32 inputs are 32 bytes further. A sum over more than some hundred inputs is wrong in its first digits: see
// fp8/tile.cuh.
template <unsigned N>
__device__ __forceinline__ void multiply_fp8(float (&sum)[N / 8][4], unsigned long long w, unsigned long long x,
                                             bool more);

#define FP8_REGISTERS_8 "%0, %1, %2, %3"
#define FP8_REGISTERS_16 FP8_REGISTERS_8 ", %4, %5, %6, %7"
#define FP8_REGISTERS_64 FP8_REGISTERS_16 \
    ", %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
    "%30, %31"
#define FP8_REGISTERS_128 FP8_REGISTERS_64 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FP8_SUMS_8(sum) "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3])
#define FP8_SUMS_16(sum) SUM_8(sum, 0)
#define FP8_SUMS_64(sum) SUM_32(sum, 0)
#define FP8_SUMS_128(sum) SUM_32(sum, 0), SUM_32(sum, 8)

#define DEFINE_FP8(N, W, X, MORE) \
    template <> \
    __device__ __forceinline__ void multiply_fp8<N>(float (&sum)[N / 8][4], unsigned long long w, \
                                                    unsigned long long x, bool more) { \
        asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " MORE ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" FP8_REGISTERS_##N "}, " \
                     W ", " X ", more, 1, 1;\n}" \
                     : FP8_SUMS_##N(sum) \
                     : "l"(w), "l"(x), "r"(static_cast<int>(more))); \
    }
DEFINE_FP8(8, "%4", "%5", "%6")
DEFINE_FP8(16, "%8", "%9", "%10")
DEFINE_FP8(64, "%32", "%33", "%34")
DEFINE_FP8(128, "%64", "%65", "%66")
