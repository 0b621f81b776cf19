// Stands in for cuBLASLt. The product number FAIL_AT on device FAIL_ON also starts a kernel that fails as FAIL_KIND says:
// 0 writes to an invalid address, 1 traps, 2 fails an assertion.
#include <cublasLt.h>
#include <cstdio>
#include <cassert>
#include <cstdlib>
#include <dlfcn.h>
#include <atomic>
__global__ void bad(int kind) { if (kind == 1) asm volatile("trap;"); else if (kind == 2) assert(kind == 0); else *(volatile int*)16 = 1; }
static std::atomic<long> count{0};
extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void* alpha, const void* a, cublasLtMatrixLayout_t ad, const void* b, cublasLtMatrixLayout_t bd, const void* beta, const void* c, cublasLtMatrixLayout_t cd, void* dd, cublasLtMatrixLayout_t ddd, const cublasLtMatmulAlgo_t* algo, void* ws, size_t wsb, cudaStream_t st) {
    static auto real = (decltype(&cublasLtMatmul))dlsym(dlopen("libs/libcublasLt.so.99", RTLD_NOW), "cublasLtMatmul");
    static long at = getenv("FAIL_AT") ? atol(getenv("FAIL_AT")) : 0; static int on = getenv("FAIL_ON") ? atoi(getenv("FAIL_ON")) : -1;
    int dev = -1; cudaGetDevice(&dev);
    if (dev == on && ++count == at) { bad<<<1, 1, 0, st>>>(getenv("FAIL_KIND") ? atoi(getenv("FAIL_KIND")) : 0); fprintf(stderr, "shim: GPU %d gets a bad write (%s)\n", dev, cudaGetErrorString(cudaGetLastError())); }
    return real(h, d, alpha, a, ad, b, bd, beta, c, cd, dd, ddd, algo, ws, wsb, st);
}
