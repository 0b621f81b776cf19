// The gated delta rule, token by token (crates/backend/src/states.rs): for each value head
//
//   S = decay * S,  S = S + k (beta * (v - S^T k))^T,  out = S^T q
//
// with q and k normalised, beta = sigmoid(b) and decay = exp(rate * softplus(a + dt)).
//
// Shapes: out ELEMENT [R, value_heads * VALUE_DIM]; qkv ELEMENT [R, 2 * key_heads * KEY_DIM + value_heads * VALUE_DIM];
// ba f32 [R, 2 * value_heads], b of all heads, then a; rate, dt f32 [value_heads]; matrices STATE [slots, value_heads,
// KEY_DIM, VALUE_DIM].
// Grid: one block for each run, value head and strip of 16 * WARPS columns of S, in this order of x. Columns do not
// depend on each other. A warp has 16 of them, 4 lanes of 4 columns in each of 8 groups of lanes; a group has every
// eighth four rows. So S stays in registers (KEY_DIM / 2 of them) from its one load to its one store, and sums over its
// rows are added over a thread's rows, then over the groups of its warp.
// Where STATE is bf16, S is f32 in registers all the same, and rounded after each token, before it is read.
// Limit: bandwidth, 8 bytes per element of S for runs of one row, 4 of bf16. A thread asks for all of its S before it
// waits, 256 KEY_DIM bytes a block of 64 columns, or 128 (64 KiB at a time on a multiprocessor are enough to keep HBM3
// busy).
// The order of sums depends on nothing but KEY_DIM: however rows are divided into runs, they have the same bits.
// Definition: `Backend::state_update`; on the CPU, `state_update` of crates/cpu/src/state_update.rs.
// Defines: ELEMENT, STATE (f32, bf16), KEY_DIM, VALUE_DIM.
#include "delta_rule/gates.cuh"
#include "delta_rule/run.cuh"
#include "lanes.cuh"
#include "reduce.cuh"

// As in crates/cuda/src/delta_rule.
constexpr unsigned WARPS = VALUE_DIM > 48 ? 4 : (VALUE_DIM + 15) / 16;
constexpr unsigned STRIP = 16 * WARPS;
constexpr unsigned STRIPS = (VALUE_DIM + STRIP - 1) / STRIP;

// Keys are padded with zeros, which change no sum.
constexpr unsigned KEY_PADDED = (KEY_DIM + 31) / 32 * 32;
// Rows of S that a thread has.
constexpr unsigned ROWS = KEY_PADDED / 8;
// Tokens whose vectors are in shared memory at once.
constexpr unsigned STAGED = 8;

using State = float[ROWS][4];
using Four = Lanes<float, 4>;

// Row `i` of a group's.
__device__ __forceinline__ unsigned row_of(unsigned i, unsigned group) {
    return i / 4 * 32 + group * 4 + i % 4;
}

__device__ __forceinline__ Four load_columns(const STATE* from, unsigned column) {
    Four four = {};
    if constexpr (VALUE_DIM % 4 == 0) {
        if (VALUE_DIM % STRIP == 0 || column < VALUE_DIM) {
            four = load<4>(from + column);
        }
    } else {
        for (unsigned c = 0; c < 4; ++c) {
            if (column + c < VALUE_DIM) {
                four.at[c] = to_f32(from[column + c]);
            }
        }
    }
    return four;
}

template <class T>
__device__ __forceinline__ void store_columns(T* to, unsigned column, const Four& four) {
    if constexpr (VALUE_DIM % 4 == 0) {
        if (VALUE_DIM % STRIP == 0 || column < VALUE_DIM) {
            store<4>(to + column, four);
        }
    } else {
        for (unsigned c = 0; c < 4; ++c) {
            if (column + c < VALUE_DIM) {
                to[column + c] = from_f32<T>(four.at[c]);
            }
        }
    }
}

// Sums over the groups of a warp, in each of them.
__device__ __forceinline__ void add_groups(Four& sums) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
#pragma unroll
        for (float& sum : sums.at) {
            sum += __shfl_xor_sync(0xffffffff, sum, distance);
        }
    }
}

