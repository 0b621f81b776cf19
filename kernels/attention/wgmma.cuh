// Instructions of a Hopper warpgroup (sm_90a): asynchronous products of 64 x 16 and 16 x 64 matrices, one operand in
// registers and one in shared memory.
//
// Operands in shared memory are panels: rows of 64 elements (128 bytes), eight rows forming an atom of 1024 bytes,
// aligned to 1024. Within an atom, 16-byte chunk c of row r is at r * 128 + (c ^ r) * 16. This layout, 128-byte
// swizzle, lets the copies' writes and the products' reads touch all banks.
//
// A descriptor names an operand: bits 0-13 hold its address / 16, bits 32-45 the bytes between atoms / 16, bits 62-63
// the layout (1). Where rows run along the summed dimension (keys), the next 16 elements are 32 bytes further and an
// operand lies in one panel. Where rows run across it (values, read transposed), the next 16 tokens are two atoms
// further, and bits 16-29 hold the bytes between panels / 16.
#pragma once

#include "element.cuh"

constexpr unsigned ATOM_BYTES = 1024;

__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
    return 1ull << 62 | static_cast<unsigned long long>(ATOM_BYTES / 16) << 32 | (address & 0x3ffff) >> 4;
}

// The same for an operand of several panels.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned panel_bytes) {
    return descriptor(address) | static_cast<unsigned long long>(panel_bytes / 16) << 16;
}

// Makes register writes so far visible to the products that follow.
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void products_issued() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits for all groups of products except the newest `NEWER`.
template <int NEWER>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(NEWER) : "memory");
}

// Keeps the compiler from moving uses of a result before the preceding wait.
template <int N>
__device__ __forceinline__ void settled(float (&sum)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        asm volatile("" : "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])::"memory");
    }
}

// Of a 64 x (8 N) result a warp holds 16 rows, as N 16 x 8 results of attention/mma.cuh.
#define SUM_8(sum, n) \
    "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3]), \
    "+f"(sum[n + 1][0]), "+f"(sum[n + 1][1]), "+f"(sum[n + 1][2]), "+f"(sum[n + 1][3])
#define SUM_32(sum, n) SUM_8(sum, n), SUM_8(sum, n + 2), SUM_8(sum, n + 4), SUM_8(sum, n + 6)
#define WGMMA_64(types) \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." types " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, " \
    "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define WGMMA_80(types) \
    "wgmma.mma_async.sync.aligned.m64n80k16.f32." types " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, " \
    "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, " \
    "%35, %36, %37, %38, %39}, "
#define WGMMA_96(types) \
    "wgmma.mma_async.sync.aligned.m64n96k16.f32." types " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, " \
    "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, " \
    "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
#define WGMMA_128(types) \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32." types " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, " \
    "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, " \
    "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, " \
    "%57, %58, %59, %60, %61, %62, %63}, "
#define WGMMA_256(types) \
    "wgmma.mma_async.sync.aligned.m64n256k16.f32." types " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, " \
    "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, " \
    "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, " \
    "%57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
    "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, " \
    "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, " \
    "%119, %120, %121, %122, %123, %124, %125, %126, %127}, "

// sum = q [64 x 16] k [64 x 16]^T, plus the old sum if `more`.
template <class T>
__device__ __forceinline__ void multiply_keys(float (&sum)[8][4], const unsigned (&q)[4], unsigned long long k,
                                              bool more);

// The same with queries in shared memory, laid out as keys are.
template <class T>
__device__ __forceinline__ void multiply_shared(float (&sum)[8][4], unsigned long long q, unsigned long long k,
                                                bool more);

// sum [64 x 8 N] += p [64 x 16] v [16 x 8 N], of as many panels as that takes.
template <class T>
__device__ __forceinline__ void multiply_values(float (&sum)[8][4], const unsigned (&p)[4], unsigned long long v);
template <class T>
__device__ __forceinline__ void multiply_values(float (&sum)[10][4], const unsigned (&p)[4], unsigned long long v);
template <class T>
__device__ __forceinline__ void multiply_values(float (&sum)[12][4], const unsigned (&p)[4], unsigned long long v);
template <class T>
__device__ __forceinline__ void multiply_values(float (&sum)[16][4], const unsigned (&p)[4], unsigned long long v);
template <class T>
__device__ __forceinline__ void multiply_values(float (&sum)[32][4], const unsigned (&p)[4], unsigned long long v);

