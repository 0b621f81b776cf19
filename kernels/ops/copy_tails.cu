// out[r][h][rank + i] = x[r][h][nope + i], i < rope: the rotated parts of queries, which the absorbed form keeps.
//
// Shapes: out [R, heads, rank + rope] and x [R, heads, nope + rope] of elements of the same type; all widths in bytes.
// Grid: x = row, y = blocks over the rotated parts of the row.
// Limit: bandwidth, twice their bytes.
// Definition: `Backend::absorb_queries`; on the CPU, crates/cpu/src/latent.rs.

template <class Chunk>
__device__ __forceinline__ void copy_row(char* out, const char* x, unsigned heads, unsigned rank, unsigned nope,
                                         unsigned rope) {
    const unsigned chunks = rope / sizeof(Chunk);
    for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < heads * chunks; i += gridDim.y * blockDim.x) {
        const unsigned head = i / chunks, at = i % chunks * sizeof(Chunk);
        *reinterpret_cast<Chunk*>(out + head * (rank + rope) + rank + at) =
            *reinterpret_cast<const Chunk*>(x + head * (nope + rope) + nope + at);
    }
}

extern "C" __global__ void copy_tails(char* __restrict__ out, const char* __restrict__ x, unsigned heads, unsigned rank,
                                      unsigned nope, unsigned rope) {
    out += static_cast<unsigned long long>(blockIdx.x) * heads * (rank + rope);
    x += static_cast<unsigned long long>(blockIdx.x) * heads * (nope + rope);
    if ((rank | nope | rope) % sizeof(uint4) == 0) {
        copy_row<uint4>(out, x, heads, rank, nope, rope);
    } else {
        copy_row<unsigned short>(out, x, heads, rank, nope, rope);
    }
}
