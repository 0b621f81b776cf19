// What the tile classes of tree_attention.cu share: the kernel's arguments, the shared-memory layout, copies, masking,
// the online softmax of a pair of rows, and the destination of a row's result. The kernels for Hopper use the
// arguments, queries and softmax helpers.
#pragma once

#include "attention/mma.cuh"
#include "attention/plan.cuh"
#include "attention/state.cuh"

using T = ELEMENT;  // of queries and results

// KvElement: element type of keys and values in pages, T or e4m3 (in tree_attention_wgmma.cu, tree_attention_latent.cu
// and tree_attention_latent_mma.cu). Operand: the type that they, queries and weights are multiplied as.
#ifndef KV_ELEMENT
#define KV_ELEMENT ELEMENT
#endif
using KvElement = KV_ELEMENT;
constexpr bool FP8 = sizeof(KvElement) == 1;

template <class K>
struct OperandOf {
    using Type = K;
};

template <>
struct OperandOf<e4m3> {
    using Type = f16;
};
using Operand = OperandOf<KvElement>::Type;

constexpr unsigned WARPS = 4;
constexpr unsigned THREADS = 32 * WARPS;
constexpr unsigned CHUNKS = KEY_DIM / 8;  // of a key, of 16 bytes, the unit of copies
// A token's key and value in shared memory: an odd number of 16-byte units, so that eight consecutive rows are in
// different banks.
constexpr unsigned ROW_BYTES = (CHUNKS + 1) * 16, VALUE_ROW_BYTES = (VALUE_DIM / 8 + 1) * 16;
constexpr unsigned STEPS = KEY_DIM / 16, VALUE_STEPS = VALUE_DIM / 16;  // multiplications along a head
constexpr unsigned ROW_TILES = KEY_DIM <= 128 ? 2 : 1;  // of 16 packed rows, per warp of a wide tile
constexpr unsigned MAX_WIDE_ROWS = 16 * WARPS * ROW_TILES;  // packed rows per tile

// SHARED_KB: shared memory available to a block, by architecture. SHARED_BYTES: dynamic shared memory requested: half
// of it less the static part, so that a multiprocessor holds two blocks, or all of it where half is too little. Mirrors
// `shared_bytes` of crates/cuda/src/attention.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
constexpr unsigned SHARED_KB = 163;
#elif __CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200
constexpr unsigned SHARED_KB = 99;
#else
constexpr unsigned SHARED_KB = 227;
#endif
constexpr unsigned SHARED_BYTES = (SHARED_KB == 99 && KEY_DIM > 96 ? SHARED_KB - 6 : SHARED_KB / 2 - 6) * 1024;
constexpr unsigned MAX_COPIES_AHEAD = 8;  // in flight; more would not hide more latency
constexpr unsigned ALL_LANES = 0xffffffffu;

// Division of small numbers by a divisor known at kernel start. With MULTIPLIES defined it takes one multiplication,
// exact for n * by < 2^32, and one more register.
struct Divisor {
    unsigned by;
#ifdef MULTIPLIES
    unsigned inverse;

    __device__ __forceinline__ explicit Divisor(unsigned by) : by(by), inverse(0xffffffffu / by + 1) {}
    __device__ __forceinline__ unsigned quotient(unsigned n) const {
        return by == 1 ? n : __umulhi(n, inverse);
    }
#else
    __device__ __forceinline__ explicit Divisor(unsigned by) : by(by) {}
    __device__ __forceinline__ unsigned quotient(unsigned n) const {
        return n / by;
    }
#endif
    __device__ __forceinline__ unsigned remainder(unsigned n) const {
        return n - quotient(n) * by;
    }
};

// Elements of a key head in a page, with its values.
constexpr unsigned PAGE_HEAD = KV_BLOCK_TOKENS * (KEY_DIM + (VALUES_IN_KEYS ? 0 : VALUE_DIM));

