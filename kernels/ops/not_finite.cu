// first[0] = min(first[0], i) over all i whose element is not finite, or would be rounded to infinity: the check of
// tensors that lie on the device when they are given.
//
// Shapes: x [elements] of 2 or 4 bytes each, at any address; first u64 [1]. too_large: the bits, without the sign, from
// which a number is refused (they rise with its size).
// Grid: a grid-stride loop over chunks of 16 bytes, or over elements where the address is no multiple of 16.
// Limit: bandwidth, the bytes of x.
// Definition: `DeviceMemory::not_finite` of crates/backend/src/device_memory.rs; on the CPU `not_finite` of
// crates/model/src/weights/mod.rs.

using u64 = unsigned long long;

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
__device__ __forceinline__ bool word_has_bad(unsigned word, unsigned too_large) {
    if (SIZE == 4) {
        return is_bad<4>(word, too_large);
    }
    return is_bad<2>(word, too_large) || is_bad<2>(word >> 16, too_large);
}

template <int SIZE>
__device__ void find(const unsigned char* x, u64 elements, unsigned too_large, u64* first) {
    constexpr u64 PER_CHUNK = 16 / SIZE;
    u64 done = 0;
    if (reinterpret_cast<u64>(x) % 16 == 0) {
        const uint4* chunks = reinterpret_cast<const uint4*>(x);
        done = elements / PER_CHUNK * PER_CHUNK;
        for (u64 chunk = first_index(); chunk < elements / PER_CHUNK; chunk += stride()) {
            const uint4 words = chunks[chunk];
            if (word_has_bad<SIZE>(words.x, too_large) || word_has_bad<SIZE>(words.y, too_large) ||
                word_has_bad<SIZE>(words.z, too_large) || word_has_bad<SIZE>(words.w, too_large)) {
                for (u64 i = chunk * PER_CHUNK; i < (chunk + 1) * PER_CHUNK; ++i) {
                    if (is_bad<SIZE>(bits_at<SIZE>(x, i), too_large)) {
                        atomicMin(first, i);
                        break;
                    }
                }
            }
        }
    }
    for (u64 i = done + first_index(); i < elements; i += stride()) {
        if (is_bad<SIZE>(bits_at<SIZE>(x, i), too_large)) {
            atomicMin(first, i);
        }
    }
}

extern "C" __global__ void not_finite_2(const unsigned char* x, unsigned long long elements, unsigned too_large,
                                        unsigned long long* first) {
    find<2>(x, elements, too_large, first);
}

extern "C" __global__ void not_finite_4(const unsigned char* x, unsigned long long elements, unsigned too_large,
                                        unsigned long long* first) {
    find<4>(x, elements, too_large, first);
}
