// Products of eight and four parts of a sum: one by one, as one strided batch, and what folding them takes. Prints
// microseconds of each, by a captured graph that takes six weights in turn, and whether the batch has the same bits.
// nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a parts.cu -lcublasLt -o parts && ./parts
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <algorithm>
#include <cstring>
typedef __nv_bfloat16 bf16;
#define CK(x) do { auto e = (x); if ((int)e) { printf("error %d line %d\n", (int)e, __LINE__); exit(1); } } while (0)
cublasLtHandle_t lt; cudaStream_t st; void* ws; size_t WS = 64 << 20;
const int COPIES = 6;
struct Gemm { cublasLtMatmulDesc_t op; cublasLtMatrixLayout_t w, x, o; };
// out[R,N] = x[R,K] w[N,K]^T, rows of x `lda` apart; strides of a batch
Gemm make(int R, int N, int K, int lda, int ldw, cudaDataType ot, int batch, long sx, long sw, long so) {
    Gemm g; cublasOperation_t T = CUBLAS_OP_T;
    CK(cublasLtMatmulDescCreate(&g.op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CK(cublasLtMatmulDescSetAttribute(g.op, CUBLASLT_MATMUL_DESC_TRANSA, &T, sizeof T));
    CK(cublasLtMatrixLayoutCreate(&g.w, CUDA_R_16BF, K, N, ldw));
    CK(cublasLtMatrixLayoutCreate(&g.x, CUDA_R_16BF, K, R, lda));
    CK(cublasLtMatrixLayoutCreate(&g.o, ot, N, R, N));
    if (batch > 1) {
        for (auto p : {std::make_pair(g.w, sw), std::make_pair(g.x, sx), std::make_pair(g.o, so)}) {
            long long s = p.second;
            CK(cublasLtMatrixLayoutSetAttribute(p.first, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
            CK(cublasLtMatrixLayoutSetAttribute(p.first, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &s, sizeof s));
        }
    }
    return g;
}
std::vector<cublasLtMatmulHeuristicResult_t> list(Gemm& g, size_t w, int n) {
    cublasLtMatmulPreference_t p; CK(cublasLtMatmulPreferenceCreate(&p));
    CK(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &w, sizeof w));
    std::vector<cublasLtMatmulHeuristicResult_t> r(n); int c = 0;
    cublasLtMatmulAlgoGetHeuristic(lt, g.op, g.w, g.x, g.o, g.o, p, n, r.data(), &c);
    r.resize(c); cublasLtMatmulPreferenceDestroy(p); return r;
}
void describe(const cublasLtMatmulAlgo_t& a, char* s) {
    int id = 0, tile = 0, stages = 0, sk = 0, sw = 0, co = 0; uint16_t cl = 0; size_t n;
    cublasLtMatmulAlgoConfigGetAttribute(&a, CUBLASLT_ALGO_CONFIG_ID, &id, 4, &n);
    cublasLtMatmulAlgoConfigGetAttribute(&a, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, 4, &n);
    cublasLtMatmulAlgoConfigGetAttribute(&a, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, 4, &n);
    cublasLtMatmulAlgoConfigGetAttribute(&a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &sk, 4, &n);
    cublasLtMatmulAlgoConfigGetAttribute(&a, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &sw, 4, &n);
    cublasLtMatmulAlgoConfigGetAttribute(&a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &co, 4, &n);
    cublasLtMatmulAlgoConfigGetAttribute(&a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cl, 2, &n);
    sprintf(s, "id %d tile %d stages %d splitk %d cluster %d sw %d opt %d", id, tile, stages, sk, cl, sw, co);
}
cublasStatus_t run(Gemm& g, const cublasLtMatmulAlgo_t& a, const bf16* w, const bf16* x, void* o, float beta) {
    float one = 1;
    return cublasLtMatmul(lt, g.op, &one, w, g.w, x, g.x, &beta, o, g.o, o, g.o, &a, ws, WS, st);
}
template <class F> float timed(F f) {
    cudaGraph_t gr; cudaGraphExec_t ex; cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
    f(0); cudaStreamSynchronize(st);
    CK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 2 * COPIES; i++) f(i % COPIES);
    CK(cudaStreamEndCapture(st, &gr)); CK(cudaGraphInstantiate(&ex, gr, 0));
    std::vector<float> t;
    for (int r = 0; r < 7; r++) { cudaEventRecord(a, st); cudaGraphLaunch(ex, st); cudaEventRecord(b, st); CK(cudaEventSynchronize(b)); float ms; cudaEventElapsedTime(&ms, a, b); t.push_back(ms); }
    cudaGraphExecDestroy(ex); cudaGraphDestroy(gr);
    std::sort(t.begin(), t.end()); return t[1] * 1e3f / (2 * COPIES);
}
struct Parts { const bf16* at[8]; };
template <int P> __global__ void __launch_bounds__(512) fold(float* out, Parts parts, long count) {
    for (long i = (blockIdx.x * 512L + threadIdx.x) * 8; i < count; i += gridDim.x * 4096L) {
        float s[P][8];
#pragma unroll
        for (int p = 0; p < P; p++) { uint4 v = *(const uint4*)(parts.at[p] + i); bf16* e = (bf16*)&v;
#pragma unroll
            for (int k = 0; k < 8; k++) s[p][k] = __bfloat162float(e[k]); }
#pragma unroll
        for (int a = 1; a < P; a *= 2)
#pragma unroll
            for (int p = 0; p < P; p += 2 * a)
#pragma unroll
                for (int k = 0; k < 8; k++) { float v = s[p][k] + s[p + a][k]; s[p][k] = 2 * a < P ? __bfloat162float(__float2bfloat16(v)) : v; }
        float4* o = (float4*)(out + i); float4 u = o[0], v = o[1];
        u.x += s[0][0]; u.y += s[0][1]; u.z += s[0][2]; u.w += s[0][3]; v.x += s[0][4]; v.y += s[0][5]; v.z += s[0][6]; v.w += s[0][7];
        o[0] = u; o[1] = v;
    }
}
__global__ void fill(bf16* x, long n, unsigned seed) { for (long i = blockIdx.x * 256L + threadIdx.x; i < n; i += gridDim.x * 256L) { unsigned h = (unsigned)i * 2654435761u + seed; h ^= h >> 15; h *= 2246822519u; h ^= h >> 13; x[i] = __float2bfloat16(((h & 0xffff) / 65536.0f - 0.5f) * 0.1f); } }
int main() {
    CK(cublasLtCreate(&lt)); cudaStreamCreate(&st); cudaMalloc(&ws, WS);
    int mp; cudaDeviceGetAttribute(&mp, cudaDevAttrMultiProcessorCount, 0);
    const long MAXW = 4096L * 14336 * 2; bf16 *w, *x, *parts; float* out; bf16* o16;
    cudaMalloc(&w, 2 * MAXW * COPIES); cudaMalloc(&x, 2 * 2048L * 16384); cudaMalloc(&parts, 2 * 8 * 2048L * 8192); cudaMalloc(&out, 4 * 2048L * 16384); cudaMalloc(&o16, 2 * 2048L * 32768);
    fill<<<1024, 256, 0, st>>>(w, MAXW * COPIES, 1); fill<<<1024, 256, 0, st>>>(x, 2048L * 16384, 7);
    char s[200];
    for (int R : {1024, 256, 512}) for (int N : {4096, 8192}) for (int K : {4096, 14336}) for (int ranks : {1, 2}) {
        if (N == 8192 && ranks == 1) continue;
        int KK = N == 8192 ? 2 * K : K; int kl = KK / ranks, P = 8 / ranks, kp = kl / P; long wn = (long)N * kl;
        printf("== rows %d outputs %d inner %d (of %d ranks) parts %d x %d\n", R, N, kl, ranks, P, kp);
        Gemm whole = make(R, N, kl, kl, kl, CUDA_R_32F, 1, 0, 0, 0);
        auto lw = list(whole, WS, 8); float best = 1e9;
        for (size_t i = 0; i < lw.size(); i++) { float t = timed([&](int c) { run(whole, lw[i].algo, w + c * wn, x, out, 1); }); if (t < best) { best = t; } if (i == 0 || t == best) { describe(lw[i].algo, s); printf("whole f32 += : %zu %.1f us %s\n", i, t, s); } }
        Gemm w16 = make(R, N, kl, kl, kl, CUDA_R_16BF, 1, 0, 0, 0); auto l16 = list(w16, WS, 8);
        printf("whole bf16: %.1f us\n", timed([&](int c) { run(w16, l16[0].algo, w + c * wn, x, o16, 0); }));
        // The weights of a part are a matrix of their own, [N, kp].
        Gemm one = make(R, N, kp, kl, kp, CUDA_R_16BF, 1, 0, 0, 0); auto lo = list(one, 0, 8);
        Gemm one256 = make(256, N, kp, kl, kp, CUDA_R_16BF, 1, 0, 0, 0); auto l256 = list(one256, 0, 8);
        auto seq = [&](const cublasLtMatmulAlgo_t& a) { return timed([&](int c) { for (int p = 0; p < P; p++) run(one, a, w + c * wn + (long)p * N * kp, x + p * kp, parts + (long)p * R * N, 0); }); };
        describe(lo[0].algo, s); printf("parts one by one, first of these rows: %.1f us %s\n", seq(lo[0].algo), s);
        describe(l256[0].algo, s); printf("parts one by one, first of 256 rows: %.1f us %s\n", seq(l256[0].algo), s);
        std::vector<char> ref(2L * P * R * N), got(ref.size());
        for (int p = 0; p < P; p++) run(one, lo[0].algo, w + (long)p * N * kp, x + p * kp, parts + (long)p * R * N, 0);
        cudaStreamSynchronize(st); cudaMemcpy(ref.data(), parts, ref.size(), cudaMemcpyDeviceToHost);
        Gemm bt = make(R, N, kp, kl, kp, CUDA_R_16BF, P, kp, (long)N * kp, (long)R * N); auto lb = list(bt, 0, 16);
        best = 1e9;
        for (size_t i = 0; i < lb.size(); i++) {
            cudaMemset(parts, 0, ref.size());
            if (run(bt, lb[i].algo, w, x, parts, 0)) continue;
            cudaStreamSynchronize(st); cudaMemcpy(got.data(), parts, ref.size(), cudaMemcpyDeviceToHost);
            bool same = !memcmp(ref.data(), got.data(), ref.size());
            float t = timed([&](int c) { run(bt, lb[i].algo, w + c * wn, x, parts, 0); });
            if (i == 0 || t < best || !same) { describe(lb[i].algo, s); printf("parts batched: %zu %.1f us %s %s\n", i, t, same ? "same bits" : "OTHER BITS", s); }
            if (t < best) best = t;
        }
        cublasLtMatmulHeuristicResult_t h;
        printf("algorithm of one fits the batch: %d\n", (int)cublasLtMatmulAlgoCheck(lt, bt.op, bt.w, bt.x, bt.o, bt.o, &lo[0].algo, &h));
        Parts ps; for (int p = 0; p < P; p++) ps.at[p] = parts + (long)p * R * N;
        for (int blocks : {128, mp * 2, mp * 4}) printf("fold by %d blocks: %.1f us\n", blocks, timed([&](int) { if (P == 8) fold<8><<<blocks, 512, 0, st>>>(out, ps, (long)R * N); else fold<4><<<blocks, 512, 0, st>>>(out, ps, (long)R * N); }));
        printf("batched and fold: %.1f us\n", timed([&](int c) { run(bt, lb[0].algo, w + c * wn, x, parts, 0); if (P == 8) fold<8><<<mp * 4, 512, 0, st>>>(out, ps, (long)R * N); else fold<4><<<mp * 4, 512, 0, st>>>(out, ps, (long)R * N); }));
        for (int p = 0; p < P; p++) run(one, lo[0].algo, w + (long)p * N * kp, x + p * kp, parts + (long)p * R * N, 0);
        printf("one by one and fold: %.1f us\n", timed([&](int c) { for (int p = 0; p < P; p++) run(one, lo[0].algo, w + c * wn + (long)p * N * kp, x + p * kp, parts + (long)p * R * N, 0); if (P == 8) fold<8><<<128, 512, 0, st>>>(out, ps, (long)R * N); else fold<4><<<128, 512, 0, st>>>(out, ps, (long)R * N); }));
        fflush(stdout);
    }
    // Layers whose outputs are divided: the batch-invariant choice beside the first.
    for (int R : {1024, 256}) for (int N : {6144, 28672, 3072, 14336}) {
        int K = 4096; Gemm g = make(R, N, K, K, K, CUDA_R_16BF, 1, 0, 0, 0), u = make(256, N, K, K, K, CUDA_R_16BF, 1, 0, 0, 0);
        auto a = list(g, WS, 8), b = list(u, 0, 8), c0 = list(g, 0, 8);
        describe(a[0].algo, s); printf("== rows %d outputs %d inner %d: first %.1f us %s", R, N, K, timed([&](int c) { run(g, a[0].algo, w + c * (long)N * K / 2, x, o16, 0); }), s);
        describe(b[0].algo, s); printf(" | as of 256 rows %.1f us %s", timed([&](int c) { run(g, b[0].algo, w + c * (long)N * K / 2, x, o16, 0); }), s);
        describe(c0[0].algo, s); printf(" | without workspace %.1f us %s\n", timed([&](int c) { run(g, c0[0].algo, w + c * (long)N * K / 2, x, o16, 0); }), s);
    }
}
