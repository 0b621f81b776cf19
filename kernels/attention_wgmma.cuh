// The wide tiles of Hopper (sm_90a): a block is one warpgroup, whose matrix instructions (wgmma) read operands from shared
// memory while its threads do other work. A tile is M times 64 packed rows; the softmax of some overlaps the products of the
// others, and those of the multiprocessor's other block. Limited by the time from scores to weights: without it, the tensor
// cores would do a third more.
//
// All operands in shared memory are panels: rows of 64 elements (128 bytes), eight rows an atom of 1024 bytes at a multiple of
// 1024. Within an atom, 16-byte chunk c of row r lies at r * 128 + (c ^ r) * 16, the layout called 128-byte swizzle: both the
// copies' writes and the products' reads meet all banks. Queries are [panel][64 M rows], keys and values [panel][64 tokens].
// A descriptor names an operand: bits 0-13 its address / 16, bits 32-45 the bytes from an atom to the next / 16, bits 62-63 the
// layout (1). Where rows run along the sum (queries, keys), 16 elements further are 32 bytes; where they run across it (values,
// read transposed), 16 tokens further are two atoms. The bytes between panels have no place there: no operand spans two.
#pragma once

#include "attention_tile.cuh"

constexpr unsigned STEP_TOKENS = 2 * PIECE_TOKENS;  // scored before the softmax is taken
constexpr unsigned ATOM_BYTES = 1024;
constexpr unsigned PANELS = HEAD_DIM / 64;
constexpr unsigned PANEL_BYTES = 64 * 128;  // of 64 rows
constexpr unsigned OPERAND_BYTES = PANELS * PANEL_BYTES;
constexpr unsigned QUERY_BYTES = ROW_TILES * OPERAND_BYTES;
constexpr unsigned STAGE_BYTES = 2 * OPERAND_BYTES;
constexpr unsigned STAGES = 2;
static_assert(HEAD_DIM % 64 == 0 && ROW_TILES == 2, "whole panels, and o of 128 rows in registers");
static_assert(ATOM_BYTES + QUERY_BYTES + STAGES * STAGE_BYTES <= SHARED_BYTES, "one step is loaded while another is computed");

// The second word of each piece in the ring.
struct WideShared {
    unsigned notes[STAGES][2];
};

__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
    return 1ull << 62 | static_cast<unsigned long long>(ATOM_BYTES / 16) << 32 | (address & 0x3ffff) >> 4;
}

// Makes this thread's finished copies visible to matrix instructions.
__device__ __forceinline__ void publish_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Registers written so far may be operands of what follows.
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void products_issued() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits for all groups of products but the newest `NEWER`.
template <int NEWER>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(NEWER) : "memory");
}

// Keeps the compiler from moving uses of a result to before the wait above.
template <int N>
__device__ __forceinline__ void settled(float (&sum)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        asm volatile("" : "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])::"memory");
    }
}

// A warp holds of a 64 x 64 result 16 rows, as eight 16 x 8 results of attention_mma.cuh.
#define SUM_8(sum, n) \
    "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3]), "+f"(sum[n + 1][0]), "+f"(sum[n + 1][1]), "+f"(sum[n + 1][2]), "+f"(sum[n + 1][3])
#define SUM_64(sum, n) SUM_8(sum, n), SUM_8(sum, n + 2), SUM_8(sum, n + 4), SUM_8(sum, n + 6)
#define WGMMA(types)                                                                                                       \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." types " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
    "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

// sum = q [64 x 16] k [64 x 16]^T, + sum if `more`.
template <class T>
__device__ __forceinline__ void multiply_keys(float (&sum)[8][4], unsigned long long q, unsigned long long k, bool more);

// sum [64 x 64, from the n-th of its eighths] += p [64 x 16] v [16 x 64]
template <class T>
__device__ __forceinline__ void multiply_values(float (&sum)[2 * STEPS][4], int n, const unsigned (&p)[4], unsigned long long v);

#define DEFINE_PRODUCTS(T, types)                                                                                          \
    template <>                                                                                                             \
    __device__ __forceinline__ void multiply_keys<T>(float (&sum)[8][4], unsigned long long q, unsigned long long k, bool more) { \
        asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %34, 0;\n" WGMMA(types) "%32, %33, more, 1, 1, 0, 0;\n}"       \
                     : SUM_64(sum, 0)                                                                                       \
                     : "l"(q), "l"(k), "r"(static_cast<int>(more)));                                                        \
    }                                                                                                                       \
    template <>                                                                                                             \
    __device__ __forceinline__ void multiply_values<T>(float (&sum)[2 * STEPS][4], int n, const unsigned (&p)[4], unsigned long long v) { \
        asm volatile(WGMMA(types) "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                                  \
                     : SUM_64(sum, n)                                                                                       \
                     : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v));                                                 \
    }
DEFINE_PRODUCTS(f16, "f16.f16")
DEFINE_PRODUCTS(bf16, "bf16.bf16")

// Rows of HEAD_DIM elements, 16 at a time by all threads, to panels of `PANEL` bytes. A thread's rows are 16 apart and take
// the same place in their atoms.
constexpr unsigned COPY_ROWS = THREADS / 8;

