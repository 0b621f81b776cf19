// What the sampling kernels share: requests as the host packs them (crates/cuda/src/sampling/requests.rs mirrors each
// struct), comparing and weighing of scores, and chunks of the vocabulary, one per warp. The definition is
// crates/cpu/src/sampling/clear.rs.
#pragma once

using u32 = unsigned;
using u64 = unsigned long long;

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffff;
// Tokens of a chunk. One warp takes its maximum and sums.
constexpr u32 CHUNK = 512;
constexpr u32 PER_LANE = CHUNK / WARP;

// Maximum tokens that a request counts on the device between two loads of requests: MOST_COUNTED of crates/backend.
constexpr u32 MOST_COUNTED = 128;

constexpr u32 GREEDY = 0;
constexpr u32 RANDOM = 1;

// What a request returns beside its token, bits of `Request::records`: its probability under the distribution that it
// is drawn from, and what that distribution keeps; the ids that it keeps; the model's entropy. With LISTS_DRAWN the
// rank and the most likely tokens are those of that distribution, not the model's.
constexpr u32 RECORDS_DRAWN = 1;
constexpr u32 RECORDS_IDS = 2;
constexpr u32 RECORDS_ENTROPY = 4;
constexpr u32 LISTS_DRAWN = 8;

// The most kept ids that a request returns: MOST_KEPT of crates/backend.
constexpr u32 MOST_KEPT = 1024;

// Replaces an index, a count or a token: there is no unseen token, neither a rank nor likely tokens are returned, all
// tokens are allowed, or none was sampled.
constexpr u32 NONE = 0xffffffff;
// Replaces a token id or a count of equal scores: no bound.
constexpr u32 ALL = 0xffffffff;

// Followed by one Request per request of the step, then by the lists of all requests.
struct Header {
    u32 top_width;  // places per request for the most likely tokens in the results
    u32 has_records;  // 1 if the results hold a Record per request, or else 0
    u32 ids_width;  // places per request for kept ids in the results
    u32 padding;
};

struct Request {
    u32 pick;  // GREEDY, RANDOM, or else the token `given`
    u32 given;
    float temperature;
    u32 top_k;  // at least 1
    float top_p;
    float min_p;
    float repetition;
    float frequency;
    float presence;
    u32 unseen;  // index into the tokens sampled by the previous step, or NONE; updated by sample_count
    u32 top;  // how many of the most likely tokens to return, at most BINS of sampling/select.cuh, or NONE
    u32 biases;  // lengths of the three lists
    u32 seens;
    u32 bans;
    u32 first;  // 4-byte words from the header to the lists, stored consecutively in this order
    u32 counted;  // tokens sampled since the requests were loaded, listed in all_counted; updated by sample_count
    u32 allowed;  // place of the set of tokens that may be sampled among all sets, or NONE
    u32 records;  // bits: RECORDS_DRAWN and its neighbours; LISTS_DRAWN only with `top`
    u32 confidence;  // how many of the most likely tokens the confidence is of, at most BINS; 0: it is not returned
};

// Lists are sorted by token. `was` saves the model's logit while the edited score replaces it.
struct Bias {
    u32 token;
    float bias;
    float was;
};

struct Seen {
    u32 token;
    u32 sampled;
    u32 in_prompt;
    float was;
};

struct Ban {
    u32 token;
    float was;
};

// What a request returns of the token sampled for it.
struct SampledToken {
    u32 token;  // NONE if all scores are -inf
    float logprob;
    u32 rank;  // from 1; 0 if the request wants none
};

// One of the most likely tokens of a request.
struct LikelyToken {
    u32 token;
    float logprob;
};

// What a request with `records` or `confidence` returns beside its token. Fields that it does not ask for are not
// written.
struct Record {
    float logprob;  // of the token under the distribution that it is drawn from; -inf if that does not keep it
    u32 kept;
    float lowest;  // the smallest score that is kept; +inf if none is
    float entropy;
    float confidence;  // the mean log-probability of the most likely tokens, negated
};

// The results of all requests, one array after the other.
struct Results {
    SampledToken* tokens;  // [requests]
    LikelyToken* likely;  // [requests, top_width]
    Record* records;  // [requests] if the header has_records
    u32* ids;  // [requests, ids_width]

    __device__ __forceinline__ Results(SampledToken* all, const Header& header, u32 requests) {
        tokens = all;
        likely = reinterpret_cast<LikelyToken*>(tokens + requests);
        records = reinterpret_cast<Record*>(likely + static_cast<u64>(requests) * header.top_width);
        ids = reinterpret_cast<u32*>(records + static_cast<u64>(requests) * header.has_records);
    }
};

// Scores that may be sampled: keys above `key`, and those equal to it up to the token `last`.
struct Cut {
    u32 key;
    u32 last;
};

// The token sampled by the previous step, not yet known to the host, and its saved logit.
struct Newest {
    u32 token;
    float was;
};

__device__ __forceinline__ float minus_infinity() {
    return __uint_as_float(0xff800000);
}

__device__ __forceinline__ float infinity() {
    return __uint_as_float(0x7f800000);
}

__device__ __forceinline__ float largest_float() {
    return __uint_as_float(0x7f7fffff);
}

__device__ __forceinline__ u32 lane() {
    return threadIdx.x % WARP;
}

// Maps NaN to -inf and +inf to the largest float.
__device__ __forceinline__ float safe(float logit) {
    return fminf(fmaxf(logit, minus_infinity()), largest_float());
}

