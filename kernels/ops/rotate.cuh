// Rotation of pairs of elements by angles: (a, b) -> (a cos - b sin, b cos + a sin), in place.
#pragma once

#include "lanes.cuh"

// Pairs i, .. i + N - 1 of the 2 * half elements from `part` on. Pair i consists of elements i and i + half or, if
// `neighbours`, of 2 i and 2 i + 1. `cosines` and `sines` begin with those of pair 0.
template <int N>
__device__ __forceinline__ void rotate_pairs(ELEMENT* part, const float* cosines, const float* sines, unsigned i,
                                             unsigned half, bool neighbours) {
    ELEMENT* low = part + (neighbours ? 2 * i : i);
    ELEMENT* high = low + (neighbours ? N : half);
    Lanes<float, N> x = load<N>(low), y = load<N>(high);
    const Lanes<float, N> cosine = load<N>(cosines + i), sine = load<N>(sines + i);
    // Of neighbours both loads together have the pairs, one after the other.
    Lanes<float, N> rotated_x, rotated_y;
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
        float& first = 2 * lane < N ? x.at[2 * lane % N] : y.at[2 * lane % N];
        float& second = 2 * lane + 1 < N ? x.at[(2 * lane + 1) % N] : y.at[(2 * lane + 1) % N];
        const float a = neighbours ? first : x.at[lane], b = neighbours ? second : y.at[lane];
        const float rotated_a = a * cosine.at[lane] - b * sine.at[lane];
        const float rotated_b = b * cosine.at[lane] + a * sine.at[lane];
        if (neighbours) {
            (2 * lane < N ? rotated_x : rotated_y).at[2 * lane % N] = rotated_a;
            (2 * lane + 1 < N ? rotated_x : rotated_y).at[(2 * lane + 1) % N] = rotated_b;
        } else {
            rotated_x.at[lane] = rotated_a;
            rotated_y.at[lane] = rotated_b;
        }
    }
    store<N>(low, rotated_x);
    store<N>(high, rotated_y);
}
