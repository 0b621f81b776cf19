// Products of a Hopper warpgroup (sm_90a) with both operands in shared memory: 64 rows of weights times N places, 16
// inputs at a time. Operands are panels of attention/wgmma.cuh, whose descriptors name them. A sum is one chain of
// instructions over the inputs in rising order, whatever N: so its bits do not depend on the tile.
#pragma once

#include "attention/wgmma.cuh"
#include "wgmma_sums.cuh"

// sum [64 x N] += weights [64 x 16] inputs [N x 16]^T. WEIGHTS, INPUTS: the operands behind the sum's registers.
template <class T, unsigned N>
__device__ __forceinline__ void multiply_panels(float (&sum)[N / 8][4], unsigned long long weights,
                                                unsigned long long inputs);

#define DEFINE_PANELS(T, types, N, WEIGHTS, INPUTS) \
    template <> \
    __device__ __forceinline__ void multiply_panels<T, N>(float (&sum)[N / 8][4], unsigned long long weights, \
                                                          unsigned long long inputs) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." types " {" REGISTERS_##N "}, " \
                     WEIGHTS ", " INPUTS ", 1, 1, 1, 0, 0;" \
                     : SUMS_##N(sum, 0) \
                     : "l"(weights), "l"(inputs)); \
    }
#define DEFINE_ALL_PANELS(T, types) \
    DEFINE_PANELS(T, types, 8, "%4", "%5") \
    DEFINE_PANELS(T, types, 16, "%8", "%9") \
    DEFINE_PANELS(T, types, 32, "%16", "%17") \
    DEFINE_PANELS(T, types, 48, "%24", "%25") \
    DEFINE_PANELS(T, types, 64, "%32", "%33") \
    DEFINE_PANELS(T, types, 80, "%40", "%41") \
    DEFINE_PANELS(T, types, 96, "%48", "%49") \
    DEFINE_PANELS(T, types, 112, "%56", "%57") \
    DEFINE_PANELS(T, types, 128, "%64", "%65") \
    DEFINE_PANELS(T, types, 144, "%72", "%73") \
    DEFINE_PANELS(T, types, 160, "%80", "%81") \
    DEFINE_PANELS(T, types, 176, "%88", "%89") \
    DEFINE_PANELS(T, types, 192, "%96", "%97")
DEFINE_ALL_PANELS(f16, "f16.f16")
DEFINE_ALL_PANELS(bf16, "bf16.bf16")
