// Copies whole pages of neighbouring layers to and from one contiguous buffer, so that a single transfer over the bus
// moves them. kv_save: packed[i][layer] = kv[layer][pages[i]]; kv_restore: the reverse.
//
// Shapes: kv [layers][layer_pages][page_chunks], packed [P][layers][page_chunks] with rows of `packed_chunks` chunks,
// in chunks of 16 bytes; pages u32 [P].
// Grid: x = i, y = layer.
// Limit: bandwidth, twice the bytes of the pages.
// Definition: `Backend::save_pages` and `Backend::restore_pages`; on the CPU, `save` and `restore` of
// crates/cpu/src/kv.rs.

__device__ __forceinline__ void copy_page(uint4* to, const uint4* from, unsigned chunks) {
    for (unsigned i = threadIdx.x; i < chunks; i += blockDim.x) {
        to[i] = from[i];
    }
}

__device__ __forceinline__ unsigned long long packed_at(unsigned packed_chunks, unsigned page_chunks) {
    return static_cast<unsigned long long>(blockIdx.x) * packed_chunks +
           static_cast<unsigned long long>(blockIdx.y) * page_chunks;
}

__device__ __forceinline__ unsigned long long kv_at(const unsigned* pages, unsigned layer_pages, unsigned page_chunks) {
    return (static_cast<unsigned long long>(blockIdx.y) * layer_pages + pages[blockIdx.x]) * page_chunks;
}

extern "C" __global__ void kv_save(const uint4* __restrict__ kv, uint4* __restrict__ packed,
                                   const unsigned* __restrict__ pages, unsigned layer_pages, unsigned packed_chunks,
                                   unsigned page_chunks) {
    copy_page(packed + packed_at(packed_chunks, page_chunks), kv + kv_at(pages, layer_pages, page_chunks), page_chunks);
}

extern "C" __global__ void kv_restore(uint4* __restrict__ kv, const uint4* __restrict__ packed,
                                      const unsigned* __restrict__ pages, unsigned layer_pages, unsigned packed_chunks,
                                      unsigned page_chunks) {
    copy_page(kv + kv_at(pages, layer_pages, page_chunks), packed + packed_at(packed_chunks, page_chunks), page_chunks);
}
