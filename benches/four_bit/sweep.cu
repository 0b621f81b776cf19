// Times linear_4bit_wgmma with one choice of tiles on the layers of llama3-8b, and compares it with linear_4bit_any.
// Built and run by sweep.sh, which gives the choice as defines: SWEEP_FP4, SWEEP_GROUP, SWEEP_CAP, SWEEP_GROUPS,
// SWEEP_BLOCKS; with SWEEP_BASE it times cuBLAS in bf16 and reading the panels instead.
//
// A line of output: outputs, inputs, rows, splits, whether kernels overlap, microseconds (median of replays of a CUDA
// graph of 24 launches or fewer, weights not in the second-level cache), and the largest difference from
// linear_4bit_any over the largest result.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#ifndef __CUDA_ARCH__
// The host has to know of the kernel.
#define __CUDA_ARCH_FEAT_SM90_ALL
#endif
// As `LayerTiles` of crates/cuda/src/compile/four_bit_layers.rs counts them.
constexpr unsigned panel_bytes = 4096 + 128 / SWEEP_GROUP * 64 * (SWEEP_FP4 ? 1 : 5);
constexpr unsigned stage_bytes = (SWEEP_CAP * 256 + SWEEP_GROUPS * panel_bytes + 1023) / 1024 * 1024;
constexpr unsigned fitting = (228 * 1024 / SWEEP_BLOCKS - 1024 - 2048) / stage_bytes,
                   most_stages = fitting < 24 ? fitting : 24;

#define ELEMENT bf16
#define OUT bf16
#define GATED 0
#define FP4 SWEEP_FP4
#define GROUP SWEEP_GROUP
#define CAP SWEEP_CAP
#define GROUPS SWEEP_GROUPS
#define BLOCKS SWEEP_BLOCKS
#define STAGES most_stages
#ifndef RESCALES
#define RESCALES (1 - FP4)
#endif
#include "four_bit/linear_4bit_wgmma.cu"
#include "four_bit/linear_4bit_any.cu"
#include "sweep.cuh"

static TensorMap boxes_of(const bf16* x, unsigned rows, unsigned inner, unsigned box_rows) {
    TensorMap map;
    const cuuint64_t sizes[] = {inner * 2ull, rows}, strides[] = {inner * 2ull};
    const cuuint32_t box[] = {128, box_rows}, steps[] = {1, 1};
    check(cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_UINT8, 2,
                                 const_cast<bf16*>(x), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
          "a tensor map");
    return map;
}

