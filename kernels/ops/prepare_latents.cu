// What is done to a row before latent attention, in one pass: the first `rank` elements of its latent are normalised
// and rounded, the last elements of each query, and of the latent where a table turns keys, are rotated by the angles
// of the row's position and rounded, table after table, and the latent goes to slot slots[r] of a layer, if `member` of
// `members` stores that (`own_slot`). Queries change in place; the last `rope` elements of each also go to the end of
// the head's absorbed query, if there is one.
//
// Shapes: queries ELEMENT [R, heads * query], rows `query_row` elements apart; absorbed ELEMENT [R, heads * (rank +
// rope)] or null; latents ELEMENT [R, rank + rope], rows `latent_row` elements apart, which may lie between those of
// queries; weight f32 [rank]; of each table cosines and sines f32 [positions, rotary / 2], or null, and `turns`, bits
// of Turn; positions u32 [R]; layer KV_ELEMENT [page][32 slots of rank + rope], laid out as in kv_page.cuh; slots u32
// [R]. Grid: a warp for each part of a row, WARPS to a block: of `parts` parts the first is the latent, the others are
// of
// `heads_a_part` heads each. Shared memory: a latent for each warp, from multiples of 16 bytes on.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element that is rotated or stored; of few rows, the launch.
// Definition: `Backend::prepare_latents`; on the CPU, crates/cpu/src/latent.rs.
//
// Defines: ELEMENT, KV_ELEMENT, ROUNDED (1: KV_ELEMENT is ELEMENT and holds values of e4m3), LAYOUT (of kv_page.cuh).
#include "ops/kv_slot.cuh"
#include "ops/rotate.cuh"
#include "reduce.cuh"

constexpr unsigned WARPS = 4;

// Vectors of a row that a lane has on their way at once.
constexpr unsigned TOGETHER = 3;

enum Turn : unsigned { NEIGHBOURS = 1, KEYS = 2 };

struct Table {
    const float* cosines;
    const float* sines;
    unsigned rotary, turns;
};

// Rotates the last elements of `heads` heads, each `width` elements wide, by the angles of `position`.
template <int N>
__device__ __forceinline__ void turn_tails(ELEMENT* first, unsigned heads, unsigned width, const Table& table,
                                           unsigned position) {
    const unsigned half = table.rotary / 2;
    const unsigned long long at = static_cast<unsigned long long>(position) * half;
    for (unsigned pair = threadIdx.x % 32 * N; pair < heads * half; pair += 32 * N) {
        ELEMENT* tail = first + (pair / half + 1) * width - table.rotary;
        rotate_pairs<N>(tail, table.cosines + at, table.sines + at, pair % half, half, table.turns & NEIGHBOURS);
    }
    __syncwarp();
}

// Copies the last `rope` elements of `heads` heads, `from_apart` elements apart, to others, `to_apart` apart.
template <int N>
__device__ __forceinline__ void copy_tails(ELEMENT* to, const ELEMENT* from, unsigned heads, unsigned to_apart,
                                           unsigned from_apart, unsigned rope) {
    for (unsigned i = threadIdx.x % 32 * N; i < heads * rope; i += 32 * N) {
        const unsigned head = i / rope, behind = rope - i % rope;
        using Vector = Lanes<ELEMENT, N>;
        *reinterpret_cast<Vector*>(to + (head + 1) * to_apart - behind) =
            *reinterpret_cast<const Vector*>(from + (head + 1) * from_apart - behind);
    }
}

