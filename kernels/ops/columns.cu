// out[r][i] = x[r][first + i]
//
// Shapes: out [R, width] and x [R, from_width] of elements of `bytes` bytes.
// Grid: x = row, y = blocks over the row's bytes, 16 to a thread.
// Limit: bandwidth.
// Definition: `Ranked::columns`; on the CPU, crates/cpu/src/fabric.rs.

template <class Chunk>
__device__ __forceinline__ void copy_columns(char* out, const char* from, unsigned bytes) {
    for (unsigned i = (blockIdx.y * blockDim.x + threadIdx.x) * sizeof(Chunk); i < bytes;
         i += gridDim.y * blockDim.x * sizeof(Chunk)) {
        *reinterpret_cast<Chunk*>(out + i) = *reinterpret_cast<const Chunk*>(from + i);
    }
}

extern "C" __global__ void columns(char* __restrict__ out, const char* __restrict__ x, unsigned row_bytes,
                                   unsigned from_row_bytes, unsigned first_byte) {
    const unsigned long long row = blockIdx.x;
    char* to = out + row * row_bytes;
    const char* from = x + row * from_row_bytes + first_byte;
    if ((row_bytes | from_row_bytes | first_byte) % sizeof(uint4) == 0) {
        copy_columns<uint4>(to, from, row_bytes);
    } else {
        copy_columns<unsigned short>(to, from, row_bytes);
    }
}
