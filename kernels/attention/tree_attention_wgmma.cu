// Tree attention on Hopper for f16 and bf16, HEAD_DIM 64, 80, 96 or 128: computes what tree_attention.cu does, with the same
// operands, and merges the partial states in the same launch. One block per multiprocessor, of four warpgroups: two
// multiply wide tiles, one copies for them, and the four warps of the last take narrow tiles, so that compute-bound and
// bandwidth-bound work overlap.
//
// Operands as in tree_attention.cu, except that the rows of kv are swizzled (kv_page.cuh). Output rows past those of
// the plan, up to `rows_padded`, are zeroed. The CPU definition is src/backend/cpu/attention.
//
// With DETERMINISTIC the bits of a row depend on its own tokens alone. Such plans have wide tiles only, each over one
// range of positions (a tile of the plan, src/plan/mod.rs) that is the same for all rows. Within it, steps begin at the
// same positions for all rows, a row's products do not depend on other rows, and masked slots add exactly nothing.
// States are merged in one order, whatever the number of rows.
//
// Keys and values may be e4m3: narrow tiles widen them in registers, wide tiles on their way into the ring.
//
// Defines: ELEMENT, KV_ELEMENT (the same, or e4m3), HEAD_DIM, DETERMINISTIC (0 or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MULTIPLIES
#include "attention/copy.cuh"
#include "attention/merge.cuh"
#include "attention/stream.cuh"
#include "attention/wide_wgmma.cuh"

constexpr unsigned BLOCK_THREADS = 4 * GROUP_THREADS;
constexpr unsigned NARROW_SLOTS = HEAD_DIM == 128 ? 3 : 4;
static_assert(DECODE_WARPS * 32 == GROUP_THREADS, "a warpgroup");
// The multiplying warps, which take narrow tiles when no wide tile is left.
constexpr unsigned HELPERS = 2 * GROUP_THREADS / 32, HELPER_SLOTS = FP8 ? 4 : 2;
static_assert(HELPERS * HELPER_SLOTS * SLOT_BYTES <= WIDE_BYTES, "their rings fit");
// Warpgroups by role: 0 and 1 multiply, 2 takes narrow tiles, 3 copies.
enum Role { NARROW = 2 };
// Registers per thread; one thread of each warpgroup together has 512. The copier needs more where it widens and where
// KV blocks span several pages. With heads of 80 and 96, and with fp8 and heads of 64, the multiplying
// warpgroups can spare some.
constexpr bool SPARES = (FP8 && HEAD_DIM == 64) || HEAD_DIM == 80 || HEAD_DIM == 96;
constexpr unsigned MULTIPLIER_REGISTERS = SPARES ? 168 : 176, COPIER_REGISTERS = SPARES ? 56 : DETERMINISTIC || FP8 ? 48 : 40;
constexpr unsigned NARROW_REGISTERS = 512 - 2 * MULTIPLIER_REGISTERS - COPIER_REGISTERS;

template <unsigned COUNT>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <unsigned COUNT>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Waits until all blocks have written their partial states, if the plan has any.
__device__ __forceinline__ void wait_for_states(unsigned* words) {
    __syncthreads();
    if (words[PARTIAL_SLOTS] != 0) {
        if (threadIdx.x == 0) {
            wait_for_blocks(words + ENDED_BLOCKS);
        }
        __syncthreads();
    }
}

// Called by one warp: merges its share, HEADS heads and AHEAD states at a time.
template <unsigned HEADS, unsigned AHEAD>
__device__ __forceinline__ void merge_share(const Job& job, unsigned first, unsigned warps, unsigned* words) {
    MergeShare<HEADS, AHEAD> share(job, first, warps);
    wait_for_states(words);
    share.merge(job);
}