struct Job {
    T* out;
    const T* qkv;
    const KvElement* kv;
    unsigned* words;
    const unsigned* positions;
    Partials partials;
    unsigned group, kv_heads;
    unsigned qkv_width;  // elements per row of qkv
    float scale;  // of scores, times log2 e
    float cap_rate;  // 0, or the rate of `capped`, to which scores are subject before they are scaled
    const float* sinks;  // of each query head, or null
    float* lse;  // of each row and query head, or null: `log_sum` of all its scores
    Divisor by_group{group}, by_kv_heads{kv_heads};

    // Keys of one page and head: KV_BLOCK_TOKENS rows of KEY_DIM, laid out as in kv_page.cuh.
    __device__ const KvElement* keys(unsigned page, unsigned kv_head) const {
        return kv + (static_cast<size_t>(page) * kv_heads + kv_head) * PAGE_HEAD;
    }
    // Their values: as many rows of VALUE_DIM behind them, or the first elements of the keys.
    __device__ const KvElement* values(unsigned page, unsigned kv_head) const {
        return keys(page, kv_head) + (VALUES_IN_KEYS ? 0 : KV_BLOCK_TOKENS * KEY_DIM);
    }
    __device__ const T* query(unsigned packed, unsigned kv_head) const {
        return qkv + static_cast<size_t>(by_group.quotient(packed)) * qkv_width +
               (kv_head * group + by_group.remainder(packed)) * KEY_DIM;
    }

    // Caps scores (q.k), if they are capped.
    template <int N>
    __device__ __forceinline__ void cap(float (&s)[N][4]) const {
        if (cap_rate != 0.0f) {
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[n][i] = capped(s[n][i], cap_rate);
                }
            }
        }
    }
};

// The `i`-th packed row of a tile. Rows past the end repeat the last one and are never stored.
__device__ __forceinline__ unsigned packed_row(const Tile& tile, unsigned i) {
    return tile.first_row + min(i, tile.rows - 1);
}

__host__ __device__ constexpr unsigned smaller(unsigned a, unsigned b) {
    return a < b ? a : b;
}

// The tile that a block computes, in shared memory to save registers.
struct TileShared {
    unsigned* tickets;  // counter of taken tiles of this class, over all blocks
    unsigned next;  // ticket of the tile after this one
    Tile tile;
    unsigned kv_head, window;
    unsigned lowest, highest;  // positions of the tile's rows
    unsigned at[MAX_WIDE_ROWS];  // position of each packed row; rows past the end repeat the last one
};

// Takes the ticket of the next tile. Called after a tile's first copies are issued, so that the latencies overlap.
__device__ __forceinline__ void take_ticket(TileShared& shared) {
    if (threadIdx.x == 0) {
        shared.next = atomicAdd(shared.tickets, 1);
    }
}

// Called by all threads of a block: loads the tile of `ticket` into `shared`, visible to all on return.
__device__ __forceinline__ void load_tile(const Job& job, unsigned tiles_at, unsigned ticket, TileShared& shared) {
    const Tile tile = read_tile(job.words, tiles_at, ticket / job.kv_heads);
    unsigned lowest = ~0u, highest = 0;
    for (unsigned i = threadIdx.x % 32; i < MAX_WIDE_ROWS; i += 32) {
        unsigned at = job.positions[job.by_group.quotient(packed_row(tile, i))];
        lowest = min(lowest, at);
        highest = max(highest, at);
        if (threadIdx.x < 32) {
            shared.at[i] = at;
        }
    }
    lowest = __reduce_min_sync(ALL_LANES, lowest);
    highest = __reduce_max_sync(ALL_LANES, highest);
    if (threadIdx.x == 0) {
        shared.tile = tile;
        shared.kv_head = ticket % job.kv_heads;
        shared.window = job.words[WINDOW];
        shared.lowest = lowest;
        shared.highest = highest;
    }
    __syncthreads();
}