// The same with p in shared memory, laid out as keys are.
template <class T>
__device__ __forceinline__ void multiply_values_shared(float (&sum)[16][4], unsigned long long p, unsigned long long v);
template <class T>
__device__ __forceinline__ void multiply_values_shared(float (&sum)[32][4], unsigned long long p, unsigned long long v);

#define SUMS(...) __VA_ARGS__
#define DEFINE_VALUES(T, N, product, a, v, sums) \
    template <> \
    __device__ __forceinline__ void multiply_values<T>(float (&sum)[N][4], const unsigned (&p)[4], \
                                                       unsigned long long v_at) { \
        asm volatile(product a ", " v ", 1, 1, 1, 1;" \
                     : sums \
                     : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v_at)); \
    }
#define DEFINE_VALUES_SHARED(T, N, product, p, v, sums) \
    template <> \
    __device__ __forceinline__ void multiply_values_shared<T>(float (&sum)[N][4], unsigned long long p_at, \
                                                              unsigned long long v_at) { \
        asm volatile(product p ", " v ", 1, 1, 1, 0, 1;" : sums : "l"(p_at), "l"(v_at)); \
    }
#define DEFINE_PRODUCTS(T, types) \
    template <> \
    __device__ __forceinline__ void multiply_keys<T>(float (&sum)[8][4], const unsigned (&q)[4], unsigned long long k, \
                                                     bool more) { \
        asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %37, 0;\n" WGMMA_64(types) \
                     "{%32, %33, %34, %35}, %36, more, 1, 1, 0;\n}" \
                     : SUM_32(sum, 0) \
                     : "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3]), "l"(k), "r"(static_cast<int>(more))); \
    } \
    template <> \
    __device__ __forceinline__ void multiply_shared<T>(float (&sum)[8][4], unsigned long long q, unsigned long long k, \
                                                       bool more) { \
        asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %34, 0;\n" WGMMA_64(types) \
                     "%32, %33, more, 1, 1, 0, 0;\n}" \
                     : SUM_32(sum, 0) \
                     : "l"(q), "l"(k), "r"(static_cast<int>(more))); \
    } \
    DEFINE_VALUES(T, 8, WGMMA_64(types), "{%32, %33, %34, %35}", "%36", SUM_32(sum, 0)) \
    DEFINE_VALUES(T, 10, WGMMA_80(types), "{%40, %41, %42, %43}", "%44", SUMS(SUM_32(sum, 0), SUM_8(sum, 8))) \
    DEFINE_VALUES(T, 12, WGMMA_96(types), "{%48, %49, %50, %51}", "%52", \
                  SUMS(SUM_32(sum, 0), SUM_8(sum, 8), SUM_8(sum, 10))) \
    DEFINE_VALUES(T, 16, WGMMA_128(types), "{%64, %65, %66, %67}", "%68", SUMS(SUM_32(sum, 0), SUM_32(sum, 8))) \
    DEFINE_VALUES(T, 32, WGMMA_256(types), "{%128, %129, %130, %131}", "%132", \
                  SUMS(SUM_32(sum, 0), SUM_32(sum, 8), SUM_32(sum, 16), SUM_32(sum, 24))) \
    DEFINE_VALUES_SHARED(T, 16, WGMMA_128(types), "%64", "%65", SUMS(SUM_32(sum, 0), SUM_32(sum, 8))) \
    DEFINE_VALUES_SHARED(T, 32, WGMMA_256(types), "%128", "%129", \
                         SUMS(SUM_32(sum, 0), SUM_32(sum, 8), SUM_32(sum, 16), SUM_32(sum, 24)))
DEFINE_PRODUCTS(f16, "f16.f16")
DEFINE_PRODUCTS(bf16, "bf16.bf16")