int main() {
    cudaDeviceProp facts;
    check(cudaGetDeviceProperties(&facts, 0), "a device");
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    unsigned char* pool;
    const size_t pool_bytes = 2ull << 30;
    check(cudaMalloc(&pool, pool_bytes), "memory");
    const unsigned shapes[][2] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
    const unsigned all_rows[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
    bf16 *x, *out, *expected;
    check(cudaMalloc(&x, 4096ull * 14336 * 2), "memory");
    check(cudaMalloc(&out, 4096ull * 28672 * 2), "memory");
    check(cudaMalloc(&expected, 4096ull * 28672 * 2), "memory");
    fill_numbers<<<1024, 256, 0, stream>>>(x, 4096ull * 14336);
#ifdef SWEEP_BASE
    std::printf("# %s\n", facts.name);
    fill_numbers<<<1024, 256, 0, stream>>>(reinterpret_cast<bf16*>(pool), pool_bytes / 2);
    const double all = time_of(stream, 2, [&](unsigned) {
        read_all<<<1320, 512, 0, stream>>>(reinterpret_cast<uint4*>(pool), pool_bytes / 16,
                                           reinterpret_cast<unsigned*>(out));
    });
    std::printf("# read %.0f GB/s\n", pool_bytes / all / 1e3);
    cublasHandle_t cublas;
    check(cublasCreate(&cublas), "cuBLAS");
    cublasSetStream(cublas, stream);
    for (const auto& shape : shapes) {
        const size_t outputs = shape[0], inner = shape[1], dense = outputs * inner * 2;
        const unsigned turns = static_cast<unsigned>(std::min<size_t>(pool_bytes / dense, 24));
        const size_t bytes = outputs / 64 * (inner / 128) * (4096 + 320);
        const double read = time_of(stream, 24, [&](unsigned turn) {
            read_all<<<1320, 512, 0, stream>>>(reinterpret_cast<uint4*>(pool + turn * bytes), bytes / 16,
                                               reinterpret_cast<unsigned*>(out));
        });
        for (unsigned rows : all_rows) {
            const float one = 1, none = 0;
            const double us = time_of(stream, turns, [&](unsigned turn) {
                const auto* w = pool + turn * dense;
                check(cublasGemmEx(cublas, CUBLAS_OP_T, CUBLAS_OP_N, outputs, rows, inner, &one, w, CUDA_R_16BF, inner,
                                   x, CUDA_R_16BF, inner, &none, out, CUDA_R_16BF, outputs, CUBLAS_COMPUTE_32F,
                                   CUBLAS_GEMM_DEFAULT),
                      "cuBLAS");
            });
            std::printf("%zu\t%zu\t%u\tcublas %.2f\tread int4-128 %.2f\n", outputs, inner, rows, us, read);
        }
    }
    return 0;
#endif
    const auto kernel = linear_4bit_wgmma;
    const unsigned threads = ALL_THREADS, shared = STAGES * STAGE_BYTES + 1024;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "shared memory");
    int resident = 0;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared);
    std::printf("# %s, panel %u bytes, %u stages, %d blocks each\n", facts.name, CODE_PANEL_BYTES, STAGES, resident);
    for (const auto& shape : shapes) {
        const unsigned outputs = shape[0], inner = shape[1];
        const size_t panels = static_cast<size_t>((outputs + 63) / 64) * ((inner + 127) / 128),
                     bytes = panels * CODE_PANEL_BYTES;
        const unsigned turns = static_cast<unsigned>(std::min<size_t>(pool_bytes / bytes, 24));
        for (unsigned i = 0; i < turns; i++) {
            fill<<<1024, 256, 0, stream>>>(pool + i * bytes, panels, i);
        }
        for (unsigned rows : all_rows) {
            const bool serves = CAP == 8 ? rows <= 8
                                : CAP <= 32 ? rows == CAP
                                : CAP < 128 ? rows == 64 || rows == 128 || rows == 256
                                : rows >= 128;
            if (!serves) {
                continue;
            }
            linear_4bit_any<<<dim3((outputs + 15) / 16, std::min((rows + 15) / 16, 4096u)), 256, 0, stream>>>(
                expected, x, pool, nullptr, nullptr, nullptr, 1, outputs, inner, rows, 0, 0, 0);
            std::vector<bf16> ours(static_cast<size_t>(rows) * outputs), theirs(ours.size());
            check(cudaMemcpyAsync(theirs.data(), expected, ours.size() * 2, cudaMemcpyDeviceToHost, stream), "results");
            check(cudaStreamSynchronize(stream), "results");
            const TensorMap map = boxes_of(x, rows, inner, CAP);
            const unsigned tiles = (outputs + OUTPUTS - 1) / OUTPUTS * ((rows + CAP - 1) / CAP);
            for (unsigned splits : {1u, 2u, 3u, 4u, 5u, 6u, 8u}) {
                const unsigned places = facts.multiProcessorCount * BLOCKS;
                if (splits > 1 && (rows > 512 || tiles * splits > 4 * places)) {
                    continue;
                }
                for (unsigned overlap : {0u, 1u}) {
                    auto launch = [&](unsigned turn) {
                        cudaLaunchAttribute attributes[2];
                        attributes[0].id = cudaLaunchAttributeClusterDimension;
                        attributes[0].val.clusterDim = {splits, 1, 1};
                        attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
                        attributes[1].val.programmaticStreamSerializationAllowed = overlap;
                        cudaLaunchConfig_t config = {};
                        config.gridDim = splits > 1 ? tiles * splits : std::min(tiles, places);
                        config.blockDim = threads;
                        config.dynamicSmemBytes = shared;
                        config.stream = stream;
                        config.attrs = attributes;
                        config.numAttrs = 2;
                        const float* bias = nullptr;
                        check(cudaLaunchKernelEx(&config, kernel, static_cast<void*>(out), map,
                                                 static_cast<const unsigned char*>(pool + turn * bytes), bias, outputs,
                                                 inner, rows, splits, 0u, 0u, 0u),
                              "a launch");
                    };
                    check(cudaMemsetAsync(out, 0xff, ours.size() * 2, stream), "poison");
                    launch(0);
                    check(cudaMemcpyAsync(ours.data(), out, ours.size() * 2, cudaMemcpyDeviceToHost, stream),
                          "results");
                    check(cudaStreamSynchronize(stream), "a product");
                    const float off = apart(ours, theirs);
                    const double us = time_of(stream, turns, launch);
                    std::printf("%u\t%u\t%u\t%u\t%u\t%.2f\t%.1e%s\n", outputs, inner, rows, splits, overlap, us, off,
                                off < 0.01 ? "" : "\tWRONG");
                    std::fflush(stdout);
                }
            }
        }
    }
    return 0;
}
