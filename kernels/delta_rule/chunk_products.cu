// The products of the chunked delta rule that need no state (delta_rule/chunk.cuh): W, U and A of each chunk and value
// head.
//
// Shapes: products [chunks, value_heads, PRODUCT_BYTES]; qkv, ba, rate, dt as in delta_rule.cu; segments: of 64 rows.
// Grid: one block of 128 threads for each segment and value head, heads fastest. Each of four warps has 16 tokens.
// L and its inverse are f32, by forward substitution, a thread for each column; the inverse is rounded once for the
// products with V and K.
// Limit: tensor cores, and 4,032 additions and multiplications a column of the inverse.
// Definition: `Backend::delta_rule`; tests/kernels/emulated_delta_rule.rs has the chunked form in clear loops.
// Defines: ELEMENT (f16, bf16), KEY_DIM (a multiple of 64), VALUE_DIM (of 32).
#include "delta_rule/chunk.cuh"
#include "delta_rule/gates.cuh"
#include "reduce.cuh"

// Floats of a row of L, of which four are loaded at once.
constexpr unsigned LOWER_ROW = CHUNK + 4;
constexpr unsigned OTHER_ROW = KEY_ROW > VALUE_ROW ? KEY_ROW : VALUE_ROW;

// Half of the sum of squares of a row's elements; the next lane has the other half.
__device__ __forceinline__ float norm_factor(const ELEMENT* row, unsigned half) {
    float squares = 0.0f;
    for (unsigned i = half * (KEY_DIM / 2); i < (half + 1) * (KEY_DIM / 2); i += 8) {
        for (float x : load<8>(row + i).at) {
            squares = fmaf(x, x, squares);
        }
    }
    squares += __shfl_xor_sync(0xffffffff, squares, 1);
    return 1.0f / sqrtf(squares + L2_EPS);
}

// out [CHUNK, WIDTH] = left right, of which a warp computes its 16 rows; `left` is lower triangular.
template <unsigned WIDTH>
__device__ __forceinline__ void multiply_lower(ELEMENT* out, const ELEMENT* left, const ELEMENT* right, unsigned right_row) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned a[CHUNK / 16][4];
#pragma unroll
    for (unsigned k = 0; k < CHUNK / 16; ++k) {
        if (k <= warp) {
            load_left(a[k], left, CHUNK_ROW, warp * 16, k * 16);
        }
    }
    ELEMENT* row = out + (warp * 16 + lane / 4) * WIDTH + lane % 4 * 2;
