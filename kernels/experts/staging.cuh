// The end of a tile on Hopper: as experts/store.cuh, but results of four warps go through shared memory, so that a lane
// stores 16 bytes and an instruction touches few places. Tensor cores wait for a tile's stores, and those of the lanes
// that hold sums, which touch eight places each, take a third of a product of 768 inputs.
#pragma once

#include "attention/barrier.cuh"
#include "experts/store.cuh"

constexpr unsigned STAGED_PLACES = 32;  // of a turn
// Results of a panel for one place.
constexpr unsigned STAGED_ROW_BYTES = (GATED ? PANEL / 2 : PANEL) * sizeof(ELEMENT);
constexpr unsigned STAGED_BYTES = STAGED_PLACES * STAGED_ROW_BYTES;
// A warpgroup has two such buffers: a turn writes one while slower warps still read the other.
constexpr unsigned STAGING_BYTES = 2 * STAGED_BYTES;

// Stores four transposed 8 x 8 matrices of 16-bit elements, of which a lane holds two neighbours of row t / 4 each.
// Lane t gives the address of column t % 8 of matrix t / 8.
__device__ __forceinline__ void store_matrices_transposed(unsigned to, const unsigned (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}

// Where 16-byte chunk `chunk` of row `row` lies in a buffer: rows that are written or read together are in different
// banks.
__device__ __forceinline__ unsigned staged_at(unsigned row, unsigned chunk) {
    return row * STAGED_ROW_BYTES + (chunk ^ (GATED ? row / 2 % 4 : row % 8)) * 16;
}

// Stores the sums of a warpgroup, whose first product is row `product` of the panels, a multiple of 64. Results are
// ELEMENTs of a width that is a multiple of eight. `buffers`: STAGING_BYTES of shared memory, used by turns, which
// `turn` counts. Called by all its threads, which meet at barrier `id`.
template <unsigned COLUMNS>
__device__ __forceinline__ void store_staged(const Results& results, const Operands& operands, const Rows& rows,
                                             unsigned product, const float (&sum)[COLUMNS][4], unsigned char* buffers,
                                             unsigned& turn, unsigned id) {
    // Chunks of 16 bytes in a staged row; a thread stores one at a time.
    constexpr unsigned CHUNKS = STAGED_ROW_BYTES / 16, COLUMNS_EACH = GATED ? 4 : 2;
    const unsigned thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32, width = width_of(operands);
    float bias[2];
    biases_of(results, operands, rows, product + warp * 16, bias);
    const unsigned row = thread / CHUNKS, chunk = thread % CHUNKS, result = results_of(product) + chunk * 8;
    ELEMENT* to =
        static_cast<ELEMENT*>(results.out) + static_cast<unsigned long long>(rows.first + row) * width + result;
#pragma unroll
    for (unsigned first = 0; first < COLUMNS; first += STAGED_PLACES / 8) {
        if (first * 8 >= rows.count) {
            break;
        }
        unsigned char* buffer = buffers + turn % 2 * STAGED_BYTES;
#pragma unroll
        for (unsigned n = first; n < first + STAGED_PLACES / 8; n += COLUMNS_EACH) {
            unsigned words[4];
#pragma unroll
            for (unsigned i = 0; i < COLUMNS_EACH; i++) {
                const float (&s)[4] = sum[n + i];
                if (GATED) {
                    words[i] = pack<ELEMENT>(gated<ELEMENT>(s[0] + bias[0], s[2] + bias[1], results.gate),
                                             gated<ELEMENT>(s[1] + bias[0], s[3] + bias[1], results.gate));
                } else {
                    words[i * 2] = pack<ELEMENT>(s[0] + bias[0], s[1] + bias[0]);
                    words[i * 2 + 1] = pack<ELEMENT>(s[2] + bias[1], s[3] + bias[1]);
                }
            }
            const unsigned matrix = lane / 8, place = (n - first + (GATED ? matrix : matrix / 2)) * 8 + lane % 8;
            store_matrices_transposed(shared_address(buffer) + staged_at(place, GATED ? warp : warp * 2 + matrix % 2),
                                      words);
        }
        meet(id, 128);
#pragma unroll
        for (unsigned i = 0; i < STAGED_PLACES; i += 128 / CHUNKS) {
            if (first * 8 + i + row < rows.count && result < width) {
                *reinterpret_cast<uint4*>(to + static_cast<unsigned long long>(first * 8 + i) * width) =
                    *reinterpret_cast<const uint4*>(buffer + staged_at(i + row, chunk));
            }
        }
        turn++;
    }
}
