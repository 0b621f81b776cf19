// Partial states of latents that the launch merges itself: results in f16, since writing and reading states takes as
// long as the products of a short tile. A record is [VALUE_DIM] f16 and a tail. Each quarter of the results is
// multiplied by the power of two that brings the row's largest one there to 2^14 .. 2^15, so that an element is off by
// at most 2^-11 of itself or 2^-39 of the largest, whichever is more: an eighth of what rounding results to bf16 takes.
//
// Of 32 neighbouring elements, lane q of the quad that holds the row has pairs 4 n + q; they lie as [q][n], 16 bytes a
// lane. States that another kernel merges are those of attention/plan.cuh.
#pragma once

#include "attention/latent_ring.cuh"
#include "attention/rows.cuh"

struct StateTail {
    float m, l;
    float units[4];  // what the stored elements of each quarter are multiples of
};

constexpr unsigned RESULT_BYTES = VALUE_DIM * 2, QUARTER = VALUE_DIM / 4;
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

// The largest of a quarter's elements, from o[first] on, of this lane's r-th row. Called by all lanes of the quad.
template <int N>
__device__ __forceinline__ float largest_of(const float (&o)[N][4], int first, int r) {
    float largest = 0.0f;
#pragma unroll
    for (int n = first; n < first + static_cast<int>(QUARTER / 8); n++) {
        largest = fmaxf(largest, fmaxf(fabsf(o[n][2 * r]), fabsf(o[n][2 * r + 1])));
    }
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
    return fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
}

// Writes these elements to their quarter of a record.
template <int N>
__device__ __forceinline__ void store_quarter(char* record, const float (&o)[N][4], int first, int r, unsigned quarter,
                                              float largest) {
    const unsigned lane = threadIdx.x % 32;
    const float factor = factor_of_state(largest);
    uint4* to = reinterpret_cast<uint4*>(record) + quarter * (QUARTER / 8) + lane % 4;
    auto pair = [&](int n) { return pack<f16>(o[first + n][2 * r] * factor, o[first + n][2 * r + 1] * factor); };
#pragma unroll
    for (int n = 0; n < static_cast<int>(QUARTER / 8); n += 4) {
        to[n] = {pair(n), pair(n + 1), pair(n + 2), pair(n + 3)};
    }
    if (lane % 4 == 0) {
        reinterpret_cast<StateTail*>(record + RESULT_BYTES)->units[quarter] = unit_of_state(factor);
    }
}

// Called by a warp: writes results of the rows at 16 places, from `first` on, and of N * 8 columns from `from` on,
// whole quarters: to `out` if that is a row's only state, else as partial states. m, l: of a lane's two rows.
template <int N>
__device__ __forceinline__ void store_latents(const Job& job, const Tile& tile, unsigned head, unsigned first,
                                              const float (&o)[N][4], const float (&m)[2], const float (&l)[2],
                                              unsigned from) {
    constexpr int OF_QUARTER = QUARTER / 8;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned place = first + threadIdx.x % 32 / 4 + r * 8;
        const StoredRow stored(job, tile, head, row_at_place(tile.rows, place));
        if (!__any_sync(ALL_LANES, stored.is_real)) {
            continue;
        }
        float largest[N / OF_QUARTER] = {};
        if (tile.row_states() != ONE) {
#pragma unroll
            for (int i = 0; i < N / OF_QUARTER; i++) {
                largest[i] = largest_of(o, i * OF_QUARTER, r);
            }
        }
        store_result(job, stored, o, r, m[r], l[r], from);
        if (!stored.is_real || stored.is_result) {
            continue;
        }
        if (job.words[REAL_ROWS] == 0) {
            store_state(job, stored.state, o, r, m[r], l[r], from);
        } else {
            char* record = state_record(job, stored.state);
#pragma unroll
            for (int i = 0; i < N / OF_QUARTER; i++) {
                store_quarter(record, o, i * OF_QUARTER, r, from / QUARTER + i, largest[i]);
            }
            if (from == 0 && threadIdx.x % 4 == 0) {
                StateTail* tail = reinterpret_cast<StateTail*>(record + RESULT_BYTES);
                tail->m = m[r];
                tail->l = l[r];
            }
        }
    }
}
