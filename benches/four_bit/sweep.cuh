// What the sweeps of this folder share: errors, random operands, times of graphs. Included behind a kernel of four_bit.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

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

__global__ void fill_numbers(bf16* x, unsigned long long count) {
    for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < count; i += gridDim.x * 256ull) {
        unsigned bits = static_cast<unsigned>(i) * 2654435761u;
        bits = (bits ^ bits >> 15) * 2246822519u;
        x[i] = from_f32<bf16>(static_cast<int>(bits >> 16 & 255) / 128.0f - 1.0f);
    }
}

__global__ void read_all(const uint4* from, unsigned long long count, unsigned* to) {
    unsigned all = 0;
#pragma unroll 8
    for (unsigned long long i = blockIdx.x * 512ull + threadIdx.x; i < count; i += gridDim.x * 512ull) {
        const uint4 word = from[i];
        all |= word.x ^ word.y ^ word.z ^ word.w;
    }
    if (all == 1) {
        *to = 1;
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

static float wide(bf16 a) {
    const unsigned bits = static_cast<unsigned>(a.bits) << 16;
    float number;
    std::copy_n(reinterpret_cast<const char*>(&bits), 4, reinterpret_cast<char*>(&number));
    return number;
}

// The largest difference of `count` results over the largest result.
static float apart(const std::vector<bf16>& ours, const std::vector<bf16>& theirs) {
    float largest = 0, apart = 0;
    for (size_t i = 0; i < ours.size(); i++) {
        const float a = wide(ours[i]), b = wide(theirs[i]);
        largest = std::max(largest, std::fabs(b));
        apart = std::isnan(a) ? INFINITY : std::max(apart, std::fabs(a - b));
    }
    return apart / largest;
}
