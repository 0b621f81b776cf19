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
#pragma once

#include "attention/mma.cuh"
#include "delta_rule/run.cuh"
#include "lanes.cuh"

constexpr unsigned CHUNK = 64, BLOCK_THREADS = 128;

// Elements of a row in shared memory: 16 bytes more, so that eight rows of a matrix touch all banks.
constexpr unsigned KEY_ROW = KEY_DIM + 8, VALUE_ROW = VALUE_DIM + 8, CHUNK_ROW = CHUNK + 8;

// What chunk_products leaves of one chunk and value head, in memory: ELEMENT W [CHUNK, KEY_DIM], U [CHUNK, VALUE_DIM],
// A [CHUNK, CHUNK]; then f32 [3 * CHUNK]: c_t times the norm of q_t, (c_last / c_t) times that of k_t, c_last.
constexpr unsigned U_AT = CHUNK * KEY_DIM, A_AT = U_AT + CHUNK * VALUE_DIM, FACTORS_AT = A_AT + CHUNK * CHUNK;
constexpr unsigned PRODUCT_BYTES = FACTORS_AT * sizeof(ELEMENT) + 3 * CHUNK * 4;

// Rows `first` to `first + 15` and columns `k` to `k + 15` of a row-major matrix as a left operand.
__device__ __forceinline__ void load_left(unsigned (&a)[4], const ELEMENT* matrix, unsigned stride, unsigned first, unsigned k) {
    const unsigned lane = threadIdx.x % 32;
    load_matrices(a, shared_address(matrix + (first + lane % 16) * stride + k + lane / 16 * 8));
}

// The same of its transpose: columns `first` to `first + 15`, rows `k` to `k + 15`.
__device__ __forceinline__ void load_left_transposed(unsigned (&a)[4], const ELEMENT* matrix, unsigned stride, unsigned first, unsigned k) {
    const unsigned lane = threadIdx.x % 32;
    load_matrices_transposed(a, shared_address(matrix + (k + lane / 16 * 8 + lane % 8) * stride + first + lane / 8 % 2 * 8));
}

// Two right operands of 8 columns each, from `n` on: columns are the rows of the matrix, sums run over its columns.
__device__ __forceinline__ void load_right_of_rows(unsigned (&b)[4], const ELEMENT* matrix, unsigned stride, unsigned n, unsigned k) {
    const unsigned lane = threadIdx.x % 32;
    load_matrices(b, shared_address(matrix + (n + lane / 16 * 8 + lane % 8) * stride + k + lane / 8 % 2 * 8));
}

// The same of the matrix as it is: sums run over its rows.
__device__ __forceinline__ void load_right(unsigned (&b)[4], const ELEMENT* matrix, unsigned stride, unsigned n, unsigned k) {
    const unsigned lane = threadIdx.x % 32;
    load_matrices_transposed(b, shared_address(matrix + (k + lane / 8 % 2 * 8 + lane % 8) * stride + n + lane / 16 * 8));
}

// Copies CHUNK rows of WIDTH elements, `apart` elements from each other, to rows of WIDTH + 8; rows from `count` on are
// zeros.
template <unsigned WIDTH>
__device__ __forceinline__ void copy_rows(ELEMENT* to, const ELEMENT* from, unsigned long long apart, unsigned count) {
    constexpr unsigned ACROSS = WIDTH / 8;
    for (unsigned i = threadIdx.x; i < CHUNK * ACROSS; i += BLOCK_THREADS) {
        const unsigned row = i / ACROSS, at = i % ACROSS * 8;
        const bool is_there = row < count;
        copy_16(shared_address(to + row * (WIDTH + 8) + at), from + (is_there ? row * apart : 0) + at, is_there);
    }
}

// Two neighbours, at an even place.
__device__ __forceinline__ void store_pair(ELEMENT* to, float low, float high) {
    *reinterpret_cast<unsigned*>(to) = pack<ELEMENT>(low, high);
}
