// CUDA's own words, by the emulator: what kernels may use without including it.
#pragma once

#include "emulator.hpp"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

#define threadIdx (emulated::Dim{emulated::current->number, 0, 0})
#define blockIdx (emulated::current->block)
#define blockDim (emulated::Dim{emulated::current->block_threads, 1, 1})
#define gridDim (emulated::Dim{emulated::current->grid, 1, 1})

inline void __syncthreads() {
    emulated::meet(0, emulated::current->block_threads);
}

inline void __syncwarp() {
    emulated::meet_lanes();
}

// Every thread of a block contributes a word behind the first barrier, and reads the result before the second.
inline bool __syncthreads_or(bool value) {
    auto& any = emulated::shared_variable<unsigned[1]>("__syncthreads_or")[0];
    __syncthreads();
    any = 0;
    __syncthreads();
    any |= value ? 1 : 0;
    __syncthreads();
    return any != 0;
}

inline float __fadd_rn(float a, float b) {
    return a + b;
}

inline float __fsub_rn(float a, float b) {
    return a - b;
}

inline float __fmul_rn(float a, float b) {
    return a * b;
}

inline float __fdiv_rn(float a, float b) {
    return a / b;
}

inline void __threadfence() {}

inline float __expf(float x) {
    return expf(x);
}

inline float __fdividef(float a, float b) {
    return a / b;
}

template <class V>
V __shfl_sync(unsigned, V value, unsigned from) {
    return emulated::exchange(value, from);
}

template <class V>
V __shfl_xor_sync(unsigned, V value, unsigned with) {
    return emulated::exchange(value, emulated::lane() ^ with);
}

template <class V>
V __shfl_up_sync(unsigned, V value, unsigned by) {
    return emulated::exchange(value, emulated::lane() < by ? emulated::lane() : emulated::lane() - by);
}

inline unsigned __ballot_sync(unsigned, bool value) {
    return emulated::any_of_lanes(value ? 1u << emulated::lane() : 0);
}

// The place of the lowest bit that is set, from 1; 0 if none is.
inline int __ffs(unsigned bits) {
    return __builtin_ffs(static_cast<int>(bits));
}

inline int __clz(unsigned bits) {
    return bits == 0 ? 32 : __builtin_clz(bits);
}

inline int __popc(unsigned bits) {
    return __builtin_popcount(bits);
}

// The smallest float that is not below.
inline float __double2float_ru(double x) {
    const float near = static_cast<float>(x);
    return near < x ? __builtin_nextafterf(near, __builtin_inff()) : near;
}

// The largest float that is not above.
inline float __double2float_rd(double x) {
    const float near = static_cast<float>(x);
    return near > x ? __builtin_nextafterf(near, -__builtin_inff()) : near;
}

inline bool __any_sync(unsigned, bool value) {
    return emulated::any_of_lanes(value) != 0;
}

inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

inline unsigned __reduce_min_sync(unsigned, unsigned value) {
    return emulated::min_of_lanes(value);
}

inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    return emulated::max_of_lanes(value);
}

inline unsigned atomicAdd(unsigned* to, unsigned value) {
    const unsigned before = *to;
    *to += value;
    return before;
}

inline unsigned atomicMin(unsigned* to, unsigned value) {
    const unsigned before = *to;
    *to = value < before ? value : before;
    return before;
}

inline size_t __cvta_generic_to_shared(const void* pointer) {
    return emulated::address_of(pointer);
}

inline float __int_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

inline float __uint_as_float(unsigned bits) {
    return __int_as_float(bits);
}

inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}

// Four of the eight bytes of `a` and `b`, named by the lowest hexadecimal digits of `which`.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
    const uint64_t both = a | static_cast<uint64_t>(b) << 32;
    unsigned chosen = 0;
    for (unsigned byte = 0; byte < 4; byte++) {
        chosen |= static_cast<unsigned>(both >> 8 * (which >> 4 * byte & 7) & 0xff) << 8 * byte;
    }
    return chosen;
}

inline unsigned min(unsigned a, unsigned b) {
    return a < b ? a : b;
}

inline unsigned max(unsigned a, unsigned b) {
    return a > b ? a : b;
}
