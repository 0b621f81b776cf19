// N neighbouring elements of a row in registers, moved up to 16 bytes at a time. `from` and `to` must be aligned to
// min(16 bytes, N elements).
#pragma once

#include "element.cuh"

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Lanes {
    T at[N];
};

// N for rows whose width is a multiple of 8: 16 bytes of two-byte elements. Other rows use N = 1.
constexpr unsigned LANES = 8;

template <int N, class T>
__device__ __forceinline__ Lanes<float, N> load(const T* from) {
    Lanes<T, N> raw = *reinterpret_cast<const Lanes<T, N>*>(from);
    Lanes<float, N> x;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        x.at[i] = to_f32(raw.at[i]);
    }
    return x;
}

// Of e4m3: in e4m3.cuh.
template <int N, class T>
__device__ __forceinline__ void store(T* to, const Lanes<float, N>& x) {
    static_assert(sizeof(T) != sizeof(e4m3), "e4m3.cuh stores e4m3");
    Lanes<T, N> raw;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        raw.at[i] = from_f32<T>(x.at[i]);
    }
    *reinterpret_cast<Lanes<T, N>*>(to) = raw;
}