// Merges the share of warp `warp` of this block. Takes several heads at a time if there are enough for all warps, so
// that no warp needs an extra round for a few.
__device__ __forceinline__ void merge_states(const Job& job, unsigned warp, unsigned* words) {
    const unsigned first = warp * gridDim.x + blockIdx.x, warps = (DECODE_WARPS + HELPERS) * gridDim.x;
    const unsigned heads = words[REAL_ROWS] * job.group * job.kv_heads;
    // The number of heads per warp decides how many states share a maximum and thereby the rounding.
    if (DETERMINISTIC || heads > 2 * warps) {
        merge_share<4, 2>(job, first, warps, words);
    } else if (heads > warps) {
        merge_share<2, 4>(job, first, warps, words);
    } else {
        merge_share<1, 8>(job, first, warps, words);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
tree_attention_wgmma(T* out, const T* qkv, const KvElement* kv, unsigned* words, const unsigned* positions, float* partials, unsigned group, unsigned kv_heads, unsigned qkv_width, float scale_log2, float cap_rate, const float* sinks, unsigned rows_padded) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ WideShared wide;
    __shared__ StreamShared streams[DECODE_WARPS + HELPERS];
    const Job job = {out, qkv, kv, words, positions, partials_at(partials, words, group * kv_heads, HEAD_DIM), group, kv_heads, qkv_width, scale_log2, cap_rate, sinks};
    const unsigned queries = (shared_address(memory) + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES, warp = threadIdx.x / 32 % DECODE_WARPS;
    const unsigned role = __shfl_sync(ALL_LANES, threadIdx.x / GROUP_THREADS, 0);  // warp-uniform for the compiler
    if (role < NARROW) {
        more_registers<MULTIPLIER_REGISTERS>();
        meet(READY, 3 * GROUP_THREADS);
        multiply_wide(job, role, queries, wide);
        const unsigned helper = role * DECODE_WARPS + warp;
        if (!DETERMINISTIC && units_of(job) > static_units()) {
            // No wide tile is left: these warps take narrow tiles too, with the wide tiles' memory as their rings.
            meet(HELPING, 2 * GROUP_THREADS);
            const unsigned first = threadIdx.x % 32 == 0 ? next_dynamic_unit(job) : 0;
            stream_narrow<HELPER_SLOTS>(job, __shfl_sync(ALL_LANES, first, 0), queries + helper * HELPER_SLOTS * SLOT_BYTES, streams[DECODE_WARPS + helper], {});
        }
        fewer_registers<NARROW_REGISTERS>();
    } else if (role == NARROW) {
        fewer_registers<NARROW_REGISTERS>();
        if constexpr (!DETERMINISTIC) {
            stream_narrow<NARROW_SLOTS>(job, static_unit(job, warp), queries + WIDE_BYTES + warp * NARROW_SLOTS * SLOT_BYTES, streams[warp], {});
        }
    } else {
        fewer_registers<COPIER_REGISTERS>();
        if (threadIdx.x % GROUP_THREADS == 0) {
            // Every warp reads these first.
            prefetch(words);
            prefetch(positions);
            init_wide(wide);
        }
        meet(READY, 3 * GROUP_THREADS);
        const unsigned width = group * kv_heads * HEAD_DIM / 2, padding = words[REAL_ROWS] * width;
        for (unsigned i = padding + blockIdx.x * GROUP_THREADS + threadIdx.x % GROUP_THREADS; i < rows_padded * width; i += gridDim.x * GROUP_THREADS) {
            reinterpret_cast<unsigned*>(out)[i] = 0;
        }
        copy_wide(job, queries, wide);
        wait_for_states(words);
        // The last block resets the counters for the next launch.
        if (threadIdx.x % GROUP_THREADS == 0 && atomicAdd(words + LEFT_BLOCKS, 1) == gridDim.x - 1) {
            words[NARROW_TICKET] = 0;
            words[ENDED_BLOCKS] = 0;
            words[LEFT_BLOCKS] = 0;
        }
        return;
    }
    // One call site for all roles, to keep the code small for the instruction cache.
    merge_states(job, role * DECODE_WARPS + warp, words);
}
#endif
