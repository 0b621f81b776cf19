// Times one kernel of kernels/four_bit with one choice of tiles on the layers of llama3-8b, beside cuBLAS in bf16, and
// compares it with linear_4bit_any. Built and run by sweep.sh, which gives the choice as defines: SWEEP_FP4, SWEEP_GROUP,
// SWEEP_CAP, SWEEP_GROUPS, SWEEP_SPLITS, SWEEP_STAGES, and SWEEP_MMA for linear_4bit.
//
// A line of output: shape, rows, microseconds of the kernel (median of replays of a CUDA graph, weights not in the
// second-level cache), of cuBLAS, of reading the panels at the bandwidth that a copy has, and the largest difference from
// linear_4bit_any over the largest result.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#ifndef __CUDA_ARCH__
// The host has to know of the kernel.
#define __CUDA_ARCH_FEAT_SM90_ALL
#endif
#define ELEMENT bf16
#define OUT bf16
#define GATED 0
#define FP4 SWEEP_FP4
#define GROUP SWEEP_GROUP
#define CAP SWEEP_CAP
#define GROUPS SWEEP_GROUPS
#define SPLITS SWEEP_SPLITS
#define RING_STAGES SWEEP_STAGES
#define RING_BYTES 65536
#ifdef SWEEP_MMA
#include "four_bit/linear_4bit.cu"
#else
#include "four_bit/linear_4bit_wgmma.cu"
#endif
#include "four_bit/linear_4bit_any.cu"

static void check(int error, const char* what) {
    if (error != 0) {
        std::printf("%s: error %d\n", what, error);
        std::exit(1);
    }
}

// Random panels: any bits are codes and zero points, scales are set.
__global__ void fill(unsigned char* panels, unsigned long long count, unsigned seed) {
    for (unsigned long long panel = blockIdx.x; panel < count; panel += gridDim.x) {
        unsigned char* to = panels + panel * CODE_PANEL_BYTES;
        for (unsigned i = threadIdx.x; i < CODE_PANEL_BYTES; i += blockDim.x) {
            unsigned bits = (seed + i + static_cast<unsigned>(panel) * 8191) * 2654435761u;
            bits = (bits ^ bits >> 15) * 2246822519u;
            to[i] = i >= ZEROS_AT ? bits >> 20 & 15 : bits >> 16;
        }
        __syncthreads();
        for (unsigned i = threadIdx.x; i < CODE_GROUPS * CODE_OUTPUTS; i += blockDim.x) {
            if (FP4) {
                to[CODE_BYTES + i] = 120 + i % 5;
            } else {
                reinterpret_cast<float*>(to + CODE_BYTES)[i] = 0.01f + i % 7 * 0.001f;
            }
        }
    }
}

__global__ void fill_inputs(bf16* x, unsigned long long count) {
    for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < count; i += gridDim.x * 256ull) {
        x[i] = from_f32<bf16>(static_cast<int>((static_cast<unsigned>(i) * 2654435761u) >> 16 & 255) / 128.0f - 1.0f);
    }
}

// Median microseconds of `launch(turn)`, of `turns` in a graph.
static double time_of(cudaStream_t stream, unsigned turns, const std::function<void(unsigned)>& launch) {
    launch(0);
    check(cudaStreamSynchronize(stream), "a first launch");
    cudaGraph_t graph;
    cudaGraphExec_t run;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (unsigned turn = 0; turn < turns; turn++) {
        launch(turn);
    }
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&run, graph, 0), "a graph");
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> times;
    for (unsigned i = 0; i < 12; i++) {
        cudaEventRecord(begin, stream);
        cudaGraphLaunch(run, stream);
        cudaEventRecord(end, stream);
        check(cudaStreamSynchronize(stream), "a replay");
        float ms;
        cudaEventElapsedTime(&ms, begin, end);
        times.push_back(ms);
    }
    std::sort(times.begin() + 2, times.end());
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
    return times[7] * 1e3 / turns;
}