// Copies ROWS x WIDTH contiguous elements to rows in shared memory, by `COPIERS` threads. Row i belongs to slot
// `first_slot` + i of the page; slots not in `kv_block` are zeroed.
template <unsigned ROWS, unsigned COPIERS, unsigned WIDTH>
__device__ __forceinline__ void copy_rows(unsigned to, const T* from, unsigned thread, unsigned first_slot,
                                          const KvBlock& kv_block) {
    // Neighbouring threads that copy one row: as many as divide its chunks evenly, up to 128 bytes.
    constexpr unsigned ROW_CHUNKS = WIDTH / 8, LINE = ROW_CHUNKS % 8 == 0 ? 8 : ROW_CHUNKS % 4 == 0 ? 4 : 2;
    constexpr unsigned TO_NEXT = (ROW_CHUNKS + 1) * 16;  // bytes between rows
    static_assert(ROWS % (COPIERS / LINE) == 0, "all threads copy equally much");
    const unsigned row = thread / LINE, column = thread % LINE;
    to += row * TO_NEXT + column * 16;
    from += row * WIDTH + column * 8;
#pragma unroll
    for (unsigned r = 0; r < ROWS; r += COPIERS / LINE) {
        unsigned slot = (first_slot + row + r) % KV_BLOCK_TOKENS;
        bool real = slot >= kv_block.from && slot < kv_block.to;
#pragma unroll
        for (unsigned c = 0; c < ROW_CHUNKS; c += LINE) {
            copy_16(to + r * TO_NEXT + c * 16, from + r * WIDTH + c * 8, real);
        }
    }
}

// Loads one A fragment: rows t / 4 and t / 4 + 8 of 16 queries, 16 elements from `at`.
__device__ __forceinline__ void load_query(unsigned (&to)[4], const T* upper, const T* lower, unsigned at) {
    unsigned column = at + threadIdx.x % 4 * 2;
    to[0] = *reinterpret_cast<const unsigned*>(upper + column);
    to[1] = *reinterpret_cast<const unsigned*>(lower + column);
    to[2] = *reinterpret_cast<const unsigned*>(upper + column + 8);
    to[3] = *reinterpret_cast<const unsigned*>(lower + column + 8);
}

// Offset of lane t's row of four 8 x 8 matrices within 16 rows. For keys, multiplied along their rows, the order is
// (rows 0-7, columns 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15); for values and queries the middle two are swapped.
__device__ __forceinline__ unsigned key_lane() {
    unsigned lane = threadIdx.x % 32;
    return (lane / 16 * 8 + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16;
}

__device__ __forceinline__ unsigned value_lane() {
    unsigned lane = threadIdx.x % 32;
    return lane % 16 * VALUE_ROW_BYTES + lane / 16 * 16;
}

// Sets scores that a row does not see to NO_SCORE: packed rows `first_row` + t / 4 + {0, 8} against N x 8 slots from
// `first_slot` of a KV block.
template <int N>
__device__ __forceinline__ void mask(float (&s)[N][4], const KvBlock& kv_block, unsigned first_slot,
                                     const TileShared& shared, unsigned first_row) {
    const unsigned* at = shared.at + first_row + threadIdx.x % 32 / 4;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            unsigned slot = first_slot + n * 8 + threadIdx.x % 4 * 2 + c % 2;
            bool seen =
                slot >= kv_block.from && slot < kv_block.to && sees(at[c / 2 * 8], kv_block.base + slot, shared.window);
            s[n][c] = seen ? s[n][c] : NO_SCORE;
        }
    }
}

// Whether every row of the tile sees all slots of `kv_block`, so that no mask is needed.
__device__ __forceinline__ bool seen_by_all(const KvBlock& kv_block, const TileShared& shared) {
    return kv_block.from == 0 && kv_block.to == KV_BLOCK_TOKENS &&
           kv_block.base + KV_BLOCK_TOKENS <= shared.lowest + 1 && shared.highest - kv_block.base < shared.window;
}

// m and l of two rows. `l` is this lane's share of the sum over the quad that holds the rows.
struct __align__(16) SoftmaxState {
    float m[2];
    float l[2];
};

__device__ __forceinline__ SoftmaxState empty_state() {
    return {{NO_SCORE, NO_SCORE}, {0.0f, 0.0f}};
}

// Turns scores (q.k) into weights against the new m. Returns the factor by which o of each row must be multiplied.
template <int N>
__device__ __forceinline__ float2 softmax_step(float (&s)[N][4], SoftmaxState& state, float scale) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        // Two independent chains, even and odd, for instruction-level parallelism.
        float tops[2] = {s[0][2 * r], s[0][2 * r + 1]};