// Normalises the row's latent into `row` and stores what has become of it.
template <int N>
__device__ __forceinline__ void prepare_row(const ELEMENT* latent, ELEMENT* row, const float* weight, float eps,
                                            unsigned rank, unsigned rope, const Table (&tables)[2], unsigned position,
                                            KV_ELEMENT* layer, unsigned slot) {
    const unsigned own = threadIdx.x % 32 * N, width = rank + rope;
    float squares = 0.0f;
#pragma unroll 1
    for (unsigned first = own; first < width; first += TOGETHER * 32 * N) {
        Lanes<float, N> x[TOGETHER];
#pragma unroll
        for (unsigned k = 0; k < TOGETHER; ++k) {
            x[k] = load<N>(latent + min(first + k * 32 * N, width - N));
        }
#pragma unroll
        for (unsigned k = 0; k < TOGETHER; ++k) {
            const unsigned i = first + k * 32 * N;
            if (i < width) {
                store<N>(row + i, x[k]);
            }
            for (float value : x[k].at) {
                squares += i < rank ? value * value : 0.0f;
            }
        }
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / rank + eps);
    for (unsigned i = own; i < rank; i += 32 * N) {
        Lanes<float, N> x = load<N>(row + i);
        const Lanes<float, N> weights = load<N>(weight + i);
        for (int lane = 0; lane < N; ++lane) {
            x.at[lane] *= scale * weights.at[lane];
        }
        store<N>(row + i, x);
    }
    __syncwarp();
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
        if (tables[k].cosines && tables[k].turns & KEYS) {
            turn_tails<N>(row, 1, width, tables[k], position);
        }
    }
    for (unsigned i = own; i < width; i += 32 * N) {
        store_in_slot<N>(layer, load<N>(row + i), slot, 0, i, 1, width, 0);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    prepare_latents(ELEMENT* queries, ELEMENT* __restrict__ absorbed, const ELEMENT* __restrict__ latents,
                    const float* __restrict__ weight, float eps, const float* __restrict__ cosines,
                    const float* __restrict__ sines, unsigned rotary, unsigned turns,
                    const float* __restrict__ later_cosines, const float* __restrict__ later_sines,
                    unsigned later_rotary, unsigned later_turns, const unsigned* __restrict__ positions,
                    KV_ELEMENT* __restrict__ layer, const unsigned* __restrict__ slots, unsigned rows, unsigned heads,
                    unsigned query, unsigned rank, unsigned rope, unsigned parts, unsigned heads_a_part,
                    unsigned query_row, unsigned latent_row, unsigned member, unsigned members) {
    extern __shared__ __align__(16) unsigned char memory[];
    const unsigned warp = threadIdx.x / 32;
    const unsigned long long r = (static_cast<unsigned long long>(blockIdx.x) * WARPS + warp) / parts;
    const unsigned part = (static_cast<unsigned long long>(blockIdx.x) * WARPS + warp) % parts;
    if (r >= rows) {
        return;  // the whole warp returns, and warps do not meet
    }
    const Table tables[2] = {{cosines, sines, rotary, turns}, {later_cosines, later_sines, later_rotary, later_turns}};
    const unsigned position = positions[r];
    const bool is_cut = (rank | query | rope | rotary / 2 | later_rotary / 2 | query_row | latent_row) % LANES == 0;
    if (part == 0) {
        const unsigned slot = own_slot(slots[r], member, members);
        if (slot == NO_SLOT) {
            return;
        }
        const unsigned bytes = ((rank + rope) * sizeof(ELEMENT) + 15) / 16 * 16;
        const ELEMENT* latent = latents + r * latent_row;
        ELEMENT* row = reinterpret_cast<ELEMENT*>(memory + warp * bytes);
        if (is_cut) {
            prepare_row<LANES>(latent, row, weight, eps, rank, rope, tables, position, layer, slot);
        } else {
            prepare_row<1>(latent, row, weight, eps, rank, rope, tables, position, layer, slot);
        }
        return;
    }
    const unsigned from = (part - 1) * heads_a_part;
    const unsigned count = from < heads ? min(heads - from, heads_a_part) : 0;
    ELEMENT* first = queries + r * query_row + from * query;
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
        if (tables[k].cosines) {
            if (is_cut) {
                turn_tails<LANES>(first, count, query, tables[k], position);
            } else {
                turn_tails<1>(first, count, query, tables[k], position);
            }
        }
    }
    if (absorbed) {
        ELEMENT* to = absorbed + (r * heads + from) * (rank + rope);
        if (is_cut) {
            copy_tails<LANES>(to, first, count, rank + rope, query, rope);
        } else {
            copy_tails<1>(to, first, count, rank + rope, query, rope);
        }
    }
}
