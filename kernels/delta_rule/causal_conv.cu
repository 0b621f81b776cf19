// out[r][c] = silu(bias[c] + sum over k of weight[c][k] * x[r - CONV_TOKENS + 1 + k][c]), where the rows before a run's
// first are those that the state holds which the run continues. The last inputs of the run go to the state after it.
//
// Shapes: out, x ELEMENT [R, width], weight f32 [width, CONV_TOKENS], bias f32 [width] or null, tails f32 [slots,
// CONV_TOKENS, width].
// Grid: x = segment of a run, y = blocks over channels. The block of a run's first segment writes the state: that it
// has read what the same memory held, and no other segment reads it.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element, and for a run of one row 4 * (2 CONV_TOKENS - 1) more for
// the state.
// Definition: `Backend::causal_conv`; on the CPU, `causal_conv` of crates/cpu/src/causal_conv.rs.
// Defines: ELEMENT, CONV_TOKENS (1 to 8).
#include "delta_rule/run.cuh"
#include "lanes.cuh"
#include "sigmoid.cuh"

// Rows whose inputs a thread waits for at once.
constexpr unsigned ROWS_AHEAD = 8;

// Inputs before a row that it reads.
constexpr unsigned BEFORE = CONV_TOKENS - 1;

// Neighbours that weights are loaded by: they begin at multiples of CONV_TOKENS.
constexpr unsigned TOGETHER = CONV_TOKENS % 4 == 0 ? 4 : CONV_TOKENS % 2 == 0 ? 2 : 1;

// Number `place`, chosen so that all stay in registers.
template <int N, unsigned FROM = 0>
__device__ __forceinline__ Lanes<float, N> chosen(const Lanes<float, N> (&all)[BEFORE + 1], unsigned place) {
    if constexpr (FROM + 1 < BEFORE) {
        return place == FROM ? all[FROM] : chosen<N, FROM + 1>(all, place);
    } else {
        return all[FROM];
    }
}

template <int N>
__device__ __forceinline__ void conv_channels(ELEMENT* out, const ELEMENT* x, const float* weight, const float* bias,
                                              float* tails, const Run& run, unsigned width, unsigned c) {
    const unsigned long long stride = width;
    const ELEMENT* own = x + run.first * stride + c;
    float weights[N][CONV_TOKENS];
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
#pragma unroll
        for (unsigned k = 0; k < CONV_TOKENS; k += TOGETHER) {
            const Lanes<float, TOGETHER> some = load<TOGETHER>(weight + (c + lane) * CONV_TOKENS + k);
#pragma unroll
            for (unsigned i = 0; i < TOGETHER; ++i) {
                weights[lane][k + i] = some.at[i];
            }
        }
    }
    Lanes<float, N> biases = {};
    if (bias != nullptr) {
        biases = load<N>(bias + c);
    }
    // The inputs before the segment, and room for a row's own.
    Lanes<float, N> before[BEFORE + 1];
#pragma unroll
    for (unsigned k = 0; k < BEFORE; ++k) {
        if (run.place + k >= BEFORE) {
            before[k] = load<N>(own + (run.place + k - BEFORE) * stride);
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
                // Of the inputs before the run, number rows + k - 1.
                return chosen(before, run.rows + k - 1);
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
                Lanes<float, N> result;
#pragma unroll
                for (int lane = 0; lane < N; ++lane) {
                    before[BEFORE].at[lane] = to_f32(asked[i].at[lane]);
                    float sum = weights[lane][0] * before[0].at[lane];
#pragma unroll
                    for (unsigned k = 1; k < CONV_TOKENS; ++k) {
                        sum = fmaf(weights[lane][k], before[k].at[lane], sum);
                    }
                    sum += biases.at[lane];
                    result.at[lane] = sum * sigmoid<ELEMENT>(sum);
                }
                store<N>(out + (run.first + row + i) * stride + c, result);
#pragma unroll
                for (unsigned k = 0; k < BEFORE; ++k) {
                    before[k] = before[k + 1];
                }
            }
        }
    }
}

template <int N>
__device__ __forceinline__ void conv_segment(ELEMENT* out, const ELEMENT* x, const float* weight, const float* bias,
                                             float* tails, const Run& run, unsigned width) {
    for (unsigned c = (blockIdx.y * blockDim.x + threadIdx.x) * N; c < width; c += gridDim.y * blockDim.x * N) {
        conv_channels<N>(out, x, weight, bias, tails, run, width, c);
    }
}

extern "C" __global__ void causal_conv(ELEMENT* __restrict__ out, const ELEMENT* __restrict__ x,
                                       const float* __restrict__ weight, const float* __restrict__ bias, float* tails,
                                       const Run* __restrict__ runs, unsigned width) {
    const Run run = runs[blockIdx.x];
    if (width % 4 == 0) {
        conv_segment<4>(out, x, weight, bias, tails, run, width);
    } else {
        conv_segment<1>(out, x, weight, bias, tails, run, width);
    }
}
