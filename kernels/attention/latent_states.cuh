// Partial states of latents that the launch merges itself: results in f16, since writing and reading states takes longer
// than the products of a short tile. A record is [VALUE_DIM] f16 and a tail. Each half of the results is multiplied by
// the power of two that brings the row's largest one there to 2^14 .. 2^15, so that an element is off by at most 2^-11
// of itself or 2^-39 of the largest, whichever is more: an eighth of what rounding results to bf16 takes.
//
// Of 32 neighbouring elements, lane q of the quad that holds the row has pairs 4 n + q; they lie as [q][n], 16 bytes a
// lane. States that another kernel merges are those of attention/plan.cuh.
#pragma once

#include "attention/rows.cuh"

struct StateTail {
    float m, l;
    float unit[2];  // what the stored elements of each half are multiples of
};

constexpr unsigned RESULT_BYTES = VALUE_DIM * 2;
constexpr unsigned STATE_BYTES = RESULT_BYTES + 32;  // whole sectors
static_assert(sizeof(StateTail) <= STATE_BYTES - RESULT_BYTES && STATE_BYTES <= VALUE_DIM * sizeof(float),
              "a record takes no more than a state of attention/plan.cuh");

__device__ __forceinline__ char* state_record(const Job& job, size_t state) {
    return reinterpret_cast<char*>(job.partials.o) + state * STATE_BYTES;
}

// The power of two by which results are multiplied, `largest` of which is the largest.
__device__ __forceinline__ float factor_of_state(float largest) {
    const unsigned exponent = __float_as_uint(largest) >> 23;
    return __uint_as_float(min(268 - exponent, 253u) << 23);
}

// The inverse of such a power of two.
__device__ __forceinline__ float unit_of_state(float factor) {
    return __uint_as_float((254u << 23) - __float_as_uint(factor));
}

// Writes a warpgroup's half of a record: the elements of this lane's r-th row. `largest` of the row's there.
__device__ __forceinline__ void store_half(char* record, const SoftmaxRows& rows, int r, float l, float largest,
                                           unsigned half) {
    const unsigned lane = threadIdx.x % 32;
    const float factor = factor_of_state(largest);
    uint4* to = reinterpret_cast<uint4*>(record) + half * (COLUMNS / 8) + lane % 4;
#pragma unroll
    for (int n = 0; n < static_cast<int>(COLUMNS / 8); n += 4) {
        auto pair = [&](int n) { return pack<f16>(rows.o[n][2 * r] * factor, rows.o[n][2 * r + 1] * factor); };
        to[n] = {pair(n), pair(n + 1), pair(n + 2), pair(n + 3)};
    }
    if (lane % 4 == 0) {
        StateTail* tail = reinterpret_cast<StateTail*>(record + RESULT_BYTES);
        tail->unit[half] = unit_of_state(factor);
        if (half == 0) {
            tail->m = rows.m[r];
            tail->l = l;
        }
    }
}

// Writes a warpgroup's half of each row's result, as `store_wide` does.
__device__ __forceinline__ void store_latents(const Job& job, const Tile& tile, unsigned head, unsigned first,
                                              const SoftmaxRows& rows, unsigned half) {
    if (job.words[REAL_ROWS] == 0) {
        store_wide(job, tile, head, first, rows, half * COLUMNS);
        return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest = 0.0f;
#pragma unroll
        for (int n = 0; n < static_cast<int>(COLUMNS / 8); n++) {
            largest = fmaxf(largest, fmaxf(fabsf(rows.o[n][2 * r]), fabsf(rows.o[n][2 * r + 1])));
        }
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        const float l = quad_sum(rows.l[r]);
        const StoredRow stored(job, tile, head, first, r);
        if (stored.is_result) {
            store_result(job, stored.row, stored.q_head, rows, r, l, half * COLUMNS);
        } else if (stored.is_real) {
            store_half(state_record(job, stored.state), rows, r, l, largest, half);
        }
    }
}
