// The gelu of tanh: 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). Computed as the equivalent
// x / (1 + e^-2u), as precise as a result rounded to ELEMENT needs.
#pragma once

#include "element.cuh"
#include "sigmoid.cuh"

__device__ __forceinline__ float gelu_of(float x) {
    constexpr float TWICE_SQRT_2_OVER_PI = 1.5957691f;
    float twice_u = TWICE_SQRT_2_OVER_PI * (x + 0.044715f * x * x * x);
    return x * sigmoid<ELEMENT>(twice_u);
}
