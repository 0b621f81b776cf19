// What is expanded in a step (`Expansion`), by slot: block x of the kernels that include this is slot x % 32 of
// expansion first + x / 32.
#pragma once

#include "kv_page.cuh"

// As `Backend::load` uploads one.
struct alignas(16) Expansion {
    unsigned from, to;  // pages of latents and of copies
    unsigned begin, end;  // slots of both; equal in padding
};

// Element `i` of the latent in slot `slot` of a page of latents, of `width` elements, which lies in panels or plainly.
template <class T>
__device__ __forceinline__ const T* latent_at(const T* layer, unsigned page, unsigned slot, unsigned i, unsigned width,
                                              bool in_panels) {
    const unsigned byte = i * sizeof(T), row_bytes = width * sizeof(T);
    const unsigned place =
        in_panels ? page_place<IN_PANELS, sizeof(T)>(slot, byte, row_bytes) : page_place<PLAIN>(slot, byte, row_bytes);
    return layer + static_cast<unsigned long long>(page) * PAGE_TOKENS * width + place / sizeof(T);
}
