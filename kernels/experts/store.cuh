// The end of a tile of expert_linear: biases, the gate, and results on their way to memory. A warp holds 16 rows of the
// product for 8 COLUMNS places, as attention/mma.cuh describes: sum[n][0], [1] belong to row lane / 4 and places
// 8 n + 2 (lane % 4) + {0, 1}, [2], [3] to row lane / 4 + 8.
#pragma once

#include "experts/panels.cuh"
#include "sigmoid.cuh"

// What becomes of sums: they are stored as they are, or gated (`Gate` of src/backend/experts.rs).
enum Gate { SILU = 0, GELU = 1, CLAMPED = 2 };

struct Results {
    void* out;  // ELEMENT, or f32 if `sums`
    const float* bias;  // [experts, outputs], if `biased`
    unsigned biased, sums, gate;
    unsigned accumulates;  // whether they are added to what is there, which only sums are
};

__device__ __forceinline__ float gated(float gate, float up, unsigned kind) {
    if (kind == CLAMPED) {
        const float g = fminf(gate, 7.0f), u = fminf(fmaxf(up, -7.0f), 7.0f);
        return g * sigmoid<ELEMENT>(1.702f * g) * (u + 1.0f);
    }
    if (kind == GELU) {
        return gate * sigmoid<ELEMENT>(1.5957691f * (gate + 0.044715f * gate * gate * gate)) * up;
    }
    return gate * sigmoid<ELEMENT>(gate) * up;
}

// Two neighbouring outputs of a place, of which the first is even: one store, if both exist and the address allows it.
__device__ __forceinline__ void store_pair(ELEMENT* to, float low, float high, bool both, bool aligned) {
    if (both && aligned) {
        *reinterpret_cast<unsigned*>(to) = pack<ELEMENT>(low, high);
        return;
    }
    to[0] = from_f32<ELEMENT>(low);
    if (both) {
        to[1] = from_f32<ELEMENT>(high);
    }
}

// Stores what lanes hold of eight results of eight places: `x` of place `column`, `y` of the place behind it. Lanes of
// neighbouring results exchange, so that each stores two results of one place.
__device__ __forceinline__ void store_results(const Results& results, const Rows& rows, unsigned width, unsigned result, unsigned column, float x, float y) {
    const bool odd = threadIdx.x / 4 % 2 == 1;
    const float other = __shfl_xor_sync(0xffffffff, odd ? x : y, 4);
    const unsigned place = column + odd, first = result - odd;
    if (place < rows.count && first < width) {
        const unsigned long long at = static_cast<unsigned long long>(rows.first + place) * width + first;
        store_pair(static_cast<ELEMENT*>(results.out) + at, odd ? other : x, odd ? y : other, first + 1 < width, width % 2 == 0);
    }
}

// Stores the sums of a warp, whose first product is row `product` of the panels, a multiple of 16.
template <unsigned COLUMNS>
__device__ __forceinline__ void store_sums(const Results& results, const Operands& operands, const Rows& rows, unsigned product, const float (&sum)[COLUMNS][4]) {
    const unsigned lane = threadIdx.x % 32, width = width_of(operands);
    float bias[2] = {0.0f, 0.0f};
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        const unsigned row = product + half * 8 + lane / 4;
        if (results.biased && row < operands.outputs) {
            bias[half] = results.bias[static_cast<unsigned long long>(rows.expert) * operands.outputs + matrix_row(row, operands.outputs, GATED)];
        }
    }
    const unsigned result = results_of(product) + lane / 4;
#pragma unroll
    for (unsigned n = 0; n < COLUMNS; n++) {
        const unsigned column = n * 8 + lane % 4 * 2;
        if (n * 8 >= rows.count) {
            break;
        }
        const float (&s)[4] = sum[n];
        if (GATED) {
            const float x = gated(s[0] + bias[0], s[2] + bias[1], results.gate), y = gated(s[1] + bias[0], s[3] + bias[1], results.gate);
            store_results(results, rows, width, result, column, x, y);
        } else if (!results.sums) {
            store_results(results, rows, width, result, column, s[0] + bias[0], s[1] + bias[0]);
            store_results(results, rows, width, result + 8, column, s[2] + bias[1], s[3] + bias[1]);
        } else {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                const unsigned place = column + i % 2, row = result + i / 2 * 8;
                if (place < rows.count && row < width) {
                    float* to = static_cast<float*>(results.out) + static_cast<unsigned long long>(rows.first + place) * width + row;
                    const float sum = s[i] + bias[i / 2];
                    *to = results.accumulates ? *to + sum : sum;
                }
            }
        }
    }
}
