// out[i] = x[rows[i]], copied as bytes, so that one kernel serves every element type.
//
// Shapes: out [I, row_bytes], x [R, row_bytes], rows u32 [I]; row_bytes is even.
// Grid: x = i, y = blocks over the bytes of the row.
// Limit: bandwidth, twice the bytes of the selected rows.
// Definition: `Backend::select_rows`; on the CPU, `select_rows` of crates/cpu.

template <class Chunk>
__device__ __forceinline__ void copy_row(char* out, const char* from, unsigned row_bytes) {
    for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < row_bytes / sizeof(Chunk);
         i += gridDim.y * blockDim.x) {
        reinterpret_cast<Chunk*>(out)[i] = reinterpret_cast<const Chunk*>(from)[i];
    }
}

extern "C" __global__ void select_rows(char* __restrict__ out, const char* __restrict__ x,
                                       const unsigned* __restrict__ rows, unsigned row_bytes) {
    char* to = out + static_cast<unsigned long long>(blockIdx.x) * row_bytes;
    const char* from = x + static_cast<unsigned long long>(rows[blockIdx.x]) * row_bytes;
    if (row_bytes % sizeof(uint4) == 0) {
        copy_row<uint4>(to, from, row_bytes);
    } else {
        copy_row<unsigned short>(to, from, row_bytes);
    }
}