// What each column of S holds for `vector` [KEY_PADDED], whose rows are first multiplied by `decay` and then get
// `delta` times those of `key`.
template <bool DECAYS, bool ADDS>
__device__ __forceinline__ Four read(State& state, const float4* vector, float decay, const float4* key,
                                     const Four& delta) {
    const unsigned group = threadIdx.x % 32 / 4;
    Four sums = {};
#pragma unroll
    for (unsigned i = 0; i < ROWS; i += 4) {
        const float4 four = vector[i / 4 * 8 + group];
        const float weights[4] = {four.x, four.y, four.z, four.w};
        float keys[4] = {};
        if constexpr (ADDS) {
            const float4 added = key[i / 4 * 8 + group];
            keys[0] = added.x, keys[1] = added.y, keys[2] = added.z, keys[3] = added.w;
        }
#pragma unroll
        for (unsigned r = 0; r < 4; ++r) {
#pragma unroll
            for (unsigned c = 0; c < 4; ++c) {
                float& element = state[i + r][c];
                if constexpr (DECAYS) {
                    element *= decay;
                }
                if constexpr (ADDS) {
                    element = to_f32(from_f32<STATE>(fmaf(keys[r], delta.at[c], element)));
                }
                sums.at[c] = fmaf(element, weights[r], sums.at[c]);
            }
        }
    }
    add_groups(sums);
    return sums;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, KEY_PADDED > 128 ? 2 : 4)
    delta_rule(ELEMENT* __restrict__ out, const ELEMENT* __restrict__ qkv, const float* __restrict__ ba,
               const float* __restrict__ rate, const float* __restrict__ dt, STATE* matrices,
               const Run* __restrict__ runs, unsigned key_heads, unsigned value_heads) {
    const unsigned strip = blockIdx.x % STRIPS, head = blockIdx.x / STRIPS % value_heads;
    const Run run = runs[blockIdx.x / STRIPS / value_heads];
    __shared__ float4 keys[STAGED * KEY_PADDED / 4];
    __shared__ float4 queries[STAGED * KEY_PADDED / 4];
    __shared__ float4 values[STAGED * STRIP / 4];
    __shared__ float decays[STAGED];
    __shared__ float betas[STAGED];

    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4;
    const unsigned within = warp * 16 + lane % 4 * 4, column = strip * STRIP + within;
    const unsigned long long matrix = KEY_DIM * VALUE_DIM;
    const unsigned key_width = key_heads * KEY_DIM, value_width = value_heads * VALUE_DIM;
    const unsigned long long width = 2 * key_width + value_width;
    const unsigned key_head = head / (value_heads / key_heads);

    State state;
#pragma unroll
    for (unsigned i = 0; i < ROWS; ++i) {
        const unsigned row = row_of(i, group);
        Four four = {};
        if (run.from != NO_STATE && (KEY_DIM % 32 == 0 || row < KEY_DIM)) {
            four = load_columns(
                matrices + (static_cast<unsigned long long>(run.from) * value_heads + head) * matrix + row * VALUE_DIM,
                column);
        }
#pragma unroll
        for (unsigned c = 0; c < 4; ++c) {
            state[i][c] = four.at[c];
        }
    }

    for (unsigned place = 0; place < run.rows; place += STAGED) {
        const unsigned count = min(STAGED, run.rows - place);
        const ELEMENT* rows = qkv + (run.first + place) * width;
        __syncthreads();  // the tokens before have been read
        for (unsigned vector = warp; vector < 2 * count; vector += WARPS) {
            const unsigned token = vector / 2;
            const bool is_key = vector % 2 == 1;
            const ELEMENT* from = rows + token * width + (is_key ? key_width : 0) + key_head * KEY_DIM;
            float x[KEY_PADDED / 32], squares = 0.0f;
#pragma unroll
            for (unsigned i = 0; i < KEY_PADDED / 32; ++i) {
                const unsigned at = i * 32 + lane;
                x[i] = KEY_DIM % 32 == 0 || at < KEY_DIM ? to_f32(from[at]) : 0.0f;
                squares = fmaf(x[i], x[i], squares);
            }
            const float factor = is_key ? 1.0f : 1.0f / sqrtf(static_cast<float>(KEY_DIM));
            const float scale = factor / sqrtf(warp_sum(squares) + L2_EPS);
            float* to = reinterpret_cast<float*>(is_key ? keys : queries) + token * KEY_PADDED;
#pragma unroll
            for (unsigned i = 0; i < KEY_PADDED / 32; ++i) {
                to[i * 32 + lane] = x[i] * scale;
            }
        }
        for (unsigned i = threadIdx.x; i < count * STRIP; i += 32 * WARPS) {
            const unsigned token = i / STRIP, at = strip * STRIP + i % STRIP;
            const bool is_there = VALUE_DIM % STRIP == 0 || at < VALUE_DIM;
            reinterpret_cast<float*>(values)[i] =
                is_there ? to_f32(rows[token * width + 2 * key_width + head * VALUE_DIM + at]) : 0.0f;
        }
        if (threadIdx.x < count) {
            const Gates gates = gates_of(ba, rate, dt, run.first + place + threadIdx.x, head, value_heads);
            betas[threadIdx.x] = gates.beta;
            decays[threadIdx.x] = expf(gates.log_decay);
        }
        __syncthreads();
        for (unsigned token = 0; token < count; ++token) {
            const float4* query = queries + token * KEY_PADDED / 4;
            const float4* key = keys + token * KEY_PADDED / 4;
            Four sums;
            if (run.is_in && place + token == 0) {
                sums = read<false, false>(state, query, 1.0f, key, Four{});
            } else {
                const Four held = read<true, false>(state, key, decays[token], key, Four{});
                const float4 value = values[(token * STRIP + within) / 4];
                const float beta = betas[token];
                const Four delta = {beta * (value.x - held.at[0]), beta * (value.y - held.at[1]),
                                    beta * (value.z - held.at[2]), beta * (value.w - held.at[3])};
                sums = read<false, true>(state, query, 1.0f, key, delta);
            }
            if (group == 0) {
                store_columns(
                    out + (run.first + place + token) * static_cast<unsigned long long>(value_width) + head * VALUE_DIM,
                    column, sums);
            }
        }
    }

    if (run.to == NO_STATE) {
        return;
    }
#pragma unroll
    for (unsigned i = 0; i < ROWS; ++i) {
        const unsigned row = row_of(i, group);
        if (KEY_DIM % 32 == 0 || row < KEY_DIM) {
            const Four four = {state[i][0], state[i][1], state[i][2], state[i][3]};
            store_columns(
                matrices + (static_cast<unsigned long long>(run.to) * value_heads + head) * matrix + row * VALUE_DIM,
                column, four);
        }
    }
}
