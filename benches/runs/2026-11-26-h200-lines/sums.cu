// Times the kernels of kernels/ranks/all_reduce.cu on RANKS GPUs, in captured graphs of 20 launches, and checks their sums.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <algorithm>
#include "ranks/all_reduce.cu"
#define CK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s: %s\n", #x, cudaGetErrorString(e)); exit(1); } } while (0)
constexpr unsigned MOSTL = (RANKS == 2 ? 600u : 400u) << 10, MOSTF = 8u;
__global__ void empty() { begin_next_kernel(); wait_for_kernels_before(); }
struct Gpu { float *out, *floats; PART* x; LinePart* lines; unsigned *written, *bell, *last; RankMemory* table; cudaStream_t s; cudaEvent_t a, b; } g[RANKS];
unsigned* aborted;
int main(int argc, char** argv) {
    const size_t MAX = 32u << 20;
    CK(cudaHostAlloc(&aborted, 4096, cudaHostAllocPortable | cudaHostAllocMapped)); *aborted = 0;
    for (int d = 0; d < (int)RANKS; d++) {
        CK(cudaSetDevice(d));
        for (int o = 0; o < (int)RANKS; o++) if (o != d) CK(cudaDeviceEnablePeerAccess(o, 0));
        CK(cudaMalloc(&g[d].out, MAX * 4)); CK(cudaMalloc(&g[d].x, MAX * sizeof(PART)));
        size_t pb = 2ull * OTHERS * MOSTL * 128;
        CK(cudaMalloc(&g[d].lines, pb)); CK(cudaMemset(g[d].lines, 0, pb));
        CK(cudaMalloc(&g[d].floats, 2ull * OTHERS * MOSTF * 4));
        CK(cudaMalloc(&g[d].written, OTHERS * MOST_CHUNKS * 4)); CK(cudaMemset(g[d].written, 0, OTHERS * MOST_CHUNKS * 4));
        CK(cudaMalloc(&g[d].bell, 4)); CK(cudaMalloc(&g[d].last, MOST_BLOCKS * 4)); CK(cudaMemset(g[d].last, 0, MOST_BLOCKS * 4));
        CK(cudaMalloc(&g[d].table, sizeof(RankMemory) * RANKS));
        CK(cudaStreamCreateWithFlags(&g[d].s, cudaStreamNonBlocking)); CK(cudaEventCreate(&g[d].a)); CK(cudaEventCreate(&g[d].b));
    }
    RankMemory t[RANKS];
    for (int d = 0; d < (int)RANKS; d++) t[d] = {g[d].lines, g[d].floats, g[d].written, g[d].bell};
    std::vector<PART> h(MAX);
    std::vector<float> want(MAX, 0.f);
    for (int d = 0; d < (int)RANKS; d++) {
        CK(cudaSetDevice(d)); CK(cudaMemcpy(g[d].table, t, sizeof t, cudaMemcpyHostToDevice));
        for (size_t i = 0; i < MAX; i++) { float v = float((i * 7 + i / 4099 + 5 * d) % 61) - 30; { unsigned u; memcpy(&u, &v, 4); if (sizeof(PART) == 2) { unsigned short w = u >> 16; memcpy((void*)&h[i], &w, 2); } else memcpy((void*)&h[i], &u, 4); } want[i] += v; }
        CK(cudaMemcpy(g[d].x, h.data(), MAX * sizeof(PART), cudaMemcpyHostToDevice));
    }
    // way 0 an empty kernel, 1 one shot, 3 two shots
    auto run = [&](int way, size_t count, unsigned blocks, unsigned extra, const char* name) {
        cudaGraphExec_t ex[RANKS];
        auto call = [&](int d) {
            Parts parts{}; for (int p = 0; p < 8; p++) parts.at[p] = g[d].x;
            float* out = g[d].out; unsigned long long first = 0; unsigned c = count, adds = 1, r = d, mp = MOSTL, mf = MOSTF; const unsigned* ab = aborted; const RankMemory* tb = g[d].table; unsigned* last = g[d].last;
            void* f = way == 0 ? (void*)empty : way == 1 ? (void*)all_reduce_one_shot : (void*)all_reduce_two_shot;
            void* a0[] = {&out, &parts, &first, &c, &adds, &tb, &last, &ab, &r, &mp, &mf};
            cudaLaunchConfig_t cfg{}; cfg.gridDim = blocks; cfg.blockDim = 256; cfg.stream = g[d].s;
            cudaLaunchAttribute at[1]; at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization; at[0].val.programmaticStreamSerializationAllowed = 1;
            if (!getenv("LATE")) { cfg.attrs = at; cfg.numAttrs = 1; }
            (void)extra;
            CK(cudaLaunchKernelExC(&cfg, f, a0)); return;
        };
        for (int d = 0; d < (int)RANKS; d++) { CK(cudaSetDevice(d)); CK(cudaMemset(g[d].out, 0, MAX * 4)); CK(cudaDeviceSynchronize()); }
        for (int d = 0; d < (int)RANKS; d++) { CK(cudaSetDevice(d)); call(d); }
        for (int d = 0; d < (int)RANKS; d++) { CK(cudaSetDevice(d)); CK(cudaStreamSynchronize(g[d].s)); }
        bool ok = true;
        for (int d = 0; d < (int)RANKS; d++) {
            CK(cudaSetDevice(d)); std::vector<float> got(count); CK(cudaMemcpy(got.data(), g[d].out, count * 4, cudaMemcpyDeviceToHost));
            for (size_t i = 0; way && i < count && ok; i++) if (got[i] != want[i] * PARTS) { printf("WRONG %s %zu %f %f\n", name, i, got[i], want[i]); ok = false; }
        }
        for (int d = 0; d < (int)RANKS; d++) {
            CK(cudaSetDevice(d)); cudaGraph_t gr;
            CK(cudaStreamBeginCapture(g[d].s, cudaStreamCaptureModeThreadLocal));
            for (int i = 0; i < 20; i++) call(d);
            CK(cudaStreamEndCapture(g[d].s, &gr)); CK(cudaGraphInstantiate(&ex[d], gr, 0)); CK(cudaGraphUpload(ex[d], g[d].s)); CK(cudaGraphDestroy(gr));
        }
        std::vector<float> ts;
        for (int rep = 0; rep < 12; rep++) {
            for (int d = 0; d < (int)RANKS; d++) { CK(cudaSetDevice(d)); CK(cudaStreamSynchronize(g[d].s)); }
            for (int d = 0; d < (int)RANKS; d++) { CK(cudaSetDevice(d)); CK(cudaEventRecord(g[d].a, g[d].s)); CK(cudaGraphLaunch(ex[d], g[d].s)); CK(cudaEventRecord(g[d].b, g[d].s)); }
            float worst = 1e9;  // the rank that starts last waits for nobody: its time counts
            for (int d = 0; d < (int)RANKS; d++) { CK(cudaSetDevice(d)); CK(cudaEventSynchronize(g[d].b)); float ms; CK(cudaEventElapsedTime(&ms, g[d].a, g[d].b)); worst = std::min(worst, ms); }
            if (rep) ts.push_back(worst * 1000 / 20);
        }
        std::sort(ts.begin(), ts.end());
        for (int d = 0; d < (int)RANKS; d++) CK(cudaGraphExecDestroy(ex[d]));
        printf(" %s %.2f%s", name, ts[ts.size() / 2], ok ? "" : "!");
        fflush(stdout);
    };
    for (size_t bytes = 8192; bytes <= (32u << 20); bytes *= 2) {
        size_t count = bytes / sizeof(WIRE);
        if (count > MAX) break;
        printf("%zu KiB:", bytes >> 10);
        size_t warps = (count + WARP_ELEMENTS - 1) / WARP_ELEMENTS;
        if (bytes == 8192) { run(0, count, 1, 0, "empty1"); run(0, count, 128, 0, "empty128"); }
        if (RANKS == 2 || bytes <= (4u << 20)) for (unsigned most : {128u, 256u, 512u}) {
            unsigned need = (warps + 7) / 8;
            if (most > 128 * BESIDE + 128 || (most > 128 && need <= most / 2)) continue;
            char n[64]; snprintf(n, 64, "one%u", std::min(need, most));
            run(1, count, std::min(need, most), 0, n);
        }
        if (bytes >= (256u << 10)) for (unsigned most : {64u, 128u, 256u, 512u}) {
            unsigned need = ((warps + RANKS - 1) / RANKS + 7) / 8;
            if (most > 128 * BESIDE + 128 || (most > 64 && need <= most / 2)) continue;
            char n[64]; snprintf(n, 64, "two%u", std::min(need, most));
            run(3, count, std::min(need, most), 0, n);
        }
        printf("\n");
    }
}
