// The end of a tile of expert_linear: biases, the gate, and results on their way to memory. A warp holds 16 rows of the
// product for 8 COLUMNS places, as attention/mma.cuh describes: sum[n][0], [1] belong to row lane / 4 and places
// 8 n + 2 (lane % 4) + {0, 1}, [2], [3] to row lane / 4 + 8.
#pragma once

#include "attention/mma.cuh"
#include "experts/panels.cuh"
#include "sigmoid.cuh"

// What becomes of sums: they are stored as they are, or gated (`Gate` of crates/backend/src/experts.rs).
enum Gate { SILU = 0, GELU = 1, CLAMPED = 2 };

struct Results {
    void* out;  // ELEMENT, or f32 if `sums`
    const float* bias;  // [experts, outputs], if `biased`
    unsigned biased, sums, gate;
    unsigned accumulates;  // whether they are added to what is there, which only sums are
};

// Returns the gated product of a gate and an up, with a sigmoid as precise as a T is.
template <class T>
__device__ __forceinline__ float gated(float gate, float up, unsigned kind) {
    if (kind == CLAMPED) {
        const float g = fminf(gate, 7.0f), u = fminf(fmaxf(up, -7.0f), 7.0f);
        return g * sigmoid<T>(1.702f * g) * (u + 1.0f);
    }
    if (kind == GELU) {
        return gate * sigmoid<T>(1.5957691f * (gate + 0.044715f * gate * gate * gate)) * up;
    }
    return gate * sigmoid<T>(gate) * up;
}

// Where a lane stores two neighbouring results of a place, the first of which is even.
struct Place {
    ELEMENT* to;
    unsigned exist;  // results from the first one on
    bool aligned;
};

// Stores what lanes hold of eight results of eight places: each `x` of its result and an even place, `y` of the place
// behind it. Transposed, a lane has two results of place lane / 4: one store, if both exist and the address allows it.
__device__ __forceinline__ void store_results(const Place& place, bool exists, float x, float y) {
    const unsigned pair = transpose(pack<ELEMENT>(x, y));
    if (!exists || place.exist == 0) {
        return;
    }
    if (place.aligned) {
        *reinterpret_cast<unsigned*>(place.to) = pair;
        return;
    }
    place.to[0].bits = static_cast<unsigned short>(pair);
    if (place.exist > 1) {
        place.to[1].bits = static_cast<unsigned short>(pair >> 16);
    }
}

// The biases of the two rows of the product that a lane holds, of a warp whose first is row `product` of the panels.
__device__ __forceinline__ void biases_of(const Results& results, const Operands& operands, const Rows& rows,
                                          unsigned product, float (&bias)[2]) {
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        const unsigned row = product + half * 8 + threadIdx.x % 32 / 4;
        const bool exists = results.biased && row < operands.outputs;
        bias[half] = exists ? results.bias[static_cast<unsigned long long>(rows.expert) * operands.outputs +
                                           matrix_row(row, operands.outputs, GATED)]
                            : 0.0f;
    }
}

// Stores sums in f32, from row `result` of the results on. What they are added to is read many at a time: the compiler
// would let each read wait for the store before it, which may be of the same address for all it knows.
template <unsigned COLUMNS>
__device__ __forceinline__ void store_f32(const Results& results, const Rows& rows, unsigned width, unsigned result,
                                          const float (&sum)[COLUMNS][4], const float (&bias)[2]) {
    constexpr unsigned TOGETHER = COLUMNS < 4 ? COLUMNS : 4;
    static_assert(COLUMNS % TOGETHER == 0, "columns are stored by so many");
    const unsigned lane = threadIdx.x % 32, row = result + lane / 4, column = lane % 4 * 2;
    float* to = static_cast<float*>(results.out) + static_cast<unsigned long long>(rows.first) * width + row;
#pragma unroll
    for (unsigned first = 0; first < COLUMNS; first += TOGETHER) {
        if (first * 8 >= rows.count) {
            break;
        }
        float old[TOGETHER][4];
        auto exists = [&](unsigned n, unsigned i) {
            return (first + n) * 8 + column + i % 2 < rows.count && row + i / 2 * 8 < width;
        };
        auto at = [&](unsigned n, unsigned i) {
            return to + static_cast<unsigned long long>((first + n) * 8 + column + i % 2) * width + i / 2 * 8;
        };
#pragma unroll
        for (unsigned n = 0; n < TOGETHER; n++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                old[n][i] = results.accumulates && exists(n, i) ? *at(n, i) : 0.0f;
            }
        }
#pragma unroll
        for (unsigned n = 0; n < TOGETHER; n++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                if (exists(n, i)) {
                    const float own = sum[first + n][i] + bias[i / 2];
                    *at(n, i) = results.accumulates ? old[n][i] + own : own;
                }
            }
        }
    }
}

// Stores gates of sums in f32, from result `result` on.
template <unsigned COLUMNS>
__device__ __forceinline__ void store_gates_f32(const Results& results, const Rows& rows, unsigned width,
                                                unsigned result, const float (&sum)[COLUMNS][4],
                                                const float (&bias)[2]) {
    const unsigned lane = threadIdx.x % 32, own = result + lane / 4;
    float* to = static_cast<float*>(results.out) + static_cast<unsigned long long>(rows.first) * width + own;
#pragma unroll
    for (unsigned n = 0; n < COLUMNS; n++) {
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const unsigned place = n * 8 + lane % 4 * 2 + i;
            if (place < rows.count && own < width) {
                to[static_cast<unsigned long long>(place) * width] =
                    gated<float>(sum[n][i] + bias[0], sum[n][i + 2] + bias[1], results.gate);
            }
        }
    }
}

// Stores the sums of a warp, whose first product is row `product` of the panels, a multiple of 16.
template <unsigned COLUMNS>
__device__ __forceinline__ void store_sums(const Results& results, const Operands& operands, const Rows& rows,
                                           unsigned product, const float (&sum)[COLUMNS][4]) {
    const unsigned lane = threadIdx.x % 32, width = width_of(operands);
    float bias[2];
    biases_of(results, operands, rows, product, bias);
    if (results.sums) {
        if (GATED) {
            store_gates_f32(results, rows, width, results_of(product), sum, bias);
        } else {
            store_f32(results, rows, width, results_of(product), sum, bias);
        }
        return;
    }
    const unsigned result = results_of(product), first = result + lane % 4 * 2;
    const bool aligned = width % 2 == 0;
    const unsigned long long stride = width * 8ull;  // to the next eight places
    ELEMENT* to =
        static_cast<ELEMENT*>(results.out) + static_cast<unsigned long long>(rows.first + lane / 4) * width + first;
#pragma unroll
    for (unsigned n = 0; n < COLUMNS; n++) {
        if (n * 8 >= rows.count) {
            break;
        }
        const float (&s)[4] = sum[n];
        const bool exists = n * 8 + lane / 4 < rows.count;
        if (GATED) {
            const float x = gated<ELEMENT>(s[0] + bias[0], s[2] + bias[1], results.gate),
                        y = gated<ELEMENT>(s[1] + bias[0], s[3] + bias[1], results.gate);
            store_results({to, first < width ? width - first : 0, aligned}, exists, x, y);
        } else {
            store_results({to, first < width ? width - first : 0, aligned}, exists, s[0] + bias[0], s[1] + bias[0]);
            store_results({to + 8, first + 8 < width ? width - first - 8 : 0, aligned}, exists, s[2] + bias[1],
                          s[3] + bias[1]);
        }
        to += stride;
    }
}
