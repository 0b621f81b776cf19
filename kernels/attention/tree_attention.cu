// Tree attention on tensor cores for f16 and bf16, heads of a multiple of 16 up to 256, or keys and
// values of two multiples of 32. For each row and query head, over the positions p that the row sees:
//
//   out = sum_p 2^(s_p - m) v_p / sum_p 2^(s_p - m),  s_p = q . k_p * scale * log2 e,  m = max s.
//
// If cap_rate is not 0, s_p = tanh(q . k_p * cap_rate / (2 log2 e)) * scale_log2. If there are sinks, the divisor has
// one more term, 2^(sink * log2 e - m), for each row and query head, whatever the number of its states.
//
// A row whose context is a single undivided item gets `out` and `lse` from this kernel; other rows get partial states,
// which merge_states combines. lse is the natural logarithm of the divisor.
//
// Shapes: out [R, q_heads * VALUE_DIM], qkv [R, qkv_width], which begins with the queries, kv [page][kv head][k
// [32][KEY_DIM], v [32][VALUE_DIM]], positions u32 [R], sinks f32 [q_heads] or null, lse f32 [R, q_heads] or null; plan
// words and partial states as in attention/plan.cuh. The rows of a tile are packed: row * group + head in the group.
// Grid: as many blocks as are resident at a time, two per multiprocessor. Blocks take (tile, key head) pairs by ticket,
// longest first: wide tiles (compute-bound), then narrow ones (bandwidth-bound), whose small size fills the time until
// the last block ends. Which block takes which tile does not affect results.
// Definition: `Backend::tree_attention`; on the CPU, crates/cpu/src/attention.
//
// Defines: ELEMENT, KEY_DIM, VALUE_DIM, VALUES_IN_KEYS (0).
#include "attention/narrow.cuh"
#include "attention/wide.cuh"

// Calls `attend()`, with the tile in `shared`, for every (tile, key head) pair of one class that this block takes.
template <class Attend>
__device__ __forceinline__ void take_tiles(const Job& job, PlanWord at, PlanWord tiles, unsigned* tickets,
                                           TileShared& shared, Attend attend) {
    __syncthreads();  // all threads have finished the other class
    if (threadIdx.x == 0) {
        shared.tickets = tickets;
    }
    take_ticket(shared);
    while (true) {
        __syncthreads();
        unsigned ticket = shared.next;
        if (ticket >= job.words[tiles] * job.kv_heads) {
            return;
        }
        load_tile(job, job.words[at], ticket, shared);
        attend();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    tree_attention(T* out, const T* qkv, const T* kv, unsigned* words, const unsigned* positions, float* partials,
                   unsigned group, unsigned kv_heads, unsigned qkv_width, float scale_log2, float cap_rate,
                   const float* sinks, float* lse) {
    extern __shared__ __align__(16) unsigned char ring[];
    __shared__ TileShared shared;
    __shared__ NarrowShared narrow;
    __shared__ WideShared wide;
    const Job job = {out, qkv, kv, words, positions, partials_at(partials, words, group * kv_heads, VALUE_DIM),
                     group, kv_heads, qkv_width, scale_log2, cap_rate, sinks, lse};

    take_tiles(job, WIDE_AT, WIDE_TILES, words + WIDE_TICKET, shared, [&] {
        if (ROW_TILES == 1 || shared.tile.rows <= 64) {
            attend_wide<1, ROW_TILES == 1 ? REGISTER_STEPS : STEPS>(job, shared, shared_address(ring), wide);
        } else {
            attend_wide<ROW_TILES, REGISTER_STEPS>(job, shared, shared_address(ring), wide);
        }
    });
    take_tiles(job, NARROW_AT, NARROW_TILES, words + NARROW_TICKET, shared, [&] {
        attend_narrow(job, shared, ring, narrow);
    });
}
