// Products of a Hopper warpgroup (sm_90a) with weights in registers: 64 outputs times N rows, 16 inputs at a time. The
// rows' inputs are panels of attention/wgmma.cuh in shared memory. A sum is one chain of instructions, whatever N.
#pragma once

#include "experts/products.cuh"

// sum [64 x N] = weights [64 x 16] inputs [N x 16]^T, plus the old sum if `more`.
template <class T, unsigned N>
__device__ __forceinline__ void multiply_codes(float (&sum)[N / 8][4], const unsigned (&w)[4],
                                               unsigned long long inputs, bool more);

#define DEFINE_CODES(T, types, N, WEIGHTS, INPUTS, MORE) \
    template <> \
    __device__ __forceinline__ void multiply_codes<T, N>(float (&sum)[N / 8][4], const unsigned (&w)[4], \
                                                         unsigned long long inputs, bool more) { \
        asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " MORE ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." types " {" REGISTERS_##N "}, {" WEIGHTS "}, " \
                     INPUTS ", more, 1, 1, 0;\n}" \
                     : SUMS_##N(sum, 0) \
                     : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(inputs), "r"(static_cast<int>(more))); \
    }
#define DEFINE_ALL_CODES(T, types) \
    DEFINE_CODES(T, types, 8, "%4, %5, %6, %7", "%8", "%9") \
    DEFINE_CODES(T, types, 16, "%8, %9, %10, %11", "%12", "%13") \
    DEFINE_CODES(T, types, 32, "%16, %17, %18, %19", "%20", "%21") \
    DEFINE_CODES(T, types, 64, "%32, %33, %34, %35", "%36", "%37") \
    DEFINE_CODES(T, types, 128, "%64, %65, %66, %67", "%68", "%69") \
    DEFINE_CODES(T, types, 192, "%96, %97, %98, %99", "%100", "%101") \
    DEFINE_CODES(T, types, 256, "%128, %129, %130, %131", "%132", "%133")
DEFINE_ALL_CODES(f16, "f16.f16")
DEFINE_ALL_CODES(bf16, "bf16.bf16")
