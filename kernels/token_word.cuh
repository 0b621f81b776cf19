// Where a row's input token comes from, as one word; `token_word` in src/backend/cuda/token_word.rs writes it.
#pragma once

// Clear: the other bits are the token. Set: they are the index of a request of the step before, whose token lies in
// `drawn`.
constexpr unsigned DRAWN = 1u << 31;

__device__ __forceinline__ unsigned token_of(unsigned word, const unsigned* drawn) {
    return word & DRAWN ? drawn[word & ~DRAWN] : word;
}
