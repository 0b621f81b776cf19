// The products of the chunked delta rule that need no state (delta_rule/chunk.cuh): W, U and A of each chunk and value
// head.
//
// Shapes: products [chunks, value_heads, PRODUCT_BYTES]; qkv, ba, rate, dt as in delta_rule.cu; segments: of 64 rows.
// Grid: one block of 128 threads for each segment and key head, heads fastest. Its keys and queries are read and
// multiplied once for the value heads that share them, which follow each other. Of four warps each has 16 tokens of K
// K^T and 16 others of Q K^T, so that all have five of the 20 blocks on and below the diagonals; and a quarter of the
// columns of W and U. L and its inverse are f32 (delta_rule/inverse.cuh); the inverse is rounded once for the products
// with V and K.
// Limit: tensor cores, and the latency of the steps of the inverse, which several blocks on a multiprocessor hide.
// Definition: `Backend::state_update`; its chunked form in clear loops: crates/cuda/tests/kernels/emulated_states.rs.
// Defines: ELEMENT (f16, bf16), KEY_DIM (a multiple of 64), VALUE_DIM (of 32).
#include "attention/state.cuh"
#include "delta_rule/gates.cuh"
#include "delta_rule/inverse.cuh"

constexpr unsigned most_of(unsigned a, unsigned b) {
    return a > b ? a : b;
}

constexpr unsigned BLOCK_THREADS = 128;

// Heads whose gates are computed at once, one by each warp.
constexpr unsigned AT_ONCE = BLOCK_THREADS / 32;

// The least log2 of a decay: of a state, less than 2^-96 is left, which no sum sees. So sums of them keep their
// precision.
constexpr float LEAST_DECAY = -96.0f, LOG2_E = 1.44269504f;

struct Shared {
    ELEMENT keys[CHUNK * KEY_ROW];
    // Queries; then A, W on their way to memory.
    ELEMENT rows[CHUNK * most_of(KEY_ROW, CHUNK_ROW)];
    // L below its blocks on the diagonal; then values; then U.
    union {
        Split lower;
        ELEMENT values[CHUNK * VALUE_ROW];
    };
    union {
        Split inverse;
        // The inverse times what multiplies rows of values, and of keys.
        struct {
            ELEMENT for_values[CHUNK * CHUNK_ROW], for_keys[CHUNK * CHUNK_ROW];
        };
    };
};

// 1 / norm of a row, of which a thread reads every second 8 elements and the next lane the others. Where operands need
// it, the row is multiplied by a power of two that leaves a norm between 1/2 and 1; returns what is left, and the
// power.
template <bool CHANGES>
__device__ __forceinline__ Power norm_factor(ELEMENT* row, unsigned half) {
    float squares = 0.0f;
#pragma unroll 4
    for (unsigned i = half * 8; i < KEY_DIM; i += 16) {
        for (float x : load<8>(row + i).at) {
            squares = fmaf(x, x, squares);
        }
    }
    squares += __shfl_xor_sync(0xffffffff, squares, 1);
    const float factor = 1.0f / sqrtf(squares + L2_EPS);
    if constexpr (!CHANGES) {
        return {factor, 1.0f};
    }
    const float power = __uint_as_float(__float_as_uint(factor) & 0x7f800000);
#pragma unroll 4
    for (unsigned i = half * 8; i < KEY_DIM; i += 16) {
        Lanes<float, 8> x = load<8>(row + i);
#pragma unroll
        for (float& element : x.at) {
            element *= power;
        }
        store<8>(row + i, x);
    }
    return {factor / power, power};
}