#pragma unroll 2
    for (unsigned n = 0; n < WIDTH; n += 16) {
        float sums[2][4] = {};
#pragma unroll
        for (unsigned k = 0; k < CHUNK / 16; ++k) {
            if (k <= warp) {
                unsigned b[4];
                load_right(b, right, right_row, n, k * 16);
                multiply<ELEMENT>(sums[0], a[k], b[0], b[1]);
                multiply<ELEMENT>(sums[1], a[k], b[2], b[3]);
            }
        }
#pragma unroll
        for (unsigned part = 0; part < 2; ++part) {
            store_pair(row + n + part * 8, sums[part][0], sums[part][1]);
            store_pair(row + n + part * 8 + 8 * WIDTH, sums[part][2], sums[part][3]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    chunk_products(unsigned char* __restrict__ products, const ELEMENT* __restrict__ qkv, const float* __restrict__ ba,
                   const float* __restrict__ rate, const float* __restrict__ dt, const Run* __restrict__ segments,
                   unsigned key_heads, unsigned value_heads) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    ELEMENT* keys = reinterpret_cast<ELEMENT*>(dynamic);
    ELEMENT* other = keys + CHUNK * KEY_ROW;  // queries, then values
    ELEMENT* for_values = other + CHUNK * OTHER_ROW;
    ELEMENT* for_keys = for_values + CHUNK * CHUNK_ROW;
    float* lower = reinterpret_cast<float*>(for_keys + CHUNK * CHUNK_ROW);
    __shared__ float logs[CHUNK];
    __shared__ float sums[CHUNK];
    __shared__ float betas[CHUNK];
    __shared__ float key_factors[CHUNK];
    __shared__ float query_factors[CHUNK];

    const unsigned head = blockIdx.x % value_heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Run run = segments[blockIdx.x / value_heads];
    const unsigned long long key_width = key_heads * KEY_DIM, width = 2 * key_width + value_heads * VALUE_DIM;
    const unsigned key_head = head / (value_heads / key_heads), first = run.first + run.place;
    const ELEMENT* rows = qkv + first * width;
    unsigned char* memory = products + static_cast<unsigned long long>(blockIdx.x) * PRODUCT_BYTES;
    ELEMENT* results = reinterpret_cast<ELEMENT*>(memory);
    float* factors = reinterpret_cast<float*>(results + FACTORS_AT);

    copy_rows<KEY_DIM>(keys, rows + key_width + key_head * KEY_DIM, width, run.part);
    copy_rows<KEY_DIM>(other, rows + key_head * KEY_DIM, width, run.part);
    copies_issued();
    const unsigned token = threadIdx.x;
    if (token < CHUNK) {
        // A token that the state holds already changes nothing, nor does one that is not there.
        const bool changes = token < run.part && !(run.is_in && run.place + token == 0);
        const Gates gates = changes ? gates_of(ba, rate, dt, first + token, head, value_heads) : Gates{0.0f, 0.0f};
        logs[token] = gates.log_decay;
        betas[token] = gates.beta;
    }
    wait_copies<0>();
    __syncthreads();
    if (token < CHUNK) {
        float sum = 0.0f;
        for (unsigned i = 0; i <= token; ++i) {
            sum += logs[i];
        }
        sums[token] = sum;
    }
    {
        const float key = norm_factor(keys + token / 2 * KEY_ROW, token % 2);
        const float query = norm_factor(other + token / 2 * KEY_ROW, token % 2);
        if (token % 2 == 0) {
            key_factors[token / 2] = key;
            query_factors[token / 2] = query / sqrtf(static_cast<float>(KEY_DIM));
        }
    }
    __syncthreads();
    if (token < CHUNK) {
        const float last = sums[CHUNK - 1];
        factors[token] = expf(sums[token]) * query_factors[token];
        factors[CHUNK + token] = expf(last - sums[token]) * key_factors[token];
        factors[2 * CHUNK + token] = expf(last);
    }

    // Keys with keys, and queries with keys; only what is on or below the diagonal.
    float with_keys[CHUNK / 8][4] = {}, with_queries[CHUNK / 8][4] = {};
#pragma unroll 2
    for (unsigned k = 0; k < KEY_DIM; k += 16) {
        unsigned key[4], query[4];
        load_left(key, keys, KEY_ROW, warp * 16, k);
        load_left(query, other, KEY_ROW, warp * 16, k);
#pragma unroll
        for (unsigned n = 0; n < CHUNK / 16; ++n) {
            if (n <= warp) {
                unsigned b[4];
                load_right_of_rows(b, keys, KEY_ROW, n * 16, k);
                multiply<ELEMENT>(with_keys[2 * n], key, b[0], b[1]);
                multiply<ELEMENT>(with_keys[2 * n + 1], key, b[2], b[3]);
                multiply<ELEMENT>(with_queries[2 * n], query, b[0], b[1]);
                multiply<ELEMENT>(with_queries[2 * n + 1], query, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        const unsigned row = warp * 16 + lane / 4 + half * 8;
        const float sum = sums[row], beta = betas[row] * key_factors[row], query = query_factors[row];
#pragma unroll
        for (unsigned n = 0; n < CHUNK / 8; ++n) {
            float scores[2];
#pragma unroll
            for (unsigned i = 0; i < 2; ++i) {
                const unsigned column = n * 8 + lane % 4 * 2 + i;
                // Above the diagonal the exponent would be positive.
                const float factor = column <= row ? expf(sum - sums[column]) * key_factors[column] : 0.0f;
                lower[row * LOWER_ROW + column] = beta * factor * with_keys[n][half * 2 + i];
                scores[i] = query * factor * with_queries[n][half * 2 + i];
            }
            store_pair(results + A_AT + row * CHUNK + n * 8 + lane % 4 * 2, scores[0], scores[1]);
        }
    }
    __syncthreads();
    copy_rows<VALUE_DIM>(other, rows + 2 * key_width + head * VALUE_DIM, width, run.part);
    copies_issued();
    if (token < CHUNK) {
        const unsigned column = token;
        const float for_value = betas[column], for_key = for_value * expf(sums[column]) * key_factors[column];
        float x[CHUNK];
#pragma unroll
        for (unsigned row = 0; row < CHUNK; ++row) {
            float parts[4] = {};
#pragma unroll
            for (unsigned i = 0; i < row; i += 4) {
                const float4 four = *reinterpret_cast<const float4*>(lower + row * LOWER_ROW + i);
                const float weights[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (unsigned part = 0; part < 4; ++part) {
                    if (i + part < row) {
                        parts[part] = fmaf(weights[part], x[i + part], parts[part]);
                    }
                }
            }
            x[row] = (row == column ? 1.0f : 0.0f) - (parts[0] + parts[1] + (parts[2] + parts[3]));
            for_values[row * CHUNK_ROW + column] = from_f32<ELEMENT>(x[row] * for_value);
            for_keys[row * CHUNK_ROW + column] = from_f32<ELEMENT>(x[row] * for_key);
        }
    }
    wait_copies<0>();
    __syncthreads();
    multiply_lower<KEY_DIM>(results, for_keys, keys, KEY_ROW);
    multiply_lower<VALUE_DIM>(results + U_AT, for_values, other, VALUE_ROW);
}
