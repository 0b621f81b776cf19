// The chunked delta rule's walk along a run (delta_rule/chunk.cuh): D, O and the state, chunk after chunk.
//
// Shapes: products as chunk_products leaves them; out, qkv, matrices and runs as in delta_rule.cu.
// Grid: one block for each run, value head and strip of STRIP columns of the state, in this order of x. Four warps
// share 64 columns, or all where a strip has fewer. Each has 16 tokens of the chunk, and a quarter of the state's rows,
// f32 in registers from its one load to its one store (of STATE, to which it is rounded there); a copy of the state,
// rounded to ELEMENT, is in shared memory as an operand.
// Limit: the copies of a chunk's operands to shared memory and the loads from there, of which wide strips need fewer,
// and tensor cores. Where STAGES is 2 the operands are copied while the chunk before is computed.
// Defines: ELEMENT, KEY_DIM, VALUE_DIM as in chunk_products.cu, STATE (f32, bf16), STAGES (1 or 2), STRIP (32, 64 or
// 128).
#include "delta_rule/chunk.cuh"

constexpr unsigned STRIPS = VALUE_DIM / STRIP, STRIP_ROW = STRIP + 8;
// Columns that four warps share.
constexpr unsigned COLUMNS = STRIP < 64 ? STRIP : 64, BLOCK_THREADS = 128 * (STRIP / COLUMNS);
// Blocks of 16 rows of the state that a warp has.
constexpr unsigned OWN = KEY_DIM / 64;

// The operands of a chunk.
struct Stage {
    ELEMENT w[CHUNK * KEY_ROW], queries[CHUNK * KEY_ROW], keys[CHUNK * KEY_ROW], scores[CHUNK * CHUNK_ROW];
};

struct Shared {
    Stage stages[STAGES];
    ELEMENT state[KEY_DIM * STRIP_ROW], changes[CHUNK * STRIP_ROW], scaled[CHUNK * STRIP_ROW];
};

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    chunk_states(ELEMENT* __restrict__ out, const unsigned char* __restrict__ products, const ELEMENT* __restrict__ qkv,
                 STATE* matrices, const Run* __restrict__ runs, unsigned key_heads, unsigned value_heads) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic);
    const unsigned group = threadIdx.x / 128 * COLUMNS, strip = blockIdx.x % STRIPS * STRIP + group;
    const unsigned head = blockIdx.x / STRIPS % value_heads;
    const Run run = runs[blockIdx.x / STRIPS / value_heads];
    const unsigned warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, across = lane % 4 * 2;
    const unsigned long long key_width = key_heads * KEY_DIM, value_width = value_heads * VALUE_DIM;
    const unsigned long long width = 2 * key_width + value_width;
    const unsigned key_head = head / (value_heads / key_heads), chunks = (run.rows + CHUNK - 1) / CHUNK;
    const auto product = [&](unsigned chunk) {
        const unsigned long long number = static_cast<unsigned long long>(run.segment + chunk) * value_heads + head;
        return reinterpret_cast<const ELEMENT*>(products + number * PRODUCT_BYTES);
    };
    const auto copy = [&](unsigned chunk) {
        Stage& stage = shared.stages[chunk % STAGES];
        const ELEMENT* rows = qkv + (run.first + chunk * CHUNK) * width + key_head * KEY_DIM;
        const unsigned count = min(CHUNK, run.rows - chunk * CHUNK);
        copy_rows<KEY_DIM, BLOCK_THREADS>(stage.w, product(chunk), KEY_DIM, CHUNK);
        copy_rows<KEY_DIM, BLOCK_THREADS>(stage.queries, rows, width, count);
        copy_rows<KEY_DIM, BLOCK_THREADS>(stage.keys, rows + key_width, width, count);
        copy_rows<CHUNK, BLOCK_THREADS>(stage.scores, product(chunk) + A_AT, CHUNK, CHUNK);
    };
    // Where the warp's rows of the state begin, and the lane's place in a slot.
    const unsigned own = warp * (KEY_DIM / 4);
    const unsigned long long place = (own + lane / 4) * static_cast<unsigned long long>(VALUE_DIM) + strip + across;
    // What brings the state in registers back to its own size, where operands are narrow.
    float scale = 1.0f;
    __shared__ float most_of_warps[BLOCK_THREADS / 32];
    const auto matrix = [&](unsigned slot) {
        return matrices + (static_cast<unsigned long long>(slot) * value_heads + head) * (KEY_DIM * VALUE_DIM) + place;
    };

    float state[OWN][COLUMNS / 8][4] = {};
    if (run.from != NO_STATE) {
        const STATE* from = matrix(run.from);
#pragma unroll
        for (unsigned m = 0; m < OWN; ++m) {
#pragma unroll
            for (unsigned n = 0; n < COLUMNS / 8; ++n) {
#pragma unroll
                for (unsigned half = 0; half < 2; ++half) {
                    const Lanes<float, 2> two = load<2>(from + (m * 16 + half * 8) * VALUE_DIM + n * 8);
                    state[m][n][half * 2] = two.at[0];
                    state[m][n][half * 2 + 1] = two.at[1];
                }
            }
        }
    }
    if (STAGES > 1) {
        copy(0);
        copies_issued();
    }
