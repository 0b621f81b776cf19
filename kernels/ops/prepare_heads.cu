// head_norm, rope and kv_append of the heads of a row in one pass, with the values that each of them would have stored
// (sums of squares aside, which have another order): heads of one kind that have weights are normalised and rounded,
// the first `turned` heads are rotated by the angle of the row's position and rounded (pairs as in rope.cu), and with a
// layer the last 2 * kv_heads heads, keys and values, go to slot slots[r] of it, if `member` of `members` stores that
// (`own_slot`).
// Queries and keys that changed are stored in place.
//
// Shapes: qkv ELEMENT [R, queries | keys | values], q_heads and twice kv_heads heads of head_dim, which is 8, 16, 32,
// 64, 128 or 256; weights f32 [head_dim] or null; cosines and sines f32 [positions, rotary / 2], rotary a multiple of
// 16; positions u32 [R]; layer KV_ELEMENT as in kv_append.cu and kv_append_fp8.cu, or null; slots u32 [R].
// Grid: x = row, y = blocks over the row, LANES elements a thread; the head_dim / LANES threads of a head are in one
// warp.
// Limit: bandwidth, 2 * sizeof(ELEMENT) bytes per element.
// Definition: `Backend::prepare_heads`, which is the three ops in turn.
//
// Defines: ELEMENT, KV_ELEMENT, ROUNDED (1: KV_ELEMENT is ELEMENT and holds values of e4m3), LAYOUT (of kv_page.cuh).
#include "lanes.cuh"
#include "ops/kv_slot.cuh"

using Chunk = Lanes<float, LANES>;

__device__ __forceinline__ Chunk as_stored(const Chunk& x) {
    Chunk stored;
#pragma unroll
    for (int i = 0; i < LANES; i++) {
        stored.at[i] = to_f32(from_f32<ELEMENT>(x.at[i]));
    }
    return stored;
}

// The sum over the `threads` lanes of a head, a power of two.
__device__ __forceinline__ float head_sum(float x, unsigned threads) {
    for (unsigned distance = threads / 2; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(0xffffffff, x, distance);
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(128)
    prepare_heads(ELEMENT* qkv, const float* __restrict__ query_weight, const float* __restrict__ key_weight,
                  const float* __restrict__ value_weight, float eps, const float* __restrict__ cosines,
                  const float* __restrict__ sines, const unsigned* __restrict__ positions, unsigned rotary,
                  unsigned neighbours, unsigned turned, KV_ELEMENT* __restrict__ layer,
                  const unsigned* __restrict__ slots, unsigned q_heads, unsigned kv_heads, unsigned head_dim,
                  unsigned member, unsigned members) {
    const unsigned row = blockIdx.x, width = (q_heads + 2 * kv_heads) * head_dim;
    const unsigned at = (blockIdx.y * blockDim.x + threadIdx.x) * LANES, threads = head_dim / LANES;
    const unsigned head = at / head_dim, in_head = at % head_dim;
    // All lanes of a warp exchange sums and halves; those behind the row's end have zeros.
    const bool is_in = at < width;
    ELEMENT* own = qkv + static_cast<unsigned long long>(row) * width + at;
    Chunk x = {};
    if (is_in) {
        x = load<LANES>(own);
    }

    const float* weight = head < q_heads ? query_weight : head < q_heads + kv_heads ? key_weight : value_weight;
    if (query_weight || key_weight || value_weight) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            squares += x.at[i] * x.at[i];
        }
        const float scale = 1.0f / sqrtf(head_sum(squares, threads) / head_dim + eps);
        if (is_in && weight) {
            const Chunk weights = load<LANES>(weight + in_head);
#pragma unroll
            for (int i = 0; i < LANES; i++) {
                x.at[i] *= scale * weights.at[i];
            }
            x = as_stored(x);
        }
    }

    const bool turns = is_in && head < turned && in_head < rotary;
    if (rotary > 0) {
        // The other half of each pair is as many lanes away as half of what is rotated has.
        const unsigned half = rotary / 2, lane = threadIdx.x % 32;
        const bool is_low = in_head < half;
        const unsigned other = turns ? (is_low ? lane + half / LANES : lane - half / LANES) : lane;
        Chunk there;
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            there.at[i] = __shfl_sync(0xffffffff, x.at[i], other);
        }
        const unsigned long long angles = static_cast<unsigned long long>(positions[row]) * half;
        if (turns && neighbours) {
#pragma unroll
            for (int i = 0; i < LANES; i += 2) {
                const unsigned long long angle = angles + (in_head + i) / 2;
                const float a = x.at[i], b = x.at[i + 1], cosine = cosines[angle], sine = sines[angle];
                x.at[i] = a * cosine - b * sine;
                x.at[i + 1] = b * cosine + a * sine;
            }
            x = as_stored(x);
        } else if (turns) {
            const unsigned long long angle = angles + in_head % half;
            const Chunk cosine = load<LANES>(cosines + angle), sine = load<LANES>(sines + angle);
#pragma unroll
            for (int i = 0; i < LANES; i++) {
                x.at[i] = is_low ? x.at[i] * cosine.at[i] - there.at[i] * sine.at[i]
                                 : x.at[i] * cosine.at[i] + there.at[i] * sine.at[i];
            }
            x = as_stored(x);
        }
    }

    if (is_in && (weight || turns)) {
        store<LANES>(own, x);
    }
    const unsigned slot = layer ? own_slot(slots[row], member, members) : NO_SLOT;
    if (is_in && head >= q_heads && slot != NO_SLOT) {
        store_in_slot<LANES>(layer, x, slot, head - q_heads, in_head, kv_heads, head_dim, head_dim);
    }
}
