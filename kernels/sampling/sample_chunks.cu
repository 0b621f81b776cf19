// The first kernel of `sample`: for each chunk c of 512 tokens of each row x of logits [requests, vocab], and of y,
// which is x with -inf for all tokens that are not allowed
//   model_max[i][c] = max x,   model_sum[i][c] = sum e^(x - max x)
//   sample_max[i][c] = max y,  sample_sum[i][c] = sum e^((y - max y) / temperature)
// and, for requests that return the entropy, or the distribution that their token is drawn from,
//   model_products[i][c] = sum e^(x - max x) (x - max x),   sample_min[i][c] = min y
// Grid: requests * groups blocks; a group is 8 chunks, one per warp.
// Limit: bandwidth. Each logit is read once, 4 bytes for about 12 instructions (two exponentials among them); 2,560
// rows of 128,256 take at least 0.31 ms at 4.3 TB/s. A set of allowed tokens is one bit beside 32 of a logit, read once
// for each of its rows. The entropy is one exponential more for each logit, no byte.
// Definition: `Backend::sample`; on the CPU, crates/cpu/src/sampling/clear.rs.
#include "sampling/sample.cuh"

constexpr u32 WARPS = 8;

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    sample_chunks(const float* __restrict__ logits, u32 vocab, u32 chunks, const Header* __restrict__ header,
                  const u32* __restrict__ sets, float* __restrict__ model_max, float* __restrict__ model_sum,
                  float* __restrict__ model_products, float* __restrict__ sample_max, float* __restrict__ sample_sum,
                  float* __restrict__ sample_min) {
    u32 groups = (chunks + WARPS - 1) / WARPS;
    u32 index = blockIdx.x / groups;
    u32 c = blockIdx.x % groups * WARPS + threadIdx.x / WARP;
    if (c >= chunks) {
        return;
    }
    const Request& request = reinterpret_cast<const Request*>(header + 1)[index];
    Chunk chunk(logits + static_cast<u64>(index) * vocab, vocab, c);
    float max = chunk.max();
    u64 at = static_cast<u64>(index) * chunks + c;
    float sum;
    if (request.records & RECORDS_ENTROPY) {
        float products;
        sum = chunk.sum_and_products(max, products);
        if (lane() == 0) {
            model_products[at] = products;
        }
    } else {
        sum = chunk.sum(max, rate_of(1.0f));
    }
    float sampling_max = max;
    float sampling_sum = sum;
    const u32* allowed = allowed_of(request, sets, chunks);
    if (allowed != nullptr) {
        chunk.keep(allowed, c);
        sampling_max = chunk.max();
    }
    if (allowed != nullptr || request.temperature != 1.0f) {
        sampling_sum = chunk.sum(sampling_max, rate_of(request.temperature));
    }
    if (returns_drawn(request)) {
        float min = chunk.min();
        if (lane() == 0) {
            sample_min[at] = min;
        }
    }
    if (lane() == 0) {
        model_max[at] = max;
        model_sum[at] = sum;
        sample_max[at] = sampling_max;
        sample_sum[at] = sampling_sum;
    }
}
