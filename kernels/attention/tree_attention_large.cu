// Tree attention on Hopper for f16 and bf16, heads of 256 or 512, or of
// 192 with values of 128: computes what tree_attention.cu does, with the same
// operands, and merges the partial states in the same launch. One block per multiprocessor, of three warpgroups: two
// multiply wide tiles, one copies for them. When a block has no wide tile left, the multiplying warps take narrow
// tiles, a team of as many warps as a head has parts of 128 elements each; then they merge.
//
// Operands as in tree_attention.cu, except that the rows of kv are swizzled panels (kv_page.cuh). Output rows past
// those of the plan, up to `rows_padded`, are zeroed. The CPU definition is crates/cpu/src/attention. DETERMINISTIC as
// in tree_attention_wgmma.cu.
//
// Defines: ELEMENT, KEY_DIM, VALUE_DIM, VALUES_IN_KEYS (0), DETERMINISTIC (0 or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MULTIPLIES
#include "attention/large.cuh"
#include "attention/large_copy.cuh"
#include "attention/merge.cuh"
#include "registers.cuh"
#if KEY_DIM == VALUE_DIM
#include "attention/stream.cuh"
#endif

constexpr unsigned BLOCK_THREADS = 3 * GROUP_THREADS;
constexpr unsigned MULTIPLYING_WARPS = 2 * GROUP_THREADS / 32;
// Warpgroups by role: 0 and 1 multiply, 2 copies. Registers per thread; one thread of each together has 504.
enum Role { COPIER = 2 };
constexpr unsigned MULTIPLIER_REGISTERS = 224, COPIER_REGISTERS = 56;

// Where values are as wide as keys there are narrow tiles.
#if KEY_DIM == VALUE_DIM
// Teams of the multiplying warps for narrow tiles. Their rings and exchanges lie where queries and ring lay.
constexpr unsigned TEAMS_OF_BLOCK = MULTIPLYING_WARPS / PARTS;
constexpr unsigned TEAM_SLOTS = 3, TEAM_WARP_BYTES = TEAM_SLOTS * SLOT_BYTES + EXCHANGE_BYTES;
static_assert(MULTIPLYING_WARPS * TEAM_WARP_BYTES <= WIDE_BYTES, "their rings fit");

// Called by one warp: takes narrow tiles, with the others of its team.
__device__ __forceinline__ void stream_team(const Job& job, unsigned warp, unsigned memory, StreamShared& stream,
                                            TeamShared& shared) {
    const unsigned team = warp / PARTS, ring = memory + warp * TEAM_WARP_BYTES;
    const unsigned exchange = memory + team * PARTS * TEAM_WARP_BYTES + TEAM_SLOTS * SLOT_BYTES;
    const Team mine = {warp % PARTS, TEAMS + team, exchange, TEAM_WARP_BYTES, &shared};
    if (mine.part == 0 && threadIdx.x % 32 == 0) {
        shared.tickets[0] = next_dynamic_unit(job);
    }
    mine.meet_all();
    const unsigned first = shared.tickets[0];
    // All have read it before the next ticket but one is told.
    stream_narrow<TEAM_SLOTS>(job, first, ring, stream, mine);
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    tree_attention_large(T* out, const T* qkv, const KvElement* kv, unsigned* words, const unsigned* positions,
                         float* partials, unsigned group, unsigned kv_heads, unsigned qkv_width, float scale_log2,
                         float cap_rate, const float* sinks, float* lse, unsigned rows_padded) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ LargeShared large;
    const Job job = {out, qkv, kv, words, positions, partials_at(partials, words, group * kv_heads, VALUE_DIM),
                     group, kv_heads, qkv_width, scale_log2, cap_rate, sinks, lse};
    const unsigned queries = (shared_address(memory) + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES;
    const unsigned role = __shfl_sync(ALL_LANES, threadIdx.x / GROUP_THREADS, 0);  // warp-uniform for the compiler
    const unsigned warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        prefetch(words);
        prefetch(positions);
        init_large(large);
    }
    __syncthreads();
    if (role == COPIER) {
        fewer_registers<COPIER_REGISTERS>();
        copy_large(job, warp - MULTIPLYING_WARPS, queries + QUERY_BYTES, large);
        zero_padding(job, rows_padded);
        wait_for_states(words);
        leave(words);
        return;
    }
    more_registers<MULTIPLIER_REGISTERS>();
    multiply_large(job, role, queries, large);
#if KEY_DIM == VALUE_DIM
    __shared__ StreamShared streams[MULTIPLYING_WARPS];
    __shared__ TeamShared teams[TEAMS_OF_BLOCK];
    if (!DETERMINISTIC && units_of(job) > 0) {
        meet(HELPING, 2 * GROUP_THREADS);
        stream_team(job, warp, queries, streams[warp], teams[warp / PARTS]);
    }
#endif
    merge_states<MULTIPLYING_WARPS, 2>(job, warp, words);
}
#endif