// out [CHUNK, WIDTH] = left right in the warp's quarter of the columns; `left` is lower triangular, rows are WIDTH + 8
// apart. `out` may be `right`: a warp reads no column of another one. Where `scales` is given, 8 columns at a time are
// brought below 2^14 by a power of two, whose inverse goes there.
template <unsigned WIDTH, bool SCALES>
__device__ __forceinline__ void multiply_lower(ELEMENT* out, const ELEMENT* left, const ELEMENT* right, float* scales) {
    constexpr unsigned ROW = WIDTH + 8, BLOCKS = CHUNK / 16;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned a[BLOCKS * (BLOCKS + 1) / 2][4];
#pragma unroll
    for (unsigned m = 0; m < BLOCKS; ++m) {
#pragma unroll
        for (unsigned k = 0; k <= m; ++k) {
            load_left(a[m * (m + 1) / 2 + k], left, CHUNK_ROW, m * 16, k * 16);
        }
    }
#pragma unroll 2
    for (unsigned n = 0; n < WIDTH / 4; n += 8) {
        const unsigned column = warp * (WIDTH / 4) + n;
        unsigned b[BLOCKS / 2][4];
#pragma unroll
        for (unsigned k = 0; k < BLOCKS / 2; ++k) {
            load_matrices_transposed(b[k], shared_address(right + (k * 32 + lane) * ROW + column));
        }
        float sums[BLOCKS][4] = {};
#pragma unroll
        for (unsigned k = 0; k < BLOCKS; ++k) {
#pragma unroll
            for (unsigned m = k; m < BLOCKS; ++m) {
                multiply<ELEMENT>(sums[m], a[m * (m + 1) / 2 + k], b[k / 2][k % 2 * 2], b[k / 2][k % 2 * 2 + 1]);
            }
        }
        if constexpr (SCALES) {
            float most = 0.0f;
#pragma unroll
            for (unsigned m = 0; m < BLOCKS; ++m) {
                for (float sum : sums[m]) {
                    most = fmaxf(most, fabsf(sum));
                }
            }
            const Power power = power_below<14>(warp_most(most));
#pragma unroll
            for (unsigned m = 0; m < BLOCKS; ++m) {
                for (float& sum : sums[m]) {
                    sum *= power.to;
                }
            }
            if (lane == 0) {
                scales[column / 8] = power.back;
            }
        }
        ELEMENT* to = out + lane / 4 * ROW + column + lane % 4 * 2;
#pragma unroll
        for (unsigned m = 0; m < BLOCKS; ++m) {
            store_pair(to + m * 16 * ROW, sums[m][0], sums[m][1]);
            store_pair(to + (m * 16 + 8) * ROW, sums[m][2], sums[m][3]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    chunk_products(unsigned char* __restrict__ products, const ELEMENT* __restrict__ qkv, const float* __restrict__ ba,
                   const float* __restrict__ rate, const float* __restrict__ dt, const Run* __restrict__ segments,
                   unsigned key_heads, unsigned value_heads) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic);
    // The sums of log2 of decays up to each token, and beta: of AT_ONCE heads.
    __shared__ float all_sums[AT_ONCE * CHUNK];
    __shared__ float all_betas[AT_ONCE * CHUNK];
    __shared__ float key_factors[CHUNK];
    __shared__ float query_factors[CHUNK];
    __shared__ float powers[CHUNK];

    const unsigned key_head = blockIdx.x % key_heads, segment = blockIdx.x / key_heads, group = value_heads / key_heads;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, across = lane % 4 * 2, token = threadIdx.x;
    const Run run = segments[segment];
    const unsigned long long key_width = key_heads * KEY_DIM, width = 2 * key_width + value_heads * VALUE_DIM;
    const unsigned first = run.first + run.place;
    const ELEMENT* rows = qkv + first * width;

    copy_rows<KEY_DIM, BLOCK_THREADS>(shared.keys, rows + key_width + key_head * KEY_DIM, width, run.part);
    copy_rows<KEY_DIM, BLOCK_THREADS>(shared.rows, rows + key_head * KEY_DIM, width, run.part);
    copies_issued();
    // Asked for while keys and queries come.
    const auto compute_gates = [&](unsigned number) {
        if (number + warp >= group) {
            return;
        }
        float logs[2];
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            const unsigned row = lane * 2 + i;
            // A token that the state holds already changes nothing, nor does one that is not there.
            const bool changes = row < run.part && !(run.is_in && run.place + row == 0);
            const unsigned head = key_head * group + number + warp;
            const Gates gates = changes ? gates_of(ba, rate, dt, first + row, head, value_heads) : Gates{0.0f, 0.0f};
            all_betas[warp * CHUNK + row] = gates.beta;
            logs[i] = fmaxf(gates.log_decay * LOG2_E, LEAST_DECAY);
        }
        float sum = logs[0] + logs[1];
#pragma unroll
        for (unsigned distance = 1; distance < 32; distance *= 2) {
            const float before = __shfl_sync(0xffffffff, sum, lane - distance);
            sum += lane >= distance ? before : 0.0f;
        }
        const float before = __shfl_sync(0xffffffff, sum, lane - 1);
        all_sums[warp * CHUNK + lane * 2] = lane > 0 ? before + logs[0] : logs[0];
        all_sums[warp * CHUNK + lane * 2 + 1] = sum;
    };
    compute_gates(0);
    wait_copies<0>();
    __syncthreads();
    {
        const Power key = norm_factor<IS_NARROW<ELEMENT>>(shared.keys + token / 2 * KEY_ROW, token % 2);
        const Power query = norm_factor<false>(shared.rows + token / 2 * KEY_ROW, token % 2);
        if (token % 2 == 0) {
            key_factors[token / 2] = key.to;
            powers[token / 2] = key.back;
            query_factors[token / 2] = query.to / sqrtf(static_cast<float>(KEY_DIM));
        }
    }
    __syncthreads();

    // The warp's blocks: up to number `warp` those of keys with keys in its rows, then those of queries with keys in
    // the rows of the warp opposite.
    constexpr unsigned BLOCKS = CHUNK / 16;
    const unsigned key_rows = warp * 16, query_rows = (BLOCKS - 1 - warp) * 16;
    float raw[BLOCKS + 1][2][4] = {};
#pragma unroll 2
    for (unsigned k = 0; k < KEY_DIM; k += 16) {
        unsigned key[4], query[4];
        load_left(key, shared.keys, KEY_ROW, key_rows, k);
        load_left(query, shared.rows, KEY_ROW, query_rows, k);
#pragma unroll
        for (unsigned n = 0; n < BLOCKS + 1; ++n) {
            const bool is_key = n <= warp;
            unsigned a[4], b[4];
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                a[i] = is_key ? key[i] : query[i];
            }
            load_right_of_rows(b, shared.keys, KEY_ROW, (is_key ? n : n - warp - 1) * 16, k);
            multiply<ELEMENT>(raw[n][0], a, b[0], b[1]);
            multiply<ELEMENT>(raw[n][1], a, b[2], b[3]);
        }
    }
    __syncthreads();  // queries have been read

#pragma unroll 1
    for (unsigned number = 0; number < group; ++number) {
        const unsigned head = key_head * group + number, slot = number % AT_ONCE;
        const float* sums = all_sums + slot * CHUNK;
        const float* betas = all_betas + slot * CHUNK;
        const unsigned long long chunk = segment * static_cast<unsigned long long>(value_heads) + head;
        ELEMENT* results = reinterpret_cast<ELEMENT*>(products + chunk * PRODUCT_BYTES);
        float* factors = reinterpret_cast<float*>(results + FACTORS_AT);
        if (number > 0) {
            if (slot == 0) {
                compute_gates(number);
            }
            __syncthreads();  // results of the head before have been read
        }
        if (token < CHUNK) {
            const float last = sums[CHUNK - 1];
            factors[token] = exp2_fast(sums[token]) * query_factors[token];
            factors[OF_KEYS + token] = exp2_fast(last - sums[token]) * key_factors[token];
            factors[POWERS + token] = powers[token];
            if (token == 0) {
                factors[OF_STATE] = exp2_fast(last);
            }
        }
#pragma unroll
        for (unsigned n = 0; n < BLOCKS + 1; ++n) {
            const bool is_key = n <= warp;
            const unsigned begin = is_key ? n * 16 : (n - warp - 1) * 16;
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const unsigned row = (is_key ? key_rows : query_rows) + lane / 4 + half * 8;
                const float sum = sums[row], of_row = is_key ? betas[row] * key_factors[row] : query_factors[row];
#pragma unroll
                for (unsigned part = 0; part < 2; ++part) {
                    const unsigned column = begin + part * 8 + across;
                    float two[2];
#pragma unroll
                    for (unsigned i = 0; i < 2; ++i) {
                        // Above the diagonal the exponent would be positive.
                        const unsigned at = column + i;
                        const float factor = at <= row ? exp2_fast(sum - sums[at]) * key_factors[at] : 0.0f;
                        two[i] = of_row * factor * raw[n][part][half * 2 + i];
                    }
                    if (n < warp) {
                        store_split(shared.lower, row, column, two[0], two[1]);
                    } else if (n == warp) {
                        // What is on the diagonal or above it is not read.
                        float* to = diagonal_of(shared.inverse, warp) + (row - key_rows) * DIAGONAL_ROW;
                        *reinterpret_cast<float2*>(to + column - key_rows) = {two[0], two[1]};
                    } else {
                        store_pair(shared.rows + row * CHUNK_ROW + column, two[0], two[1]);
                    }
                }
            }
        }
        __syncwarp();
        invert_diagonal(shared.inverse);
        __syncthreads();
        write_rows<CHUNK, BLOCK_THREADS>(results + A_AT, shared.rows);
        invert_below(shared.inverse, shared.lower);
        copy_rows<VALUE_DIM, BLOCK_THREADS>(shared.values, rows + 2 * key_width + head * VALUE_DIM, width, run.part);
        copies_issued();
        // Pairs of the inverse's 10 blocks; both parts make way for both operands.
#pragma unroll
        for (unsigned i = 0; i < BLOCKS * (BLOCKS + 1) / 2; ++i) {
            const unsigned m = i < 1 ? 0 : i < 3 ? 1 : i < 6 ? 2 : 3;
            const unsigned row = m * 16 + token / 8, column = (i - m * (m + 1) / 2) * 16 + token % 8 * 2;
            unsigned* to_values = reinterpret_cast<unsigned*>(shared.for_values + row * CHUNK_ROW + column);
            unsigned* to_keys = reinterpret_cast<unsigned*>(shared.for_keys + row * CHUNK_ROW + column);
            const unsigned high = *reinterpret_cast<const unsigned*>(shared.inverse.high + row * CHUNK_ROW + column);
            const unsigned low = *reinterpret_cast<const unsigned*>(shared.inverse.low + row * CHUNK_ROW + column);
            float of_values[2], of_keys[2];
#pragma unroll
            for (unsigned j = 0; j < 2; ++j) {
                const unsigned at = column + j;
                const f16 of_high = {static_cast<unsigned short>(high >> 16 * j)};
                const f16 of_low = {static_cast<unsigned short>(low >> 16 * j)};
                of_values[j] = (to_f32(of_high) + to_f32(of_low)) * betas[at];
                of_keys[j] = of_values[j] * exp2_fast(sums[at]) * key_factors[at];
            }
            *to_values = pack<ELEMENT>(of_values[0], of_values[1]);
            *to_keys = pack<ELEMENT>(of_keys[0], of_keys[1]);
        }
        __syncthreads();
        multiply_lower<KEY_DIM, false>(shared.rows, shared.for_keys, shared.keys, nullptr);
        wait_copies<0>();
        __syncthreads();
        constexpr bool SCALES = IS_NARROW<ELEMENT>;
        multiply_lower<VALUE_DIM, SCALES>(shared.values, shared.for_values, shared.values, factors + OF_VALUES);
        __syncthreads();
        write_rows<KEY_DIM, BLOCK_THREADS>(results, shared.rows);
        write_rows<VALUE_DIM, BLOCK_THREADS>(results + U_AT, shared.values);
    }
}
