// Stores the keys and values of the slots of the step's expansions in their pages of copies: key h is the mapped part
// of head h and the rotated part of the latent, value h follows the mapped part of the key in `mapped`.
//
// Shapes: mapped ELEMENT [32 * expansions, heads, nope + value]; latents LATENT_ELEMENT [page][32 slots of latent], and
// copies ELEMENT [page][heads][keys of nope + rope, values of value], laid out as in kv_page.cuh.
// Grid: x = slot, y = blocks over the keys and values of a slot.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::expand_latents`, of which this is the last part.
//
// Defines: ELEMENT, LATENT_ELEMENT (the same, or e4m3), LAYOUT (of kv_page.cuh) of copies.
#define KV_ELEMENT ELEMENT
#define ROUNDED 0
#include "ops/expansion.cuh"
#include "ops/kv_slot.cuh"

struct Widths {
    unsigned heads, nope, rope, value;
};

template <int N>
__device__ __forceinline__ void store_slot(ELEMENT* copies, const ELEMENT* mapped, const LATENT_ELEMENT* latents,
                                           const Expansion& expansion, unsigned slot, unsigned latent, bool in_panels,
                                           const Widths& widths) {
    const unsigned key = widths.nope + widths.rope, of_head = key + widths.value;
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < widths.heads * of_head;
         i += gridDim.y * blockDim.x * N) {
        const unsigned head = i / of_head, in_head = i % of_head;
        const bool is_value = in_head >= key, is_rotated = !is_value && in_head >= widths.nope;
        const unsigned in_mapped = is_value ? in_head - widths.rope : in_head;
        const Lanes<float, N> x =
            is_rotated ? load<N>(latent_at(latents, expansion.from, slot, latent - widths.rope + in_head - widths.nope,
                                           latent, in_panels))
                       : load<N>(mapped + head * (widths.nope + widths.value) + in_mapped);
        store_in_slot<N>(copies, x, expansion.to * PAGE_TOKENS + slot, is_value ? widths.heads + head : head,
                         is_value ? in_head - key : in_head, widths.heads, key, widths.value);
    }
}

extern "C" __global__ void store_expanded(ELEMENT* __restrict__ copies, const ELEMENT* __restrict__ mapped,
                                          const LATENT_ELEMENT* __restrict__ latents,
                                          const Expansion* __restrict__ expansions, unsigned latent, unsigned in_panels,
                                          unsigned heads, unsigned nope, unsigned rope, unsigned value) {
    const Expansion expansion = expansions[blockIdx.x / PAGE_TOKENS];
    const unsigned slot = blockIdx.x % PAGE_TOKENS;
    if (slot < expansion.begin || slot >= expansion.end) {
        return;
    }
    mapped += static_cast<unsigned long long>(blockIdx.x) * heads * (nope + value);
    const Widths widths = {heads, nope, rope, value};
    if ((latent | nope | rope | value) % LANES == 0) {
        store_slot<LANES>(copies, mapped, latents, expansion, slot, latent, in_panels, widths);
    } else {
        store_slot<1>(copies, mapped, latents, expansion, slot, latent, in_panels, widths);
    }
}