#pragma unroll
        for (int n = 1; n < N; n++) {
            tops[0] = fmaxf(tops[0], s[n][2 * r]);
            tops[1] = fmaxf(tops[1], s[n][2 * r + 1]);
        }
        float top = fmaxf(tops[0], tops[1]);
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
        float m = lazy_max(state.m[r], top * scale);
        float against = finite_max(m);
        factor[r] = weight(state.m[r], against);
        state.m[r] = m;
        float sums[2] = {0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int c = 2 * r; c < 2 * r + 2; c++) {
                s[n][c] = weight(s[n][c] * scale, against);
                sums[c % 2] += s[n][c];
            }
        }
        state.l[r] = state.l[r] * factor[r] + (sums[0] + sums[1]);
    }
    return {factor[0], factor[1]};
}

// Multiplies o by `factor`; skipped if no row's m rose, as in most KV blocks.
__device__ __forceinline__ void rescale(float (&o)[2 * VALUE_STEPS][4], float2 factor) {
    if (!__any_sync(ALL_LANES, factor.x != 1.0f || factor.y != 1.0f)) {
        return;
    }
#pragma unroll
    for (int n = 0; n < 2 * VALUE_STEPS; n++) {
        o[n][0] *= factor.x;
        o[n][1] *= factor.x;
        o[n][2] *= factor.y;
        o[n][3] *= factor.y;
    }
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// Destination of one packed row's result: `out` if this is its only state, else a partial state.
struct Place {
    T* out;         // VALUE_DIM elements, or null
    size_t state;  // number of the row and head among all of them or, if `out` is null, of the partial state
    unsigned head;  // query head
};

__device__ __forceinline__ Place place_of(const Job& job, const TileShared& shared, unsigned i) {
    unsigned packed = shared.tile.first_row + i, row = job.by_group.quotient(packed),
             q_heads = job.group * job.kv_heads;
    unsigned head = shared.kv_head * job.group + job.by_group.remainder(packed);
    if (has_one_state(job.words, shared.tile.states, row)) {
        const size_t place = static_cast<size_t>(row) * q_heads + head;
        return {job.out + place * VALUE_DIM, place, head};
    }
    return {nullptr,
            static_cast<size_t>(shared.tile.slot + row - job.by_group.quotient(shared.tile.first_row)) * q_heads + head,
            head};
}

// Stores two neighbouring elements of a result from `column`; `scale`: final_factor.
__device__ __forceinline__ void store_pair(const Job& job, const Place& place, unsigned column, float2 o, float scale) {
    if (place.out) {
        *reinterpret_cast<unsigned*>(place.out + column) = pack<T>(o.x * scale, o.y * scale);
    } else {
        *reinterpret_cast<float2*>(job.partials.o + place.state * VALUE_DIM + column) = o;
    }
}

// Stores what belongs to a result beside its elements.
__device__ __forceinline__ void store_extent(const Job& job, const Place& place, float m, float l) {
    if (!place.out) {
        job.partials.extents[place.state] = {m, l};
    } else if (job.lse) {
        job.lse[place.state] = log_sum(m, l, sink_of(job.sinks, place.head));
    }
}

// Stores the results of the packed rows `first_row` + t / 4 + {0, 8} after the last KV block.
__device__ __forceinline__ void store_rows(const Job& job, const TileShared& shared, unsigned first_row,
                                           const float (&o)[2 * VALUE_STEPS][4], const SoftmaxState& state) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        unsigned i = first_row + lane / 4 + r * 8;
        float l = quad_sum(state.l[r]);
        if (i >= shared.tile.rows) {
            continue;
        }
        Place place = place_of(job, shared, i);
        float scale = place.out ? final_factor(state.m[r], l, sink_of(job.sinks, place.head)) : 0.0f;
#pragma unroll
        for (int n = 0; n < 2 * VALUE_STEPS; n++) {
            store_pair(job, place, n * 8 + lane % 4 * 2, {o[n][2 * r], o[n][2 * r + 1]}, scale);
        }
        if (lane % 4 == 0) {
            store_extent(job, place, state.m[r], l);
        }
    }
}
