// Tree attention on Hopper for f16 and bf16, heads of 64, 80, 96 or 128: computes what tree_attention.cu does, with the
// same operands, and merges the partial states in the same launch. One block per multiprocessor, of four warpgroups:
// two multiply wide tiles, one copies for them, and the four warps of the last take narrow tiles, so that compute-bound
// and bandwidth-bound work overlap.
//
// Operands as in tree_attention.cu, except that the rows of kv are swizzled (kv_page.cuh). Output rows past those of
// the plan, up to `rows_padded`, are zeroed. The CPU definition is crates/cpu/src/attention.
//
// With DETERMINISTIC the bits of a row depend on its own tokens alone. Such plans have wide tiles only, each over one
// range of positions (a tile of the plan, crates/kv/src/plan) that is the same for all rows, or over its first steps or
// its others (attention/openings.cuh). Within it, steps begin at the same positions for all rows, a row's products do
// not depend on other rows, and masked slots add exactly nothing. States are merged in one order, whatever the number
// of rows.
//
// Keys and values may be e4m3: narrow tiles widen them in registers, wide tiles on their way into the ring.
//
// Defines: ELEMENT, KV_ELEMENT (the same, or e4m3), KEY_DIM, VALUE_DIM, VALUES_IN_KEYS (0), DETERMINISTIC (0
// or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MULTIPLIES
#include "attention/copy.cuh"
#include "attention/merge.cuh"
#include "attention/stream.cuh"
#include "attention/wide_wgmma.cuh"
#include "registers.cuh"

constexpr unsigned BLOCK_THREADS = 4 * GROUP_THREADS;
static_assert(DECODE_WARPS * 32 == GROUP_THREADS, "a warpgroup");
// The multiplying warps, which take narrow tiles when no wide tile is left.
constexpr unsigned HELPERS = 2 * GROUP_THREADS / 32, HELPER_SLOTS = FP8 ? 4 : 2;
static_assert(HELPERS * HELPER_SLOTS * SLOT_BYTES <= WIDE_BYTES, "their rings fit");
// Warpgroups by role: 0 and 1 multiply, 2 takes narrow tiles, 3 copies. Where there are no narrow tiles, a warp of 2
// may relay what has landed.
enum Role { NARROW = 2 };
// Registers per thread; one thread of each warpgroup together has 512. The copier needs more where it widens and where
// KV blocks span several pages. With heads of 80 and 96, and with fp8 and heads of 64, the multiplying
// warpgroups can spare some.
constexpr bool SPARES = (FP8 && KEY_DIM == 64) || KEY_DIM == 80 || KEY_DIM == 96;
constexpr unsigned MULTIPLIER_REGISTERS = SPARES ? 168 : 176,
                   COPIER_REGISTERS = SPARES ? 56 : DETERMINISTIC || FP8 ? 48 : 40;
constexpr unsigned NARROW_REGISTERS = 512 - 2 * MULTIPLIER_REGISTERS - COPIER_REGISTERS;
// Of the warps that merge: where short tiles are preferred, they share all but the copier's.
constexpr unsigned MERGE_REGISTERS = PREFERS_SHORT ? (512 - COPIER_REGISTERS) / 3 / 8 * 8 : NARROW_REGISTERS;
constexpr unsigned READY_THREADS = 3 * GROUP_THREADS + (RELAYS ? 32 : 0);

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    tree_attention_wgmma(T* out, const T* qkv, const KvElement* kv, unsigned* words, const unsigned* positions,
                         float* partials, unsigned group, unsigned kv_heads, unsigned qkv_width, float scale_log2,
                         float cap_rate, const float* sinks, float* lse, unsigned rows_padded) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ WideShared wide;
    __shared__ StreamShared streams[DECODE_WARPS + HELPERS];
    const Job job = {out, qkv, kv, words, positions, partials_at(partials, words, group * kv_heads, VALUE_DIM),
                     group, kv_heads, qkv_width, scale_log2, cap_rate, sinks, lse};
    const unsigned queries = (shared_address(memory) + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES,
                   warp = threadIdx.x / 32 % DECODE_WARPS;
    const unsigned role = __shfl_sync(ALL_LANES, threadIdx.x / GROUP_THREADS, 0);  // warp-uniform for the compiler
    if (role < NARROW) {
        more_registers<MULTIPLIER_REGISTERS>();
        meet(READY, READY_THREADS);
        multiply_wide(job, role, queries, wide);
        const unsigned helper = role * DECODE_WARPS + warp;
        if (!DETERMINISTIC && units_of(job) > static_units()) {
            // No wide tile is left: these warps take narrow tiles too, with the wide tiles' memory as their rings.
            meet(HELPING, 2 * GROUP_THREADS);
            const unsigned first = threadIdx.x % 32 == 0 ? next_dynamic_unit(job) : 0;
            stream_narrow<HELPER_SLOTS>(job, __shfl_sync(ALL_LANES, first, 0),
                                        queries + helper * HELPER_SLOTS * SLOT_BYTES, streams[DECODE_WARPS + helper],
                                        {});
        }
        fewer_registers<MERGE_REGISTERS>();
    } else if (role == NARROW) {
        fewer_registers<NARROW_REGISTERS>();
        if (RELAYS && warp == 0) {
            meet(READY, READY_THREADS);
            if (threadIdx.x % 32 == 0) {
                relay_landed(job, wide);
            }
            __syncwarp();
        }
        if constexpr (PREFERS_SHORT) {
            // A warpgroup's warps meet between two changes; this one waits for what the multiplying ones give back.
            meet(MERGING, GROUP_THREADS);
            more_registers<MERGE_REGISTERS>();
        } else if constexpr (!DETERMINISTIC) {
            stream_narrow<NARROW_SLOTS>(job, static_unit(job, warp),
                                        queries + WIDE_BYTES + warp * NARROW_SLOTS * SLOT_BYTES, streams[warp], {});
        }
    } else {
        fewer_registers<COPIER_REGISTERS>();
        if (threadIdx.x % GROUP_THREADS == 0) {
            // Every warp reads these first.
            prefetch(words);
            prefetch(positions);
            init_wide(wide);
        }
        if (PREFERS_SHORT) {
            zero_queries(queries);
        }
        meet(READY, READY_THREADS);
        zero_padding(job, rows_padded);
        copy_wide(job, queries, wide);
        wait_for_states(words);
        leave(words);
        return;
    }
    // One call site for all roles, to keep the code small for the instruction cache.
    merge_states<DECODE_WARPS + HELPERS, PREFERS_SHORT ? 4 : 2>(job, role * DECODE_WARPS + warp, words);
}
#endif
