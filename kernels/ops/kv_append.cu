// Stores the keys and values of row r of qkv in slot slots[r] of one layer.
//
// Shapes: qkv ELEMENT [R, q | keys | values] with kv_heads keys and kv_heads values of `head_bytes` each; layer
// [page][kv_head][keys, values], laid out as in kv_page.cuh; slots u32 [R], the words of `own_slot`: NO_SLOT for a
// padded row, which is skipped as those of other members than `member` of `members` are. Both have the same element
// type, so bytes are copied.
// Grid: x = row, y = blocks over the keys and values of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::kv_append`; on the CPU, `append` of crates/cpu/src/kv.rs (whose page layout differs).
//
// Defines: LAYOUT (of kv_page.cuh).
#include "kv_page.cuh"

template <class Chunk>
__device__ __forceinline__ void append_row(char* layer, const char* row, unsigned slot, unsigned kv_heads,
                                           unsigned head_bytes) {
    unsigned head_chunks = head_bytes / sizeof(Chunk);
    const Chunk* from = reinterpret_cast<const Chunk*>(row);
    unsigned long long page = slot / PAGE_TOKENS;
    for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < 2 * kv_heads * head_chunks;
         i += gridDim.y * blockDim.x) {
        unsigned head = i / head_chunks % kv_heads;
        unsigned is_value = i / head_chunks / kv_heads;
        unsigned long long run = (page * kv_heads + head) * 2 + is_value;
        unsigned place = page_place<LAYOUT>(slot % PAGE_TOKENS, i % head_chunks * sizeof(Chunk), head_bytes);
        *reinterpret_cast<Chunk*>(layer + run * PAGE_TOKENS * head_bytes + place) = from[i];
    }
}

extern "C" __global__ void kv_append(char* __restrict__ layer, const char* __restrict__ qkv,
                                     const unsigned* __restrict__ slots, unsigned row_bytes, unsigned kv_heads,
                                     unsigned head_bytes, unsigned member, unsigned members) {
    const unsigned slot = own_slot(slots[blockIdx.x], member, members);
    if (slot == NO_SLOT) {
        return;
    }
    const char* row = qkv + (blockIdx.x + 1ull) * row_bytes - 2 * kv_heads * head_bytes;
    if (head_bytes % sizeof(uint4) == 0) {
        append_row<uint4>(layer, row, slot, kv_heads, head_bytes);
    } else {
        append_row<unsigned short>(layer, row, slot, kv_heads, head_bytes);
    }
}