// An integer that orders like the score; 0 and -0 are equal.
__device__ __forceinline__ u32 key_of(float score) {
    u32 bits = __float_as_uint(score + 0.0f);
    return bits ^ (bits >> 31 ? 0xffffffff : 0x80000000);
}

__device__ __forceinline__ float score_of(u32 key) {
    return __uint_as_float(key ^ (key >> 31 ? 0x80000000 : 0xffffffff));
}

// Log2 units per unit of score at `temperature`. Finite, so that a distance of 0 weighs 1 at any temperature.
__device__ __forceinline__ float rate_of(float temperature) {
    return fminf(1.44269504f / temperature, largest_float());
}

// e^((score - base) / temperature), within 2 ulp for an exponent that is rounded twice; 0 below 2^-126.
__device__ __forceinline__ float weight_of(float score, float base, float rate) {
    float weight;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"((score - base) * rate));
    return weight;
}

// Whether the distribution that the token is drawn from is needed after the token is sampled.
__device__ __forceinline__ bool returns_drawn(const Request& request) {
    return (request.records & (RECORDS_DRAWN | LISTS_DRAWN)) != 0;
}

// The words of a request's set of allowed tokens [chunks, PER_LANE], one bit for each token: bit l of word j of a chunk
// stands for its token 32 j + l. Null if all tokens are allowed. `sets` [places, chunks, PER_LANE].
__device__ __forceinline__ const u32* allowed_of(const Request& request, const u32* sets, u32 chunks) {
    return request.allowed == NONE ? nullptr : sets + static_cast<u64>(request.allowed) * chunks * PER_LANE;
}

// Scores of one chunk: lane `l` holds the tokens 32 j + l. Past the vocabulary scores are -inf.
struct Chunk {
    float score[PER_LANE];

    __device__ __forceinline__ Chunk(const float* logits, u32 vocab, u32 chunk) {
        u32 first = chunk * CHUNK + lane();
        if ((chunk + 1) * CHUNK <= vocab) {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; ++j) {
                score[j] = logits[first + j * WARP];
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; ++j) {
                u32 token = first + j * WARP;
                score[j] = token < vocab ? logits[token] : minus_infinity();
            }
        }
#pragma unroll
        for (u32 j = 0; j < PER_LANE; ++j) {
            score[j] = safe(score[j]);
        }
    }

    // Sets the scores of all tokens of chunk `chunk` that are not allowed to -inf. `allowed`: as `allowed_of` gives it.
    __device__ __forceinline__ void keep(const u32* allowed, u32 chunk) {
        if (allowed == nullptr) {
            return;
        }
        const u32* words = allowed + chunk * PER_LANE;
#pragma unroll
        for (u32 j = 0; j < PER_LANE; ++j) {
            score[j] = words[j] >> lane() & 1 ? score[j] : minus_infinity();
        }
    }

    __device__ __forceinline__ float max() const {
        float max = score[0];
#pragma unroll
        for (u32 j = 1; j < PER_LANE; ++j) {
            max = fmaxf(max, score[j]);
        }
        for (u32 step = WARP / 2; step > 0; step /= 2) {
            max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, step));
        }
        return max;
    }

    __device__ __forceinline__ float min() const {
        float min = score[0];
#pragma unroll
        for (u32 j = 1; j < PER_LANE; ++j) {
            min = fminf(min, score[j]);
        }
        for (u32 step = WARP / 2; step > 0; step /= 2) {
            min = fminf(min, __shfl_xor_sync(ALL_LANES, min, step));
        }
        return min;
    }

    // The sum of the partial sums of all lanes.
    static __device__ __forceinline__ float total(const float (&part)[4]) {
        double sum = static_cast<double>(part[0] + part[1]) + static_cast<double>(part[2] + part[3]);
        for (u32 step = WARP / 2; step > 0; step /= 2) {
            sum += __shfl_xor_sync(ALL_LANES, sum, step);
        }
        return static_cast<float>(sum);
    }

    // Sum of the weights, relative to `base`, of the scores for which kept(j) holds: four partial sums per lane in f32,
    // then f64.
    template <class Kept>
    __device__ __forceinline__ float sum(float base, float rate, Kept kept) const {
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (u32 j = 0; j < PER_LANE; ++j) {
            part[j % 4] += kept(j) ? weight_of(score[j], base, rate) : 0.0f;
        }
        return total(part);
    }

    // Sum over all scores, relative to their maximum; 0 if all are -inf.
    __device__ __forceinline__ float sum(float max, float rate) const {
        return sum(max == minus_infinity() ? 0.0f : max, rate, [](u32) { return true; });
    }

    // What `sum(max, rate_of(1))` gives, and in `products` the sum of e^(x - max) (x - max) over all scores x, as `sum`
    // adds; 0 if all are -inf.
    __device__ __forceinline__ float sum_and_products(float max, float& products) const {
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        float part_products[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        float base = max == minus_infinity() ? 0.0f : max;
#pragma unroll
        for (u32 j = 0; j < PER_LANE; ++j) {
            float weight = weight_of(score[j], base, rate_of(1.0f));
            part[j % 4] += weight;
            // The exponent of a weight of zero may be -inf.
            part_products[j % 4] += weight > 0.0f ? weight * (score[j] - base) : 0.0f;
        }
        products = total(part_products);
        return total(part);
    }
};
