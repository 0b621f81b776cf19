// What is done to a row before latent attention, in one pass: the first `rank` elements of its latent are normalised
// and rounded, the last elements of each query, and of the latent where a table turns keys, are rotated by the angles
// of the row's position and rounded, table after table, and the latent goes to slot slots[r] of a layer, if `member` of
// `members` stores that (`own_slot`). Queries change in place.
//
// Shapes: queries ELEMENT [R, heads * query]; latents ELEMENT [R, rank + rope]; weight f32 [rank]; of each table
// cosines and sines f32 [positions, rotary / 2], or null, and `turns`, bits of Turn; positions u32 [R]; layer
// KV_ELEMENT [page][32 slots of rank + rope], laid out as in kv_page.cuh; slots u32 [R]. Shared memory: a latent.
// Grid: `blocks` blocks for each row: the first takes the latent, the others `heads_a_block` heads each.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element that is rotated or stored; of few rows, the launch.
// Definition: `Backend::prepare_latents`; on the CPU, crates/cpu/src/latent.rs.
//
// Defines: ELEMENT, KV_ELEMENT, ROUNDED (1: KV_ELEMENT is ELEMENT and holds values of e4m3), LAYOUT (of kv_page.cuh).
#include "ops/kv_slot.cuh"
#include "ops/rotate.cuh"
#include "reduce.cuh"

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
    for (unsigned pair = threadIdx.x * N; pair < heads * half; pair += THREADS * N) {
        ELEMENT* tail = first + (pair / half + 1) * width - table.rotary;
        rotate_pairs<N>(tail, table.cosines + at, table.sines + at, pair % half, half, table.turns & NEIGHBOURS);
    }
}

// Normalises the row's latent into `row` and stores what has become of it.
template <int N>
__device__ __forceinline__ void prepare_row(const ELEMENT* latent, ELEMENT* row, const float* weight, float eps,
                                            unsigned rank, unsigned rope, const Table (&tables)[2], unsigned position,
                                            KV_ELEMENT* layer, unsigned slot) {
    float squares = 0.0f;
    for (unsigned i = threadIdx.x * N; i < rank + rope; i += THREADS * N) {
        const Lanes<float, N> x = load<N>(latent + i);
        store<N>(row + i, x);
        for (float value : x.at) {
            squares += i < rank ? value * value : 0.0f;
        }
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / rank + eps);
    for (unsigned i = threadIdx.x * N; i < rank; i += THREADS * N) {
        Lanes<float, N> x = load<N>(row + i);
        const Lanes<float, N> weights = load<N>(weight + i);
        for (int lane = 0; lane < N; ++lane) {
            x.at[lane] *= scale * weights.at[lane];
        }
        store<N>(row + i, x);
    }
    for (const Table& table : tables) {
        if (table.cosines && table.turns & KEYS) {
            turn_tails<N>(row, 1, rank + rope, table, position);
            __syncthreads();
        }
    }
    for (unsigned i = threadIdx.x * N; i < rank + rope; i += THREADS * N) {
        store_in_slot<N>(layer, load<N>(row + i), slot, 0, i, 1, rank + rope, 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    prepare_latents(ELEMENT* queries, const ELEMENT* __restrict__ latents, const float* __restrict__ weight, float eps,
                    const float* __restrict__ cosines, const float* __restrict__ sines, unsigned rotary, unsigned turns,
                    const float* __restrict__ later_cosines, const float* __restrict__ later_sines,
                    unsigned later_rotary, unsigned later_turns, const unsigned* __restrict__ positions,
                    KV_ELEMENT* __restrict__ layer, const unsigned* __restrict__ slots, unsigned heads, unsigned query,
                    unsigned rank, unsigned rope, unsigned blocks, unsigned heads_a_block, unsigned member,
                    unsigned members) {
    extern __shared__ __align__(16) unsigned char memory[];
    const Table tables[2] = {{cosines, sines, rotary, turns}, {later_cosines, later_sines, later_rotary, later_turns}};
    const unsigned long long r = blockIdx.x / blocks;
    const unsigned block = blockIdx.x % blocks;
    const unsigned position = positions[r];
    const bool is_cut = (rank | query | rotary / 2 | later_rotary / 2 | (rank + rope)) % LANES == 0;
    if (block == 0) {
        const unsigned slot = own_slot(slots[r], member, members);
        if (slot == NO_SLOT) {
            return;  // the whole block returns
        }
        const ELEMENT* latent = latents + r * (rank + rope);
        ELEMENT* row = reinterpret_cast<ELEMENT*>(memory);
        if (is_cut) {
            prepare_row<LANES>(latent, row, weight, eps, rank, rope, tables, position, layer, slot);
        } else {
            prepare_row<1>(latent, row, weight, eps, rank, rope, tables, position, layer, slot);
        }
        return;
    }
    const unsigned from = (block - 1) * heads_a_block;
    const unsigned count = from < heads ? min(heads - from, heads_a_block) : 0;
    ELEMENT* first = queries + (r * heads + from) * query;
    for (const Table& table : tables) {
        if (table.cosines) {
            if (is_cut) {
                turn_tails<LANES>(first, count, query, table, position);
            } else {
                turn_tails<1>(first, count, query, table, position);
            }
            __syncthreads();
        }
    }
}
