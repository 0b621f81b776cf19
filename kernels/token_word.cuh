// The input token of a row as one word, written by `token_word` in crates/cuda/src/step/token_word.rs.
#pragma once

// Bit set: the other bits are the index of a request of the previous step, whose token is in `sampled_tokens`. Bit
// clear: the other bits are the token.
constexpr unsigned SAMPLED = 1u << 31;

__device__ __forceinline__ unsigned token_of(unsigned word, const unsigned* sampled_tokens) {
    return word & SAMPLED ? sampled_tokens[word & ~SAMPLED] : word;
}
