// Stores the keys and values of row r of qkv in slot slots[r] of one layer.
//
// Shapes: qkv ELEMENT [R, q | keys | values] with kv_heads keys of `key_bytes` and kv_heads values of `value_bytes`
// each, none where values lie in the keys; layer [page][kv_head][keys, values], laid out as in kv_page.cuh; slots u32
// [R], the words of `own_slot`: NO_SLOT for a padded row, which is skipped as those of other members than `member` of
// `members` are. Both have the same element type, so bytes are copied.
// Grid: x = row, y = blocks over the keys and values of the row.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::kv_append`; on the CPU, `append` of crates/cpu/src/kv.rs (whose page layout differs).
//
// Defines: LAYOUT (of kv_page.cuh).
#include "kv_page.cuh"

template <class Chunk>
__device__ __forceinline__ void append_row(char* layer, const char* row, unsigned slot, unsigned kv_heads,
                                           unsigned key_bytes, unsigned value_bytes) {
    const unsigned keys = kv_heads * (key_bytes / sizeof(Chunk)), values = kv_heads * (value_bytes / sizeof(Chunk));
    const Chunk* from = reinterpret_cast<const Chunk*>(row);
    unsigned long long page = slot / PAGE_TOKENS;
    for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < keys + values; i += gridDim.y * blockDim.x) {
        const bool is_value = i >= keys;
        const unsigned bytes = is_value ? value_bytes : key_bytes, chunks = bytes / sizeof(Chunk);
        const unsigned of_kind = is_value ? i - keys : i;
        char* head = layer + (page * kv_heads + of_kind / chunks) * PAGE_TOKENS * (key_bytes + value_bytes);
        char* run = head + (is_value ? PAGE_TOKENS * key_bytes : 0);
        unsigned place = page_place<LAYOUT>(slot % PAGE_TOKENS, of_kind % chunks * sizeof(Chunk), bytes);
        *reinterpret_cast<Chunk*>(run + place) = from[i];
    }
}

extern "C" __global__ void kv_append(char* __restrict__ layer, const char* __restrict__ qkv,
                                     const unsigned* __restrict__ slots, unsigned row_bytes, unsigned kv_heads,
                                     unsigned key_bytes, unsigned value_bytes, unsigned member, unsigned members) {
    const unsigned slot = own_slot(slots[blockIdx.x], member, members);
    if (slot == NO_SLOT) {
        return;
    }
    const char* row = qkv + (blockIdx.x + 1ull) * row_bytes - kv_heads * (key_bytes + value_bytes);
    if (key_bytes % sizeof(uint4) == 0 && value_bytes % sizeof(uint4) == 0 && row_bytes % sizeof(uint4) == 0) {
        append_row<uint4>(layer, row, slot, kv_heads, key_bytes, value_bytes);
    } else {
        append_row<unsigned short>(layer, row, slot, kv_heads, key_bytes, value_bytes);
    }
}
