// first[0] = min(first[0], i / CHUNK) over all i whose element is not finite, or would be rounded to infinity: the
// check of tensors that lie on the device when they are given. Which element of the chunk it is, the host finds.
//
// Shapes: x [elements] of 2 or 4 bytes each, at any address; first u32 [1]. too_large: the bits, without the sign, from
// which a number is refused (they rise with its size).
// Grid: a grid-stride loop over 16 bytes, or over elements where the address is no multiple of 16.
// Limit: bandwidth, the bytes of x.
// Definition: `DeviceMemory::not_finite` of crates/backend/src/device_memory.rs; on the CPU `not_finite` of
// crates/model/src/weights/mod.rs.

using u64 = unsigned long long;

// Elements, as in crates/cuda/src/memory/lent.rs.
constexpr u64 CHUNK = 4096;

__device__ __forceinline__ u64 first_index() {
    return static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ u64 stride() {
    return static_cast<u64>(gridDim.x) * blockDim.x;
}

// Element `i` of SIZE bytes, little-endian, byte by byte: its address may be odd.
template <int SIZE>
__device__ __forceinline__ unsigned bits_at(const unsigned char* x, u64 i) {
    unsigned bits = 0;
    for (int byte = 0; byte < SIZE; ++byte) {
        bits |= static_cast<unsigned>(x[i * SIZE + byte]) << (8 * byte);
    }
    return bits;
}

template <int SIZE>
__device__ __forceinline__ bool is_bad(unsigned bits, unsigned too_large) {
    return (bits & (SIZE == 2 ? 0x7fffu : 0x7fffffffu)) >= too_large;
}

template <int SIZE>
__device__ __forceinline__ bool has_bad(unsigned word, unsigned too_large) {
    return is_bad<SIZE>(word, too_large) || (SIZE == 2 && is_bad<SIZE>(word >> 16, too_large));
}

template <int SIZE>
__device__ __forceinline__ void find(const unsigned char* x, u64 elements, unsigned too_large, unsigned* first) {
    constexpr u64 WIDE = 16 / SIZE;
    u64 done = 0;
    if (reinterpret_cast<u64>(x) % 16 == 0) {
        done = elements / WIDE * WIDE;
        for (u64 i = first_index(); i < elements / WIDE; i += stride()) {
            const uint4 words = reinterpret_cast<const uint4*>(x)[i];
            if (has_bad<SIZE>(words.x, too_large) || has_bad<SIZE>(words.y, too_large) ||
                has_bad<SIZE>(words.z, too_large) || has_bad<SIZE>(words.w, too_large)) {
                atomicMin(first, static_cast<unsigned>(i * WIDE / CHUNK));
            }
        }
    }
    for (u64 i = done + first_index(); i < elements; i += stride()) {
        if (is_bad<SIZE>(bits_at<SIZE>(x, i), too_large)) {
            atomicMin(first, static_cast<unsigned>(i / CHUNK));
        }
    }
}

extern "C" __global__ void not_finite_2(const unsigned char* x, unsigned long long elements, unsigned too_large,
                                        unsigned* first) {
    find<2>(x, elements, too_large, first);
}

extern "C" __global__ void not_finite_4(const unsigned char* x, unsigned long long elements, unsigned too_large,
                                        unsigned* first) {
    find<4>(x, elements, too_large, first);
}
