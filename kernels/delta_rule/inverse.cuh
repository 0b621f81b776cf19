// The inverse X of a unit lower triangular matrix I + L [CHUNK, CHUNK] by blocks of 16 x 16. Each warp inverts one
// block of the diagonal by forward substitution in f32, the blocks below follow from
//
//   X_ij = - X_ii (sum over j <= k < i of L_ik X_kj),  of 16 x 16 first, then of 32 x 32,
//
// on tensor cores. Operands are f32 as the sum of two f16.
//
// Precision: for the L of the delta rule all entries of L, X and the sums in between are at most 1 in size: they are
// what a key of length 1 gets of another one through steps S -> decay (I - beta k k^T) S, none of which makes S longer.
// So the two f16 are within 2^-24 of a number and the product that is left out is below 2^-24: an error of at most
// 2^-22 for each of the 32 products of a sum. Errors have signs of their own, and no step makes them longer: over keys
// that are random, all alike or of signs alone, with and without decay, an entry of X was wrong by at most 2^-20. It is
// rounded by up to 2^-12 (f16) or 2^-9 (bf16) when it becomes an operand itself.
#pragma once

#include "delta_rule/chunk.cuh"

// Numbers of f32, each as the sum of two of f16.
struct Split {
    f16 high[CHUNK * CHUNK_ROW], low[CHUNK * CHUNK_ROW];
};

// Two neighbours as the packed parts of their sums.
__device__ __forceinline__ void split(unsigned& high, unsigned& low, float x, float y) {
    high = pack<f16>(x, y);
    const f16 of_x = {static_cast<unsigned short>(high)}, of_y = {static_cast<unsigned short>(high >> 16)};
    low = pack<f16>(x - to_f32(of_x), y - to_f32(of_y));
}

__device__ __forceinline__ void store_split(Split& to, unsigned row, unsigned column, float x, float y) {
    unsigned high, low;
    split(high, low, x, y);
    *reinterpret_cast<unsigned*>(to.high + row * CHUNK_ROW + column) = high;
    *reinterpret_cast<unsigned*>(to.low + row * CHUNK_ROW + column) = low;
}

// The 16 x 16 block at (`row`, `column`), in both parts, as a left operand.
__device__ __forceinline__ void load_left_split(unsigned (&a)[2][4], const Split& matrix, unsigned row,
                                                unsigned column) {
    load_left(a[0], matrix.high, CHUNK_ROW, row, column);
    load_left(a[1], matrix.low, CHUNK_ROW, row, column);
}

// Rows `k` to `k + 15` and 8 columns, in both parts, as a right operand.
__device__ __forceinline__ void load_right_split(unsigned (&b)[2][2], const Split& matrix, unsigned k,
                                                 unsigned column) {
    const unsigned lane = threadIdx.x % 32;
    const f16* part = lane < 16 ? matrix.high : matrix.low;
    unsigned four[4];
    load_matrices_transposed(four, shared_address(part + (k + lane % 16) * CHUNK_ROW + column));
    b[0][0] = four[0], b[0][1] = four[1], b[1][0] = four[2], b[1][1] = four[3];
}

// Sums of a 16 x 8 result as a right operand.
__device__ __forceinline__ void as_right_split(unsigned (&b)[2][2], const float (&sums)[4]) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        unsigned high, low;
        split(high, low, sums[half * 2], sums[half * 2 + 1]);
        b[0][half] = transpose(high);
        b[1][half] = transpose(low);
    }
}

// sums += a b
__device__ __forceinline__ void multiply_split(float (&sums)[4], const unsigned (&a)[2][4], const unsigned (&b)[2][2]) {
    multiply<f16>(sums, a[0], b[1][0], b[1][1]);
    multiply<f16>(sums, a[1], b[0][0], b[0][1]);
    multiply<f16>(sums, a[0], b[0][0], b[0][1]);
}

