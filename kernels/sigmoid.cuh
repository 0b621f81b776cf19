// The logistic function, as precise as a result rounded to T needs.
#pragma once

// 1 / (1 + e^-x). For two-byte T it uses the fast exponential and division: relative error below 2^-16 for |x| < 80,
// far below T's rounding. Beyond that range the result rounds to 0 or 1.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
    if constexpr (sizeof(T) == 4) {
        return 1.0f / (1.0f + expf(-x));
    } else {
        return __fdividef(1.0f, 1.0f + __expf(-x));
    }
}
