// The chunked delta rule's walk along a run (delta_rule/chunk.cuh): D, O and the state, chunk after chunk.
//
// Shapes: products as chunk_products leaves them; out, qkv, matrices and runs as in delta_rule.cu.
// Grid: one block of 128 threads for each run, value head and strip of STRIP columns of the state, in this order of x.
// A warp has 16 tokens of the chunk, and a quarter of the state's rows, f32 in registers from its one load to its one
// store; a copy of the state, rounded to ELEMENT, is in shared memory as an operand.
// Limit: the copies of operands from the second-level cache, which wide strips halve, and tensor cores. Where STAGES is
// 2 a chunk's operands are copied while the one before is computed.
// Defines: ELEMENT, KEY_DIM, VALUE_DIM as in chunk_products.cu, STAGES (1 or 2), STRIP (32 or 64).
#include "delta_rule/chunk.cuh"

constexpr unsigned STRIPS = VALUE_DIM / STRIP, STRIP_ROW = STRIP + 8;
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
                 float* matrices, const Run* __restrict__ runs, unsigned key_heads, unsigned value_heads) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic);
    const unsigned strip = blockIdx.x % STRIPS * STRIP, head = blockIdx.x / STRIPS % value_heads;
    const Run run = runs[blockIdx.x / STRIPS / value_heads];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, across = lane % 4 * 2;
    const unsigned long long key_width = key_heads * KEY_DIM, value_width = value_heads * VALUE_DIM, width = 2 * key_width + value_width;
    const unsigned key_head = head / (value_heads / key_heads), chunks = (run.rows + CHUNK - 1) / CHUNK;
    const auto product = [&](unsigned chunk) {
        return reinterpret_cast<const ELEMENT*>(products + (static_cast<unsigned long long>(run.segment + chunk) * value_heads + head) * PRODUCT_BYTES);
    };
    const auto copy = [&](unsigned chunk) {
        Stage& stage = shared.stages[chunk % STAGES];
        const ELEMENT* rows = qkv + (run.first + chunk * CHUNK) * width + key_head * KEY_DIM;
        const unsigned count = min(CHUNK, run.rows - chunk * CHUNK);
        copy_rows<KEY_DIM>(stage.w, product(chunk), KEY_DIM, CHUNK);
        copy_rows<KEY_DIM>(stage.queries, rows, width, count);
        copy_rows<KEY_DIM>(stage.keys, rows + key_width, width, count);
        copy_rows<CHUNK>(stage.scores, product(chunk) + A_AT, CHUNK, CHUNK);
    };
    // Where the warp's rows of the state begin, and the lane's place in a slot.
    const unsigned own = warp * (KEY_DIM / 4);
    const unsigned long long place = (own + lane / 4) * static_cast<unsigned long long>(VALUE_DIM) + strip + across;
    const auto matrix = [&](unsigned slot) {
        return matrices + (static_cast<unsigned long long>(slot) * value_heads + head) * (KEY_DIM * VALUE_DIM) + place;
    };

    float state[OWN][STRIP / 8][4] = {};
    if (run.from != NO_STATE) {
        const float* from = matrix(run.from);
#pragma unroll
        for (unsigned m = 0; m < OWN; ++m) {
#pragma unroll
            for (unsigned n = 0; n < STRIP / 8; ++n) {
#pragma unroll
                for (unsigned half = 0; half < 2; ++half) {
                    const float2 two = *reinterpret_cast<const float2*>(from + (m * 16 + half * 8) * VALUE_DIM + n * 8);
                    state[m][n][half * 2] = two.x;
                    state[m][n][half * 2 + 1] = two.y;
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
        const Stage& stage = shared.stages[chunk % STAGES];
        // What is not copied to shared memory: asked for before the others wait.
        const unsigned row = warp * 16 + lane / 4;
        const float* factors = reinterpret_cast<const float*>(product(chunk) + FACTORS_AT);
        const float decay = factors[2 * CHUNK];
        const float of_query[2] = {factors[row], factors[row + 8]};
        const float of_key[2] = {factors[CHUNK + row], factors[CHUNK + row + 8]};
        unsigned u[STRIP / 8][2];
#pragma unroll
        for (unsigned n = 0; n < STRIP / 8; ++n) {
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                u[n][half] = *reinterpret_cast<const unsigned*>(product(chunk) + U_AT + (row + half * 8) * VALUE_DIM + strip + n * 8 + across);
            }
        }
        // The state as an operand. The one before has been read: all warps have had its changes.
#pragma unroll
        for (unsigned m = 0; m < OWN; ++m) {
#pragma unroll
            for (unsigned n = 0; n < STRIP / 8; ++n) {
                ELEMENT* to = shared.state + (own + m * 16 + lane / 4) * STRIP_ROW + n * 8 + across;
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

        float held[STRIP / 8][4] = {}, read[STRIP / 8][4] = {};
#pragma unroll
        for (unsigned k = 0; k < KEY_DIM; k += 16) {
            unsigned w[4], query[4];
            load_left(w, stage.w, KEY_ROW, warp * 16, k);
            load_left(query, stage.queries, KEY_ROW, warp * 16, k);
#pragma unroll
            for (unsigned n = 0; n < STRIP / 8; n += 2) {
                unsigned b[4];
                load_right(b, shared.state, STRIP_ROW, n * 8, k);
                multiply<ELEMENT>(held[n], w, b[0], b[1]);
                multiply<ELEMENT>(held[n + 1], w, b[2], b[3]);
                multiply<ELEMENT>(read[n], query, b[0], b[1]);
                multiply<ELEMENT>(read[n + 1], query, b[2], b[3]);
            }
        }
#pragma unroll
        for (unsigned n = 0; n < STRIP / 8; ++n) {
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const ELEMENT low = {static_cast<unsigned short>(u[n][half])}, high = {static_cast<unsigned short>(u[n][half] >> 16)};
                const float changes[2] = {to_f32(low) - held[n][half * 2], to_f32(high) - held[n][half * 2 + 1]};
                const unsigned at = (row + half * 8) * STRIP_ROW + n * 8 + across;
                store_pair(shared.changes + at, changes[0], changes[1]);
                store_pair(shared.scaled + at, of_key[half] * changes[0], of_key[half] * changes[1]);
                read[n][half * 2] *= of_query[half];
                read[n][half * 2 + 1] *= of_query[half];
            }
        }
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < CHUNK / 16; ++k) {
            if (k <= warp) {
                unsigned scores[4];
                load_left(scores, stage.scores, CHUNK_ROW, warp * 16, k * 16);
#pragma unroll
                for (unsigned n = 0; n < STRIP / 8; n += 2) {
                    unsigned b[4];
                    load_right(b, shared.changes, STRIP_ROW, n * 8, k * 16);
                    multiply<ELEMENT>(read[n], scores, b[0], b[1]);
                    multiply<ELEMENT>(read[n + 1], scores, b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const unsigned token = chunk * CHUNK + row + half * 8;
            if (token < run.rows) {
                ELEMENT* to = out + (run.first + token) * value_width + head * VALUE_DIM + strip + across;
#pragma unroll
                for (unsigned n = 0; n < STRIP / 8; ++n) {
                    store_pair(to + n * 8, read[n][half * 2], read[n][half * 2 + 1]);
                }
            }
        }
#pragma unroll
        for (unsigned m = 0; m < OWN; ++m) {
#pragma unroll
            for (unsigned n = 0; n < STRIP / 8; ++n) {
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
            for (unsigned n = 0; n < STRIP / 8; n += 2) {
                unsigned b[4];
                load_right(b, shared.scaled, STRIP_ROW, n * 8, k);
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
    float* to = matrix(run.to);
#pragma unroll
    for (unsigned m = 0; m < OWN; ++m) {
#pragma unroll
        for (unsigned n = 0; n < STRIP / 8; ++n) {
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const float2 two = {state[m][n][half * 2], state[m][n][half * 2 + 1]};
                *reinterpret_cast<float2*>(to + (m * 16 + half * 8) * VALUE_DIM + n * 8) = two;
            }
        }
    }
}
