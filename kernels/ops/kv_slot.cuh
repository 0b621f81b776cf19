// Where the elements of a key or value go in the pages of a layer, and how they are rounded.
//
// Defines: KV_ELEMENT, ROUNDED (1: KV_ELEMENT is wider than e4m3 and holds values of it), LAYOUT (of kv_page.cuh).
#pragma once

#include "e4m3.cuh"
#include "kv_page.cuh"

// Stores N elements, from `in_head` on, of the key of head `head`, or if that is kv_heads or more of the value of the
// head as many before: in `slot`, page * PAGE_TOKENS + slot, of `layer` KV_ELEMENT [page][kv_head][keys, values], keys
// of key_dim elements and values of value_dim, 0 where values lie in the keys.
template <int N>
__device__ __forceinline__ void store_in_slot(KV_ELEMENT* layer, Lanes<float, N> x, unsigned slot, unsigned head,
                                              unsigned in_head, unsigned kv_heads, unsigned key_dim,
                                              unsigned value_dim) {
    const unsigned is_value = head >= kv_heads;
    const unsigned long long page_head =
        slot / PAGE_TOKENS * static_cast<unsigned long long>(kv_heads) + (head - is_value * kv_heads);
    KV_ELEMENT* run = layer + page_head * PAGE_TOKENS * (key_dim + value_dim) + is_value * PAGE_TOKENS * key_dim;
#if ROUNDED
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
        x.at[lane] = to_f32(from_f32<e4m3>(x.at[lane]));
    }
#endif
    const unsigned width = is_value ? value_dim : key_dim;
    const unsigned place = page_place<LAYOUT, sizeof(KV_ELEMENT)>(slot % PAGE_TOKENS, in_head * sizeof(KV_ELEMENT),
                                                                  width * sizeof(KV_ELEMENT));
    store<N>(run + place / sizeof(KV_ELEMENT), x);
}
