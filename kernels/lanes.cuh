// N neighbours of a row in registers. They are moved 16 bytes at a time, so `from` and `to` must be aligned to the
// smaller of 16 bytes and N elements.
#pragma once

#include "element.cuh"

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Lanes {
    T at[N];
};

// Lanes of a row whose width is a multiple of it: 16 bytes of two-byte elements. Other rows go one element at a time.
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

template <int N, class T>
__device__ __forceinline__ void store(T* to, const Lanes<float, N>& x) {
    Lanes<T, N> raw;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        raw.at[i] = from_f32<T>(x.at[i]);
    }
    *reinterpret_cast<Lanes<T, N>*>(to) = raw;
}
