// PTX wrappers for the tensor-core kernels: asynchronous copies to shared memory, matrix loads from there, and the 16 x
// 8 x 16 multiplication. Of a 16 x 8 result, lane `t` of a warp holds the elements (t / 4, 2 (t % 4) + {0, 1}) and the
// same columns of row t / 4 + 8.
#pragma once

#include "element.cuh"

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes; if not `real`, writes 16 zeros and does not read `from`.
__device__ __forceinline__ void copy_16(unsigned to, const void* from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}

// Copies 4 bytes.
__device__ __forceinline__ void copy_4(unsigned to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copies_issued() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups of copies except the newest `NEWER`.
template <int NEWER>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(NEWER) : "memory");
}

// Loads four 8 x 8 matrices of 16-bit elements. Lane t gives the address of row t % 8 of matrix t / 8.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}

// Stores four 8 x 8 matrices of 16-bit elements, of which lane t holds two neighbours of row t / 4 each. Lane t gives
// the address of row t % 8 of matrix t / 8.
__device__ __forceinline__ void store_matrices(unsigned to, const unsigned (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}

// Transposes an 8 x 8 matrix of 16-bit elements; lane t holds two neighbours of row t / 4.
__device__ __forceinline__ unsigned transpose(unsigned x) {
    unsigned y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// sum += a [16 x 16] b [16 x 8]
template <class T>
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void multiply<f16>(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply<bf16>(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
