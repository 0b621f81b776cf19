// The gates of a token and value head: beta = sigmoid(b), decay = e^log_decay, log_decay = rate * softplus(a + dt).
#pragma once

// Added to sums of squares of queries and keys.
constexpr float L2_EPS = 1e-6f;

struct Gates {
    float beta, log_decay;
};

// ln(1 + e^x); above 20 it is x to the last bit.
__device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

__device__ __forceinline__ Gates gates_of(const float* ba, const float* rate, const float* dt, unsigned row,
                                          unsigned head, unsigned value_heads) {
    const float* of_row = ba + row * 2ull * value_heads;
    return {1.0f / (1.0f + expf(-of_row[head])), rate[head] * softplus(of_row[value_heads + head] + dt[head])};
}
