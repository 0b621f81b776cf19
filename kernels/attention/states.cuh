// Combines partial states of a row and head by one warp:
//   m = max m_i,  o = sum_i 2^(m_i - m) o_i,  l = sum_i 2^(m_i - m) l_i,  over a list of states, in its order.
// merge_states.cu makes results of them; ranks/merge_members.cu sends them to other GPUs.
//
// Defines: VALUE_DIM.
#pragma once

#include "attention/plan.cuh"
#include "attention/state.cuh"

constexpr unsigned VECTOR = VALUE_DIM % 128 == 0 ? 4 : VALUE_DIM % 64 == 0 ? 2 : 1;  // neighbouring elements per lane
constexpr unsigned VECTORS = (VALUE_DIM + 32 * VECTOR - 1) / (32 * VECTOR);
constexpr unsigned AHEAD = VALUE_DIM > 128 ? 4 : 8;  // states whose o is in flight

template <class E>
struct __align__(VECTOR * sizeof(E)) Vector {
    E x[VECTOR];
};

// Volatile, so that the compiler does not move each load next to its use and wait for each.
__device__ __forceinline__ Vector<float> load_state(const float* from) {
    Vector<float> to;
    if constexpr (VECTOR == 4) {
        asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(to.x[0]), "=f"(to.x[1]), "=f"(to.x[2]), "=f"(to.x[3])
                     : "l"(from)
                     : "memory");
    } else if constexpr (VECTOR == 2) {
        asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(to.x[0]), "=f"(to.x[1]) : "l"(from) : "memory");
    } else {
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(to.x[0]) : "l"(from) : "memory");
    }
    return to;
}

// First element of a lane's v-th vector.
__device__ __forceinline__ unsigned column(unsigned v) {
    return (v * 32 + threadIdx.x % 32) * VECTOR;
}

// A warp's sums: every lane has m and l, and its own elements of o.
struct State {
    float m, l;
    Vector<float> o[VECTORS];

    __device__ __forceinline__ void add(float factor, const Vector<float> (&part)[VECTORS]) {
#pragma unroll
        for (unsigned v = 0; v < VECTORS; v++) {
#pragma unroll
            for (unsigned e = 0; e < VECTOR; e++) {
                o[v].x[e] += factor * part[v].x[e];
            }
        }
    }
};

// Combines the partial states named by slots[from .. to].
__device__ __forceinline__ State combine(const Partials& parts, const unsigned* slots, unsigned from, unsigned to,
                                         unsigned q_heads, unsigned head) {
    const unsigned lane = threadIdx.x % 32;
    State sum = {NO_SCORE, 0.0f, {}};
    for (unsigned i = from + lane; i < to; i += 32) {
        sum.m = fmaxf(sum.m, parts.extents[static_cast<size_t>(slots[i]) * q_heads + head].m);
    }
    for (unsigned other = 16; other > 0; other /= 2) {
        sum.m = fmaxf(sum.m, __shfl_xor_sync(~0u, sum.m, other));
    }
    // Each lane loads m and l of one of 32 states, so that only `o` is loaded state by state.
    for (unsigned first = from; first < to; first += 32) {
        unsigned count = min(32u, to - first);
        unsigned slot = lane < count ? slots[first + lane] : 0;
        Extent extent = {NO_SCORE, 0.0f};
        if (lane < count) {
            extent = parts.extents[static_cast<size_t>(slot) * q_heads + head];
        }
        float factor = weight(extent.m, finite_max(sum.m));
        sum.l += factor * extent.l;
        // AHEAD loads are in flight. Past the last state, weights are 0 and the last state is read again.
        for (unsigned i = 0; i < count; i += AHEAD) {
            Vector<float> part[AHEAD][VECTORS];
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++) {
                size_t state = static_cast<size_t>(__shfl_sync(~0u, slot, min(i + a, count - 1))) * q_heads + head;
#pragma unroll
                for (unsigned v = 0; v < VECTORS; v++) {
                    part[a][v] = load_state(parts.o + state * VALUE_DIM + min(column(v), VALUE_DIM - VECTOR));
                }
            }
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++) {
                sum.add(__shfl_sync(~0u, factor, i + a), part[a]);
            }
        }
    }
    for (unsigned other = 16; other > 0; other /= 2) {
        sum.l += __shfl_xor_sync(~0u, sum.l, other);
    }
    return sum;
}
