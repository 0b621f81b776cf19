// Times expert_linear_4bit_wgmma with one choice of tiles on the experts of gpt-oss-20b (32, of which a row chooses 4),
// and compares it with linear_4bit_any. Built and run by experts.sh, which gives the choice as defines: SWEEP_FP4,
// SWEEP_GROUP, SWEEP_CAP, SWEEP_GROUPS, SWEEP_SPLITS.
//
// A line of output: outputs, inputs, rows, the most places of an expert, microseconds (median of replays of a CUDA
// graph of 4 launches, weights not in the second-level cache), and the largest difference from linear_4bit_any over the
// largest result.
#include <cuda_runtime.h>

#ifndef __CUDA_ARCH__
// The host has to know of the kernel.
#define __CUDA_ARCH_FEAT_SM90_ALL
#endif
// As `FourBitTiles` of crates/cuda/src/compile/four_bit.rs counts them.
constexpr unsigned panel_bytes = 4096 + 128 / SWEEP_GROUP * 64 * (SWEEP_FP4 ? 1 : 5);
constexpr unsigned stage_bytes = (SWEEP_CAP * 256 + SWEEP_GROUPS * panel_bytes + 1023) / 1024 * 1024;
constexpr unsigned split_bytes = (SWEEP_SPLITS - 1) * SWEEP_GROUPS * SWEEP_CAP / 2 * 128 * 4;
constexpr unsigned fitting = (217 * 1024 - 1024 - split_bytes) / stage_bytes, most_stages = fitting < 24 ? fitting : 24;

#define ELEMENT bf16
#define OUT bf16
#define GATED 0
#define FP4 SWEEP_FP4
#define GROUP SWEEP_GROUP
#define CAP SWEEP_CAP
#define GROUPS SWEEP_GROUPS
#define SPLITS SWEEP_SPLITS
#define RING_STAGES most_stages
#ifndef RESCALES
#define RESCALES (1 - FP4)
#endif
#include "four_bit/expert_linear_4bit_wgmma.cu"
#include "four_bit/linear_4bit_any.cu"
#include "sweep.cuh"

constexpr unsigned EXPERTS = 32, CHOSEN = 4, TURNS = 4;

int main() {
    cudaDeviceProp facts;
    check(cudaGetDeviceProperties(&facts, 0), "a device");
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    const unsigned shapes[][2] = {{5760, 2880}, {2880, 2880}};
    const unsigned all_rows[] = {1, 16, 64, 256, 1024, 4096};
    const size_t most_places = 4096 * CHOSEN,
                 most = EXPERTS * ((5760 + 63) / 64) * ((2880 + 127) / 128) * static_cast<size_t>(CODE_PANEL_BYTES);
    unsigned char* pool;
    bf16 *x, *out, *expected;
    unsigned *firsts, *rows_of;
    check(cudaMalloc(&pool, most * TURNS), "memory");
    check(cudaMalloc(&x, most_places * 2880 * 2), "memory");
    check(cudaMalloc(&out, most_places * 5760 * 2), "memory");
    check(cudaMalloc(&expected, most_places * 5760 * 2), "memory");
    check(cudaMalloc(&firsts, (EXPERTS + 1) * 4), "memory");
    check(cudaMalloc(&rows_of, most_places * 4), "memory");
    fill_numbers<<<1024, 256, 0, stream>>>(x, most_places * 2880);
    const auto kernel = expert_linear_4bit_wgmma;
    const unsigned threads = (MULTIPLIERS + 1) * GROUP_THREADS, shared = STAGES * STAGE_BYTES + split_bytes + 1024;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "shared memory");
    std::printf("# %s, panel %u bytes, %u stages\n", facts.name, CODE_PANEL_BYTES, STAGES);
    for (const auto& shape : shapes) {
        const unsigned outputs = shape[0], inner = shape[1];
        const size_t panels = EXPERTS * static_cast<size_t>((outputs + 63) / 64) * ((inner + 127) / 128),
                     bytes = panels * CODE_PANEL_BYTES;
        for (unsigned i = 0; i < TURNS; i++) {
            fill<<<1024, 256, 0, stream>>>(pool + i * bytes, panels, i);
        }
        for (unsigned rows : all_rows) {
            // Each row chooses CHOSEN different experts.
            std::vector<std::vector<unsigned>> of(EXPERTS);
            std::srand(7);
            for (unsigned row = 0; row < rows; row++) {
                bool chosen[EXPERTS] = {};
                for (unsigned i = 0; i < CHOSEN;) {
                    const unsigned expert = std::rand() / 64 % EXPERTS;
                    if (!chosen[expert]) {
                        chosen[expert] = true, i++;
                        of[expert].push_back(row);
                    }
                }
            }
            std::vector<unsigned> first = {0}, all;
            size_t largest = 0;
            for (const auto& own : of) {
                all.insert(all.end(), own.begin(), own.end());
                first.push_back(all.size());
                largest = std::max(largest, own.size());
            }
            check(cudaMemcpyAsync(firsts, first.data(), first.size() * 4, cudaMemcpyHostToDevice, stream), "places");
            check(cudaMemcpyAsync(rows_of, all.data(), all.size() * 4, cudaMemcpyHostToDevice, stream), "places");
            const unsigned places = all.size(), gathers = outputs > inner;
            const float* bias = nullptr;
            linear_4bit_any<<<dim3((outputs + 15) / 16, std::min(places, EXPERTS + places / 16)), 256, 0, stream>>>(
                expected, x, pool, bias, firsts, rows_of, EXPERTS, outputs, inner, places, gathers, 0, 0);
            check(cudaMemsetAsync(out, 0xff, static_cast<size_t>(places) * outputs * 2, stream), "poison");
            auto launch = [&](unsigned turn) {
                kernel<<<facts.multiProcessorCount, threads, shared, stream>>>(
                    out, x, pool + turn * bytes, bias, firsts, rows_of, EXPERTS, outputs, inner, places, gathers, 0, 0,
                    0);
            };
            launch(0);
            std::vector<bf16> ours(static_cast<size_t>(places) * outputs), theirs(ours.size());
            check(cudaMemcpyAsync(ours.data(), out, ours.size() * 2, cudaMemcpyDeviceToHost, stream), "results");
            check(cudaMemcpyAsync(theirs.data(), expected, ours.size() * 2, cudaMemcpyDeviceToHost, stream), "results");
            check(cudaStreamSynchronize(stream), "a product");
            const float off = apart(ours, theirs);
            const double us = time_of(stream, TURNS, launch);
            std::printf("%u\t%u\t%u\t%zu\t%.2f\t%.1e%s\n", outputs, inner, rows, largest, us, off,
                        off < 0.01 ? "" : "\tWRONG");
            std::fflush(stdout);
        }
    }
    return 0;
}
