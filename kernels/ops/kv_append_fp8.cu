// Stores the keys and values of row r of qkv in slot slots[r] of one layer, rounded to the nearest e4m3 value (ties to
// even, saturating at 448). KV_ELEMENT is e4m3; where no attention kernel reads e4m3 it is ELEMENT, which holds the
// same rounded values.
//
// Shapes: qkv ELEMENT [R, width], whose last 2 * kv_heads * head_dim columns are keys and values; layer KV_ELEMENT
// [page][kv_head][keys, values], laid out as in kv_page.cuh; slots u32 [R], page * PAGE_TOKENS + slot, or NO_SLOT for a
// padded row, which is skipped.
// Grid: x = row, y = blocks over the keys and values of the row.
// Limit: bandwidth, sizeof(ELEMENT) + sizeof(KV_ELEMENT) bytes per element.
// Definition: `Backend::kv_append`; on the CPU, `append` of src/backend/cpu/kv.rs (whose page layout differs).
//
// Defines: ELEMENT, KV_ELEMENT, SWIZZLED (0 or 1).
#include "kv_page.cuh"
#include "lanes.cuh"

constexpr unsigned NO_SLOT = ~0u;

template <int N>
__device__ __forceinline__ void append_row(KV_ELEMENT* layer, const ELEMENT* row, unsigned slot, unsigned kv_heads, unsigned head_dim) {
    const unsigned long long page = slot / PAGE_TOKENS;
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < 2 * kv_heads * head_dim; i += gridDim.y * blockDim.x * N) {
        const unsigned head = i / head_dim % kv_heads, is_value = i / head_dim / kv_heads;
        const unsigned long long run = (page * kv_heads + head) * 2 + is_value;
        Lanes<float, N> x = load<N>(row + i);
        // `store` rounds to KV_ELEMENT; a wider KV_ELEMENT needs the rounding to e4m3 first.
        if constexpr (sizeof(KV_ELEMENT) > sizeof(e4m3)) {
#pragma unroll
            for (int lane = 0; lane < N; ++lane) {
                x.at[lane] = to_f32(from_f32<e4m3>(x.at[lane]));
            }
        }
        const unsigned place = page_place<SWIZZLED>(slot % PAGE_TOKENS, i % head_dim * sizeof(KV_ELEMENT), head_dim * sizeof(KV_ELEMENT));
        store<N>(layer + run * PAGE_TOKENS * head_dim + place / sizeof(KV_ELEMENT), x);
    }
}

extern "C" __global__ void kv_append_fp8(KV_ELEMENT* __restrict__ layer, const ELEMENT* __restrict__ qkv, const unsigned* __restrict__ slots, unsigned width, unsigned kv_heads, unsigned head_dim) {
    if (slots[blockIdx.x] == NO_SLOT) {
        return;
    }
    const ELEMENT* row = qkv + (blockIdx.x + 1ull) * width - 2 * kv_heads * head_dim;
    if (head_dim % LANES == 0) {
        append_row<LANES>(layer, row, slots[blockIdx.x], kv_heads, head_dim);
    } else {
        append_row<1>(layer, row, slots[blockIdx.x], kv_heads, head_dim);
    }
}