__device__ __forceinline__ unsigned copy_lane() {
    unsigned row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    return row * 128 + (chunk ^ row % 8) * 16;
}

template <unsigned PANEL>
__device__ __forceinline__ void copy_row(unsigned to, const T* from, bool real) {
#pragma unroll
    for (unsigned panel = 0; panel < PANELS; panel++) {
        copy_16(to + panel * PANEL, from + panel * 64 + threadIdx.x % 8 * 8, real);
    }
}

// Begins and ends with no copies under way.
template <int M>
__device__ __forceinline__ void attend_wide(const Job& job, TileShared& shared, unsigned memory, WideShared& wide) {
    const Tile& tile = shared.tile;
    const unsigned queries = (memory + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES, stages = queries + QUERY_BYTES;
    const unsigned steps = (tile.pieces + 1) / 2;

    uint2 held = {0, 0};  // this lane's of the 32 pieces that are copied next
    auto copy = [&](unsigned step) {
        if (step < steps) {
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                unsigned at = step * 2 + half, lane = threadIdx.x % 32;
                if (at % 32 == 0) {
                    held = at + lane < tile.pieces ? pieces_at(job.words)[tile.first_piece + at + lane] : uint2{0, 0};
                }
                uint2 words = {__shfl_sync(ALL_LANES, held.x, at % 32), __shfl_sync(ALL_LANES, held.y, at % 32)};
                Piece piece = piece_of(words, shared.highest);
                unsigned to = stages + step % STAGES * STAGE_BYTES + half * PIECE_TOKENS * 128 + copy_lane();
                const T* keys = job.keys(piece.page, shared.kv_head);
#pragma unroll
                for (unsigned first = 0; first < PIECE_TOKENS; first += COPY_ROWS) {
                    unsigned slot = first + threadIdx.x / 8;
                    bool real = slot >= piece.from && slot < piece.to;
                    copy_row<PANEL_BYTES>(to + first * 128, keys + slot * HEAD_DIM, real);
                    copy_row<PANEL_BYTES>(to + OPERAND_BYTES + first * 128, keys + (PIECE_TOKENS + slot) * HEAD_DIM, real);
                }
                if (threadIdx.x == 0) {
                    wide.notes[step % STAGES][half] = words.y;
                }
            }
        }
        copies_issued();
    };
#pragma unroll
    for (unsigned first = 0; first < 64 * M; first += COPY_ROWS) {
        const T* from = job.query(packed_row(tile, first + threadIdx.x / 8), shared.kv_head);
        copy_row<M * PANEL_BYTES>(queries + first * 128 + copy_lane(), from, true);
    }
    copy(0);
    draw(shared);

    float o[M][2 * STEPS][4] = {};
    Running states[M];
#pragma unroll
    for (int m = 0; m < M; m++) {
        states[m] = nothing_yet();
    }
    for (unsigned step = 0; step < steps; step++) {
        wait_copies<0>();
        publish_copies();
        __syncthreads();
        const unsigned keys = stages + step % STAGES * STAGE_BYTES, values = keys + OPERAND_BYTES;
        float s[M][8][4];
        begin_products();
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (unsigned k = 0; k < STEPS; k++) {
                unsigned q = queries + k / 4 * M * PANEL_BYTES + m * PANEL_BYTES + k % 4 * 32;
                multiply_keys<T>(s[m], descriptor(q), descriptor(keys + k / 4 * PANEL_BYTES + k % 4 * 32), k > 0);
            }
            products_issued();
        }
        copy(step + 1);
        bool whole = true;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            whole &= seen_by_all(piece_of({0, wide.notes[step % STAGES][half]}, shared.highest), shared);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            wait_products<M - 1>();  // the scores of m; products of the other rows go on
            settled(s[m]);
            if (!whole) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    Piece piece = piece_of({0, wide.notes[step % STAGES][half]}, shared.highest);
                    mask<4>(*reinterpret_cast<float (*)[4][4]>(&s[m][4 * half]), piece, 0, shared, m * 64 + threadIdx.x / 32 * 16);
                }
            }
            rescale(o[m], soften(s[m], states[m], job.scale));
            begin_products();
#pragma unroll
            for (int k = 0; k < STEP_TOKENS / 16; k++) {
                unsigned p[4] = {pack<T>(s[m][2 * k][0], s[m][2 * k][1]), pack<T>(s[m][2 * k][2], s[m][2 * k][3]),
                                 pack<T>(s[m][2 * k + 1][0], s[m][2 * k + 1][1]), pack<T>(s[m][2 * k + 1][2], s[m][2 * k + 1][3])};
#pragma unroll
                for (int panel = 0; panel < PANELS; panel++) {
                    multiply_values<T>(o[m], panel * 8, p, descriptor(values + panel * PANEL_BYTES + k * 2 * ATOM_BYTES));
                }
            }
            products_issued();
        }
        wait_products<0>();
#pragma unroll
        for (int m = 0; m < M; m++) {
            settled(o[m]);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        store_rows(job, shared, m * 64 + threadIdx.x / 32 * 16, o[m], states[m]);
    }
}
