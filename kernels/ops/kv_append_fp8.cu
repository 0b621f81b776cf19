// Stores the keys and values of row r of qkv in slot slots[r] of one layer, rounded to the nearest e4m3 value (ties to
// even, saturating at 448). KV_ELEMENT is e4m3; where no attention kernel reads e4m3 it is ELEMENT, which holds the
// same rounded values.
//
// Shapes: qkv ELEMENT [R, width], whose last columns are kv_heads keys of key_dim elements and as many values of
// value_dim, 0 where values lie in the keys; layer KV_ELEMENT [page][kv_head][keys, values], laid out as in
// kv_page.cuh; slots u32 [R], the words of `own_slot`: NO_SLOT for a padded row, which is skipped as those of other
// members than `member` of `members` are.
// Grid: x = row, y = blocks over the keys and values of the row.
// Limit: bandwidth, sizeof(ELEMENT) + sizeof(KV_ELEMENT) bytes per element.
// Definition: `Backend::kv_append`; on the CPU, `append` of crates/cpu/src/kv.rs (whose page layout differs).
//
// Defines: ELEMENT, KV_ELEMENT, ROUNDED (1: KV_ELEMENT is ELEMENT), LAYOUT (of kv_page.cuh).
#include "ops/kv_slot.cuh"

template <int N>
__device__ __forceinline__ void append_row(KV_ELEMENT* layer, const ELEMENT* row, unsigned slot, unsigned kv_heads,
                                           unsigned key_dim, unsigned value_dim) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < kv_heads * (key_dim + value_dim);
         i += gridDim.y * blockDim.x * N) {
        const bool is_value = i >= kv_heads * key_dim;
        const unsigned of_kind = is_value ? i - kv_heads * key_dim : i, width = is_value ? value_dim : key_dim;
        const unsigned head = of_kind / width + (is_value ? kv_heads : 0);
        store_in_slot<N>(layer, load<N>(row + i), slot, head, of_kind % width, kv_heads, key_dim, value_dim);
    }
}

extern "C" __global__ void kv_append_fp8(KV_ELEMENT* __restrict__ layer, const ELEMENT* __restrict__ qkv,
                                         const unsigned* __restrict__ slots, unsigned width, unsigned kv_heads,
                                         unsigned key_dim, unsigned value_dim, unsigned member, unsigned members) {
    const unsigned slot = own_slot(slots[blockIdx.x], member, members);
    if (slot == NO_SLOT) {
        return;
    }
    const ELEMENT* row = qkv + (blockIdx.x + 1ull) * width - kv_heads * (key_dim + value_dim);
    if (key_dim % LANES == 0 && value_dim % LANES == 0 && width % LANES == 0) {
        append_row<LANES>(layer, row, slot, kv_heads, key_dim, value_dim);
    } else {
        append_row<1>(layer, row, slot, kv_heads, key_dim, value_dim);
    }
}
