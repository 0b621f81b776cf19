// out[r] = table[token of row r], widened to f32.
//
// Shapes: out f32 [R, width], table ELEMENT [vocab, width]; tokens u32 [R] and sampled_tokens u32 as in token_word.cuh.
// Grid: one block per row.
// Limit: bandwidth, sizeof(ELEMENT) + 4 bytes per element.
// Definition: `Backend::embed`; on the CPU, `embed` of crates/cpu/src/gemm.
#include "lanes.cuh"
#include "token_word.cuh"

template <int N>
__device__ __forceinline__ void embed_row(float* out, const ELEMENT* from, unsigned width) {
    for (unsigned i = threadIdx.x * N; i < width; i += blockDim.x * N) {
        store<N>(out + i, load<N>(from + i));
    }
}

extern "C" __global__ void embed(float* __restrict__ out, const ELEMENT* __restrict__ table,
                                 const unsigned* __restrict__ tokens, const unsigned* __restrict__ sampled_tokens,
                                 unsigned width) {
    unsigned long long row = blockIdx.x;
    unsigned long long token = token_of(tokens[row], sampled_tokens);
    if (width % LANES == 0) {
        embed_row<LANES>(out + row * width, table + token * width, width);
    } else {
        embed_row<1>(out + row * width, table + token * width, width);
    }
}
