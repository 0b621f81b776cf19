// out[t] = the latent of slot t of the step's expansions, without its rotated part; zeros for a slot that none names.
//
// Shapes: out ELEMENT [32 * expansions, rank]; layer LATENT_ELEMENT [page][32 slots of width], laid out as in
// kv_page.cuh.
// Grid: x = slot, 128 threads.
// Limit: bandwidth, sizeof(ELEMENT) + sizeof(LATENT_ELEMENT) bytes per element.
// Definition: `Backend::expand_latents`, of which this is the first part.
//
// Defines: ELEMENT, LATENT_ELEMENT (the same, or e4m3).
#include "lanes.cuh"
#include "ops/expansion.cuh"

template <int N>
__device__ __forceinline__ void gather_row(ELEMENT* out, const LATENT_ELEMENT* layer, const Expansion& expansion,
                                           unsigned slot, unsigned rank, unsigned width, bool in_panels) {
    const bool is_named = slot >= expansion.begin && slot < expansion.end;
    for (unsigned i = threadIdx.x * N; i < rank; i += blockDim.x * N) {
        Lanes<float, N> x = {};
        if (is_named) {
            x = load<N>(latent_at(layer, expansion.from, slot, i, width, in_panels));
        }
        store<N>(out + i, x);
    }
}

extern "C" __global__ void gather_latents(ELEMENT* __restrict__ out, const LATENT_ELEMENT* __restrict__ layer,
                                          const Expansion* __restrict__ expansions, unsigned rank, unsigned width,
                                          unsigned in_panels) {
    const Expansion expansion = expansions[blockIdx.x / PAGE_TOKENS];
    const unsigned slot = blockIdx.x % PAGE_TOKENS;
    ELEMENT* row = out + static_cast<unsigned long long>(blockIdx.x) * rank;
    if ((rank | width) % LANES == 0) {
        gather_row<LANES>(row, layer, expansion, slot, rank, width, in_panels);
    } else {
        gather_row<1>(row, layer, expansion, slot, rank, width, in_panels);
    }
}
