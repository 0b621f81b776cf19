// out[r][c] = silu(sum over k of weight[c][k] * x[r - 3 + k][c]), where the rows before a run's first are those that
// the state holds which the run continues. The last inputs of the run go to the state after it.
//
// Shapes: out, x ELEMENT [R, width], weight f32 [width, 4], tails f32 [slots, 4, width].
// Grid: x = segment of a run, y = blocks over channels. The block of a run's first segment writes the state: that it
// has read what the same memory held, and no other segment reads it.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element, and for a run of one row 28 more for the state.
// Definition: `Backend::causal_conv`; on the CPU, `causal_conv` of crates/cpu/src/delta_rule.rs.
#include "delta_rule/run.cuh"
#include "lanes.cuh"
#include "sigmoid.cuh"

// Rows whose inputs a thread waits for at once.
constexpr unsigned ROWS_AHEAD = 8;

template <int N>
__device__ __forceinline__ void conv_channels(ELEMENT* out, const ELEMENT* x, const float* weight, float* tails,
                                              const Run& run, unsigned width, unsigned c) {
    const unsigned long long stride = width;
    const ELEMENT* own = x + run.first * stride + c;
    float weights[N][CONV_TOKENS];
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
        const Lanes<float, CONV_TOKENS> all = load<CONV_TOKENS>(weight + (c + lane) * CONV_TOKENS);
#pragma unroll
        for (unsigned k = 0; k < CONV_TOKENS; ++k) {
            weights[lane][k] = all.at[k];
        }
    }
    // The three inputs before the segment.
    Lanes<float, N> before[CONV_TOKENS - 1];
#pragma unroll
    for (unsigned k = 0; k < CONV_TOKENS - 1; ++k) {
        if (run.place + k >= CONV_TOKENS - 1) {
            before[k] = load<N>(own + (run.place + k - (CONV_TOKENS - 1)) * stride);
        } else if (run.from == NO_STATE) {
            before[k] = Lanes<float, N>{};
        } else {
            // The last of the state's inputs is the first row's own if the state holds its token.
            const unsigned kept = run.place + k + (run.is_in ? 0 : 1);
            before[k] = load<N>(tails + (run.from * CONV_TOKENS + kept) * stride + c);
        }
    }
    if (run.place == 0 && run.to != NO_STATE) {
#pragma unroll
        for (unsigned k = 0; k < CONV_TOKENS; ++k) {
            const Lanes<float, N> input = [&] {
                if (run.rows + k >= CONV_TOKENS) {
                    return load<N>(own + (run.rows + k - CONV_TOKENS) * stride);
                }
                // Of the inputs before the run, number rows + k - 1: chosen so that all stay in registers.
                const unsigned place = run.rows + k - 1;
                return place == 0 ? before[0] : place == 1 ? before[1] : before[2];
            }();
            store<N>(tails + (run.to * CONV_TOKENS + k) * stride + c, input);
        }
    }
    const unsigned end = run.place + run.part;
    for (unsigned row = run.place; row < end; row += ROWS_AHEAD) {
        // Asked for before one is used, and kept as they are: registers of the longest runs are those of decode steps
        // too.
        Lanes<ELEMENT, N> asked[ROWS_AHEAD];
#pragma unroll
        for (unsigned i = 0; i < ROWS_AHEAD; ++i) {
            if (row + i < end) {
                asked[i] = *reinterpret_cast<const Lanes<ELEMENT, N>*>(own + (row + i) * stride);
            }
        }
#pragma unroll
        for (unsigned i = 0; i < ROWS_AHEAD; ++i) {
            if (row + i < end) {
                Lanes<float, N> input, result;
#pragma unroll
                for (int lane = 0; lane < N; ++lane) {
                    input.at[lane] = to_f32(asked[i].at[lane]);
                    float sum = weights[lane][0] * before[0].at[lane];
                    sum = fmaf(weights[lane][1], before[1].at[lane], sum);
                    sum = fmaf(weights[lane][2], before[2].at[lane], sum);
                    sum = fmaf(weights[lane][3], input.at[lane], sum);
                    result.at[lane] = sum * sigmoid<ELEMENT>(sum);
                }
                store<N>(out + (run.first + row + i) * stride + c, result);
                before[0] = before[1];
                before[1] = before[2];
                before[2] = input;
            }
        }
    }
}

template <int N>
__device__ __forceinline__ void conv_segment(ELEMENT* out, const ELEMENT* x, const float* weight, float* tails,
                                             const Run& run, unsigned width) {
    for (unsigned c = (blockIdx.y * blockDim.x + threadIdx.x) * N; c < width; c += gridDim.y * blockDim.x * N) {
        conv_channels<N>(out, x, weight, tails, run, width, c);
    }
}

extern "C" __global__ void causal_conv(ELEMENT* __restrict__ out, const ELEMENT* __restrict__ x,
                                       const float* __restrict__ weight, float* tails, const Run* __restrict__ runs,
                                       unsigned width) {
    const Run run = runs[blockIdx.x];
    if (width % 4 == 0) {
        conv_segment<4>(out, x, weight, tails, run, width);
    } else {
        conv_segment<1>(out, x, weight, tails, run, width);
    }
}