#pragma unroll 1
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
        Stage& stage = shared.stages[chunk % STAGES];
        // What is not copied to shared memory: asked for before the others wait.
        const unsigned row = warp * 16 + lane / 4;
        const float* factors = reinterpret_cast<const float*>(product(chunk) + FACTORS_AT);
        const float decay = factors[OF_STATE];
        const float of_query[2] = {factors[row], factors[row + 8]};
        const float of_key[2] = {factors[OF_KEYS + row], factors[OF_KEYS + row + 8]};
        unsigned u[COLUMNS / 8][2];
#pragma unroll
        for (unsigned n = 0; n < COLUMNS / 8; ++n) {
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const ELEMENT* from = product(chunk) + U_AT + (row + half * 8) * VALUE_DIM + strip + n * 8 + across;
                u[n][half] = *reinterpret_cast<const unsigned*>(from);
            }
        }
        // Brings the state below 2^10 and U below 2^14: then a change is below 2^15, for |W_t| <= 1 and sqrt(KEY_DIM) <
        // 12, and twice that, which a factor of a key may be, is below 2^16.
        float of_values[COLUMNS / 8];
        if constexpr (IS_NARROW<ELEMENT>) {
            float most = 0.0f;
#pragma unroll
            for (unsigned m = 0; m < OWN; ++m) {
#pragma unroll
                for (unsigned n = 0; n < COLUMNS / 8; ++n) {
                    for (float element : state[m][n]) {
                        most = fmaxf(most, fabsf(element));
                    }
                }
            }
            most = warp_most(most) * scale;
            if (lane == 0) {
                most_of_warps[threadIdx.x / 32] = most;
            }
            __syncthreads();
            for (float of_warp : most_of_warps) {
                most = fmaxf(most, of_warp);
            }
#pragma unroll
            for (unsigned n = 0; n < COLUMNS / 8; ++n) {
                of_values[n] = factors[OF_VALUES + strip / 8 + n];
                most = fmaxf(most, of_values[n] * 1024.0f);
            }
            const Power power = power_below<10>(most);
#pragma unroll
            for (unsigned n = 0; n < COLUMNS / 8; ++n) {
                of_values[n] *= power.to;
            }
            const float ratio = power.to * scale;
#pragma unroll
            for (unsigned m = 0; m < OWN; ++m) {
#pragma unroll
                for (unsigned n = 0; n < COLUMNS / 8; ++n) {
                    for (float& element : state[m][n]) {
                        element *= ratio;
                    }
                }
            }
            scale = power.back;
        }
        // The state as an operand. The one before has been read: all warps have had its changes.
#pragma unroll
        for (unsigned m = 0; m < OWN; ++m) {
#pragma unroll
            for (unsigned n = 0; n < COLUMNS / 8; ++n) {
                ELEMENT* to = shared.state + (own + m * 16 + lane / 4) * STRIP_ROW + group + n * 8 + across;
                store_pair(to, state[m][n][0], state[m][n][1]);
                store_pair(to + 8 * STRIP_ROW, state[m][n][2], state[m][n][3]);
            }
        }
        if (STAGES > 1) {
            wait_copies<0>();
            __syncthreads();
            if (chunk + 1 < chunks) {
                copy(chunk + 1);
            }
            copies_issued();
        } else {
            __syncthreads();
            copy(chunk);
            copies_issued();
            wait_copies<0>();
            __syncthreads();
        }

        float held[COLUMNS / 8][4] = {}, read[COLUMNS / 8][4] = {};
#pragma unroll
        for (unsigned k = 0; k < KEY_DIM; k += 16) {
            unsigned w[4], query[4];
            load_left(w, stage.w, KEY_ROW, warp * 16, k);
            load_left(query, stage.queries, KEY_ROW, warp * 16, k);
#pragma unroll
            for (unsigned n = 0; n < COLUMNS / 8; n += 2) {
                unsigned b[4];
                load_right(b, shared.state, STRIP_ROW, group + n * 8, k);
                multiply<ELEMENT>(held[n], w, b[0], b[1]);
                multiply<ELEMENT>(held[n + 1], w, b[2], b[3]);
                multiply<ELEMENT>(read[n], query, b[0], b[1]);
                multiply<ELEMENT>(read[n + 1], query, b[2], b[3]);
            }
        }