// - sums, at the lane's places of a 16 x 8 result.
__device__ __forceinline__ void store_negative(Split& to, unsigned row, unsigned column, const float (&sums)[4]) {
    const unsigned lane = threadIdx.x % 32, at = column + lane % 4 * 2;
    store_split(to, row + lane / 4, at, -sums[0], -sums[1]);
    store_split(to, row + lane / 4 + 8, at, -sums[2], -sums[3]);
}

// Where the warp's block of L on the diagonal lies, as f32 in rows of DIAGONAL_ROW: in the rows of the inverse that
// only this warp writes until all blocks of the diagonal are inverted.
constexpr unsigned DIAGONAL_ROW = CHUNK_ROW * sizeof(f16) / sizeof(float);

__device__ __forceinline__ float* diagonal_of(Split& inverse, unsigned warp) {
    return reinterpret_cast<float*>(inverse.high + warp * 16 * CHUNK_ROW);
}

// The warp's block of the diagonal of the inverse, in place of that of L.
__device__ __forceinline__ void invert_diagonal(Split& inverse) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane % 16;
    const float* lower = diagonal_of(inverse, warp);
    float x[16];
#pragma unroll
    for (unsigned row = 0; row < 16; ++row) {
        x[row] = row == column ? 1.0f : 0.0f;
    }
#pragma unroll
    for (unsigned first = 0; first < 16; first += 4) {
#pragma unroll
        for (unsigned row = first + 1; row < 16; ++row) {
            const float4 four = *reinterpret_cast<const float4*>(lower + row * DIAGONAL_ROW + first);
            const float weights[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                if (first + i < row) {
                    x[row] = fmaf(-weights[i], x[first + i], x[row]);
                }
            }
        }
    }
    __syncwarp();  // all of L has been read
    // Half of the lanes write each part.
    f16* to = (lane < 16 ? inverse.high : inverse.low) + warp * 16 * CHUNK_ROW + warp * 16 + column;
#pragma unroll
    for (unsigned row = 0; row < 16; ++row) {
        const f16 high = from_f32<f16>(x[row]);
        to[row * CHUNK_ROW] = lane < 16 ? high : from_f32<f16>(x[row] - to_f32(high));
    }
}

// The blocks below the diagonal, of which those of `lower` are read, with the inverse's on it. Begins and ends where
// the block's threads have met.
__device__ __forceinline__ void invert_below(Split& inverse, const Split& lower) {
    const unsigned warp = threadIdx.x / 32;
    {
        // Of 16 x 16, below the first block and the third: half of the columns of one of them.
        const unsigned first = warp / 2 * 32, column = first + warp % 2 * 8;
        unsigned a[2][4], b[2][2];
        float sums[4] = {}, results[4] = {};
        load_left_split(a, lower, first + 16, first);
        load_right_split(b, inverse, first, column);
        multiply_split(sums, a, b);
        as_right_split(b, sums);
        load_left_split(a, inverse, first + 16, first + 16);
        multiply_split(results, a, b);
        store_negative(inverse, first + 16, column, results);
    }
    __syncthreads();
    {
        // Of 32 x 32, a quarter of its columns.
        const unsigned column = warp * 8;
        unsigned a[2][4], b[2][2];
        float sums[2][4] = {}, results[2][4] = {};
#pragma unroll
        for (unsigned k = 0; k < 32; k += 16) {
            // The inverse is zero above its diagonal.
            if (column < k + 16) {
                load_right_split(b, inverse, k, column);
#pragma unroll
                for (unsigned m = 0; m < 2; ++m) {
                    load_left_split(a, lower, 32 + m * 16, k);
                    multiply_split(sums[m], a, b);
                }
            }
        }
#pragma unroll
        for (unsigned k = 0; k < 2; ++k) {
            as_right_split(b, sums[k]);
#pragma unroll
            for (unsigned m = k; m < 2; ++m) {
                load_left_split(a, inverse, 32 + m * 16, 32 + k * 16);
                multiply_split(results[m], a, b);
            }
        }
        store_negative(inverse, 32, column, results[0]);
        store_negative(inverse, 48, column, results[1]);
    }
    __syncthreads();
}