int main() {
    cudaDeviceProp facts;
    check(cudaGetDeviceProperties(&facts, 0), "a device");
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cublasHandle_t cublas;
    check(cublasCreate(&cublas), "cuBLAS");
    cublasSetStream(cublas, stream);

    // What a copy of 1 GiB moves, reads and writes.
    unsigned char* pool;
    const size_t pool_bytes = 2ull << 30;
    check(cudaMalloc(&pool, pool_bytes), "memory");
    const double copy = time_of(stream, 4, [&](unsigned) { cudaMemcpyAsync(pool, pool + (1ull << 30), 1ull << 30, cudaMemcpyDeviceToDevice, stream); });
    const double bandwidth = 2.0 * (1ull << 30) / copy;  // bytes per microsecond
    std::printf("# %s, copy %.0f GB/s, panel %u bytes\n", facts.name, bandwidth / 1e3, CODE_PANEL_BYTES);

#ifdef SWEEP_MMA
    const auto kernel = linear_4bit;
    const unsigned threads = 128, shared = RING_BYTES + 128, blocks_each = 2;
#else
    const auto kernel = linear_4bit_wgmma;
    const unsigned threads = (MULTIPLIERS + 1) * 128, blocks_each = 1;
    const unsigned shared = STAGES * STAGE_BYTES + (SPLITS - 1) * GROUPS * SPLIT_SUMS * 512 + 1024;
#endif
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "shared memory");
    const unsigned shapes[][2] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
    const unsigned all_rows[] = {1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
    bf16 *x, *out, *expected;
    float* bias = nullptr;
    check(cudaMalloc(&x, 4096ull * 14336 * 2), "memory");
    check(cudaMalloc(&out, 4096ull * 28672 * 2), "memory");
    check(cudaMalloc(&expected, 4096ull * 28672 * 2), "memory");
    fill_inputs<<<1024, 256, 0, stream>>>(x, 4096ull * 14336);
    for (const auto& shape : shapes) {
        const unsigned outputs = shape[0], inner = shape[1];
        const size_t panels = static_cast<size_t>((outputs + 63) / 64) * ((inner + 127) / 128), bytes = panels * CODE_PANEL_BYTES;
        const unsigned copies = static_cast<unsigned>(pool_bytes / bytes), turns = std::min(copies, 24u);
        for (unsigned i = 0; i < turns; i++) {
            fill<<<1024, 256, 0, stream>>>(pool + i * bytes, panels, i);
        }
        const size_t dense = static_cast<size_t>(outputs) * inner * 2;
        std::vector<double> of_cublas;
        for (unsigned rows : all_rows) {
            auto launch = [&](unsigned turn) {
                kernel<<<facts.multiProcessorCount * blocks_each, threads, shared, stream>>>(out, x, pool + turn % turns * bytes, bias, nullptr, nullptr, 1, outputs, inner, rows, 0, 0, 0, 0);
            };
            launch(0);
            linear_4bit_any<<<dim3((outputs + 15) / 16, std::min((rows + 15) / 16, 4096u)), 256, 0, stream>>>(expected, x, pool, bias, nullptr, nullptr, 1, outputs, inner, rows, 0, 0, 0);
            check(cudaStreamSynchronize(stream), "a product");
            std::vector<bf16> ours(static_cast<size_t>(rows) * outputs), theirs(ours.size());
            cudaMemcpy(ours.data(), out, ours.size() * 2, cudaMemcpyDeviceToHost);
            cudaMemcpy(theirs.data(), expected, ours.size() * 2, cudaMemcpyDeviceToHost);
            auto wide = [](bf16 a) {
                const unsigned bits = static_cast<unsigned>(a.bits) << 16;
                float number;
                std::copy_n(reinterpret_cast<const char*>(&bits), 4, reinterpret_cast<char*>(&number));
                return number;
            };
            float largest = 0, apart = 0;
            for (size_t i = 0; i < ours.size(); i++) {
                const float a = wide(ours[i]), b = wide(theirs[i]);
                largest = std::max(largest, std::fabs(b));
                apart = std::isnan(a) ? INFINITY : std::max(apart, std::fabs(a - b));
            }
            const double own = time_of(stream, turns, launch);
            const float one = 1, none = 0;
            const unsigned dense_turns = static_cast<unsigned>(std::min<size_t>(pool_bytes / dense, 24));
            // The pool's bytes as bf16: their numbers do not matter for the time.
            const double theirs_us = time_of(stream, dense_turns, [&](unsigned turn) {
                const auto* w = pool + turn % dense_turns * dense;
                check(cublasGemmEx(cublas, CUBLAS_OP_T, CUBLAS_OP_N, outputs, rows, inner, &one, w, CUDA_R_16BF, inner, x, CUDA_R_16BF, inner, &none, expected, CUDA_R_16BF, outputs, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT), "cuBLAS");
            });
            std::printf("%u\t%u\t%u\t%.2f\t%.2f\t%.2f\t%.2e\n", outputs, inner, rows, own, theirs_us, bytes / bandwidth, apart / largest);
            std::fflush(stdout);
        }
    }
    return 0;
}
