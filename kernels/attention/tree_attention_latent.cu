// Tree attention on Hopper for f16 and bf16 and latents of 512 or 256 with a rotated part of 64: keys of all heads
// whose first elements are their values. Computes what tree_attention.cu does, and merges the partial states in the
// same launch. One block per multiprocessor, of three warpgroups: two multiply tiles of 64 packed rows, one copies for
// them; then all of the former merge.
//
// Operands as in tree_attention.cu, except that kv is KV_ELEMENT [page][kv head][32][KEY_DIM] in panels (kv_page.cuh):
// values are read from the keys. Output rows past those of the plan, up to `rows_padded`, are zeroed. The definition on
// the CPU is crates/cpu/src/attention. DETERMINISTIC as in tree_attention_wgmma.cu, without openings.
//
// Defines: ELEMENT, KV_ELEMENT (the same, or e4m3), KEY_DIM, VALUE_DIM, VALUES_IN_KEYS (1), DETERMINISTIC (0 or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MULTIPLIES
#include "attention/latent.cuh"
#include "attention/latent_copy.cuh"
#include "attention/latent_merge.cuh"
#include "registers.cuh"

constexpr unsigned BLOCK_THREADS = 3 * GROUP_THREADS, MULTIPLYING_WARPS = 2 * GROUP_THREADS / 32;
// Warpgroups by role: 0 and 1 multiply, 2 copies. Registers per thread; one thread of each together has 504.
enum Role { COPIER = 2 };
constexpr unsigned MULTIPLIER_REGISTERS = 224, COPIER_REGISTERS = 56;

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    tree_attention_latent(T* out, const T* qkv, const KvElement* kv, unsigned* words, const unsigned* positions,
                          float* partials, unsigned group, unsigned kv_heads, unsigned qkv_width, float scale_log2,
                          float cap_rate, const float* sinks, float* lse, unsigned rows_padded) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ LatentShared latent;
    const Job job = {out, qkv, kv, words, positions, partials_at(partials, words, group * kv_heads, VALUE_DIM),
                     group, kv_heads, qkv_width, scale_log2, cap_rate, sinks, lse};
    const unsigned queries = (shared_address(memory) + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES;
    const unsigned role = __shfl_sync(ALL_LANES, threadIdx.x / GROUP_THREADS, 0);  // warp-uniform for the compiler
    const unsigned warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        prefetch(words);
        prefetch(positions);
        init_latent(latent);
    }
    __syncthreads();
    if (role == COPIER) {
        fewer_registers<COPIER_REGISTERS>();
        copy_latents(job, warp - MULTIPLYING_WARPS, queries + OPERAND_BYTES, latent);
        zero_padding(job, rows_padded);
        wait_for_states(words);
        leave(words);
        return;
    }
    more_registers<MULTIPLIER_REGISTERS>();
    multiply_latents(job, role, queries, latent);
    merge_latents(job, warp, reinterpret_cast<char*>(memory) + (queries - shared_address(memory)));
}
#endif
