// What the kernels of the chunked delta rule share: CHUNK tokens of a run at a time, in matrix form (Gated Delta
// Networks, Yang et al. 2024, arXiv 2412.06464, section 3.3; Parallelizing Linear Transformers with the Delta Rule,
// Yang et al. 2024, arXiv 2406.06484, section 3).
//
// With k and q normalised, c_t the product of the decays of the chunk's tokens up to t, and S the state before it:
//
//   L[t][j] = beta_t (c_t / c_j) k_t . k_j, for j < t       T = (I + L)^-1
//   U = T diag(beta) V                                      W = T diag(beta c) K
//   D = U - W S                                             A[t][j] = (c_t / c_j) q_t . k_j, for j <= t
//   O = diag(c) Q S + A D                                   S = c_last S + sum over t of (c_last / c_t) k_t D_t
//
// chunk_products computes U, W and A of all chunks at once, chunk_states the rest, chunk after chunk of a run. Where a
// norm multiplies a row of K or Q, it is taken out of the product, whose operands are the rows as they are.
//
// f16 holds less than 2^16, and few bits below 2^-14. So with it, powers of two keep every operand that is computed in
// its middle: a row of K is multiplied by one that leaves a norm between 1/2 and 1, 8 columns of U by one, and S and D
// by one for each chunk. They change no other bit.
#pragma once

#include "attention/mma.cuh"
#include "delta_rule/run.cuh"
#include "lanes.cuh"

constexpr unsigned CHUNK = 64;

// Elements of a row in shared memory: 16 bytes more, so that eight rows of a matrix touch all banks.
constexpr unsigned KEY_ROW = KEY_DIM + 8, VALUE_ROW = VALUE_DIM + 8, CHUNK_ROW = CHUNK + 8;

// What chunk_products leaves of one chunk and value head, in memory: ELEMENT W [CHUNK, KEY_DIM], U [CHUNK, VALUE_DIM],
// A [CHUNK, CHUNK], the last without its blocks of 16 x 16 above the diagonal. Then f32 [CHUNK] each: c_t times the
// norm of q_t, (c_last / c_t) times what is left of that of k_t, the power of two that was taken out of it; [VALUE_DIM
// / 8]: what U is to be multiplied by; [4]: c_last, and nothing.
constexpr unsigned U_AT = CHUNK * KEY_DIM, A_AT = U_AT + CHUNK * VALUE_DIM, FACTORS_AT = A_AT + CHUNK * CHUNK;
constexpr unsigned OF_KEYS = CHUNK, POWERS = 2 * CHUNK, OF_VALUES = 3 * CHUNK, OF_STATE = OF_VALUES + VALUE_DIM / 8;
constexpr unsigned PRODUCT_BYTES = FACTORS_AT * sizeof(ELEMENT) + (OF_STATE + 4) * 4;

// Whether operands need powers of two.
template <class T>
constexpr bool IS_NARROW = false;
template <>
constexpr bool IS_NARROW<f16> = true;

// A power of two, and its inverse.
struct Power {
    float to, back;
};

// The one that brings numbers of at most `most` below 2^TOP, and the largest of them to 2^(TOP - 1) if it exceeds
// 2^-100.
template <unsigned TOP>
__device__ __forceinline__ Power power_below(float most) {
    // `most` is below 2^(exponent - 126).
    const unsigned exponent = max(__float_as_uint(most) >> 23, 27u);
    return {__uint_as_float((TOP + 253 - exponent) << 23), __uint_as_float((exponent + 1 - TOP) << 23)};
}

// The largest of a warp.
__device__ __forceinline__ float warp_most(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
    }
    return x;
}

// Rows `first` to `first + 15` and columns `k` to `k + 15` of a row-major matrix as a left operand.
template <class T>
__device__ __forceinline__ void load_left(unsigned (&a)[4], const T* matrix, unsigned stride, unsigned first,
                                          unsigned k) {
    const unsigned lane = threadIdx.x % 32;
    load_matrices(a, shared_address(matrix + (first + lane % 16) * stride + k + lane / 16 * 8));
}

// The same of its transpose: columns `first` to `first + 15`, rows `k` to `k + 15`.
__device__ __forceinline__ void load_left_transposed(unsigned (&a)[4], const ELEMENT* matrix, unsigned stride,
                                                     unsigned first, unsigned k) {
    const unsigned lane = threadIdx.x % 32;
    const ELEMENT* row = matrix + (k + lane / 16 * 8 + lane % 8) * stride;
    load_matrices_transposed(a, shared_address(row + first + lane / 8 % 2 * 8));
}

// Two right operands of 8 columns each, from `n` on: columns are the rows of the matrix, sums run over its columns.
__device__ __forceinline__ void load_right_of_rows(unsigned (&b)[4], const ELEMENT* matrix, unsigned stride, unsigned n,
                                                   unsigned k) {
    const unsigned lane = threadIdx.x % 32;
    load_matrices(b, shared_address(matrix + (n + lane / 16 * 8 + lane % 8) * stride + k + lane / 8 % 2 * 8));
}

// The same of the matrix as it is: sums run over its rows.
__device__ __forceinline__ void load_right(unsigned (&b)[4], const ELEMENT* matrix, unsigned stride, unsigned n,
                                           unsigned k) {
    const unsigned lane = threadIdx.x % 32;
    const ELEMENT* row = matrix + (k + lane / 8 % 2 * 8 + lane % 8) * stride;
    load_matrices_transposed(b, shared_address(row + n + lane / 16 * 8));
}

// Copies CHUNK rows of WIDTH elements, `apart` elements from each other, to rows of WIDTH + 8; rows from `count` on are
// zeros. THREADS: those of the block.
template <unsigned WIDTH, unsigned THREADS>
__device__ __forceinline__ void copy_rows(ELEMENT* to, const ELEMENT* from, unsigned long long apart, unsigned count) {
    constexpr unsigned ACROSS = WIDTH / 8;
    for (unsigned i = threadIdx.x; i < CHUNK * ACROSS; i += THREADS) {
        const unsigned row = i / ACROSS, at = i % ACROSS * 8;
        const bool is_there = row < count;
        copy_16(shared_address(to + row * (WIDTH + 8) + at), from + (is_there ? row * apart : 0) + at, is_there);
    }
}

// Rows of WIDTH elements, WIDTH + 8 apart in shared memory, to memory, where they follow each other.
template <unsigned WIDTH, unsigned THREADS>
__device__ __forceinline__ void write_rows(ELEMENT* to, const ELEMENT* from) {
    constexpr unsigned ACROSS = WIDTH / 8;
#pragma unroll
    for (unsigned i = threadIdx.x; i < CHUNK * ACROSS; i += THREADS) {
        const ELEMENT* eight = from + i / ACROSS * (WIDTH + 8) + i % ACROSS * 8;
        *reinterpret_cast<uint4*>(to + i * 8) = *reinterpret_cast<const uint4*>(eight);
    }
}

// Two neighbours, at an even place.
__device__ __forceinline__ void store_pair(ELEMENT* to, float low, float high) {
    *reinterpret_cast<unsigned*>(to) = pack<ELEMENT>(low, high);
}