#pragma unroll
        for (unsigned n = 0; n < COLUMNS / 8; ++n) {
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const ELEMENT low = {static_cast<unsigned short>(u[n][half])};
                const ELEMENT high = {static_cast<unsigned short>(u[n][half] >> 16)};
                float changes[2] = {to_f32(low), to_f32(high)};
#pragma unroll
                for (unsigned i = 0; i < 2; ++i) {
                    if constexpr (IS_NARROW<ELEMENT>) {
                        changes[i] *= of_values[n];
                    }
                    changes[i] -= held[n][half * 2 + i];
                }
                const unsigned at = (row + half * 8) * STRIP_ROW + group + n * 8 + across;
                store_pair(shared.changes + at, changes[0], changes[1]);
                store_pair(shared.scaled + at, of_key[half] * changes[0], of_key[half] * changes[1]);
                read[n][half * 2] *= of_query[half];
                read[n][half * 2 + 1] *= of_query[half];
            }
        }
        if constexpr (IS_NARROW<ELEMENT>) {
            // What was taken out of the factors of keys.
            for (unsigned i = threadIdx.x; i < CHUNK * KEY_DIM / 8; i += BLOCK_THREADS) {
                const unsigned token = i / (KEY_DIM / 8);
                ELEMENT* key = stage.keys + token * KEY_ROW + i % (KEY_DIM / 8) * 8;
                Lanes<float, 8> x = load<8>(key);
#pragma unroll
                for (float& element : x.at) {
                    element *= factors[POWERS + token];
                }
                store<8>(key, x);
            }
        }
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < CHUNK / 16; ++k) {
            if (k <= warp) {
                unsigned scores[4];
                load_left(scores, stage.scores, CHUNK_ROW, warp * 16, k * 16);
#pragma unroll
                for (unsigned n = 0; n < COLUMNS / 8; n += 2) {
                    unsigned b[4];
                    load_right(b, shared.changes, STRIP_ROW, group + n * 8, k * 16);
                    multiply<ELEMENT>(read[n], scores, b[0], b[1]);
                    multiply<ELEMENT>(read[n + 1], scores, b[2], b[3]);
                }
            }
        }
        // Through shared memory, where only this warp writes its rows of the state, and all have read it.
        ELEMENT* results = shared.state + own * STRIP_ROW + group;
#pragma unroll
        for (unsigned n = 0; n < COLUMNS / 8; ++n) {
            ELEMENT* to = results + lane / 4 * STRIP_ROW + n * 8 + across;
            store_pair(to, read[n][0] * scale, read[n][1] * scale);
            store_pair(to + 8 * STRIP_ROW, read[n][2] * scale, read[n][3] * scale);
        }
        __syncwarp();
#pragma unroll
        for (unsigned i = lane; i < 16 * (COLUMNS / 8); i += 32) {
            const unsigned within = i / (COLUMNS / 8), column = i % (COLUMNS / 8) * 8;
            const unsigned token = chunk * CHUNK + warp * 16 + within;
            if (token < run.rows) {
                ELEMENT* to = out + (run.first + token) * value_width + head * VALUE_DIM + strip + column;
                *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(results + within * STRIP_ROW + column);
            }
        }
        __syncwarp();
#pragma unroll
        for (unsigned m = 0; m < OWN; ++m) {
#pragma unroll
            for (unsigned n = 0; n < COLUMNS / 8; ++n) {
#pragma unroll
                for (float& element : state[m][n]) {
                    element *= decay;
                }
            }
        }
#pragma unroll
        for (unsigned k = 0; k < CHUNK; k += 16) {
            unsigned keys[OWN][4];
#pragma unroll
            for (unsigned m = 0; m < OWN; ++m) {
                load_left_transposed(keys[m], stage.keys, KEY_ROW, own + m * 16, k);
            }
#pragma unroll
            for (unsigned n = 0; n < COLUMNS / 8; n += 2) {
                unsigned b[4];
                load_right(b, shared.scaled, STRIP_ROW, group + n * 8, k);
#pragma unroll
                for (unsigned m = 0; m < OWN; ++m) {
                    multiply<ELEMENT>(state[m][n], keys[m], b[0], b[1]);
                    multiply<ELEMENT>(state[m][n + 1], keys[m], b[2], b[3]);
                }
            }
        }
    }
    if (run.to == NO_STATE) {
        return;
    }
    STATE* to = matrix(run.to);
#pragma unroll
    for (unsigned m = 0; m < OWN; ++m) {
#pragma unroll
        for (unsigned n = 0; n < COLUMNS / 8; ++n) {
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const Lanes<float, 2> two = {state[m][n][half * 2] * scale, state[m][n][half * 2 + 1] * scale};
                store<2>(to + (m * 16 + half * 8) * VALUE_DIM + n * 8, two);
            }
        }
    }
}
