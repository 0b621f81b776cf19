// The first kernel of `sample`: for each chunk c of 512 tokens of each row x of logits [requests, vocab]
//   model_max[req][c] = draw_max[req][c] = max x
//   model_sum[req][c] = sum e^(x - max)
//   draw_sum[req][c]  = sum e^((x - max) / temperature)     (requests that draw at random)
// Grid: requests * groups blocks, a group being 8 chunks, one a warp.
// Limited by bytes: each logit is read once, 4 bytes for about 12 instructions (two exponentials among them), so that
// 2,560 rows of 128,256 cannot take less than 0.31 ms at 4.3 TB/s.
#include "sampling/sample.cuh"

constexpr u32 WARPS = 8;

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    sample_chunks(const float* __restrict__ logits, u32 vocab, u32 chunks, const Header* __restrict__ header,
                  float* __restrict__ model_max, float* __restrict__ model_sum, float* __restrict__ draw_max,
                  float* __restrict__ draw_sum) {
    u32 groups = (chunks + WARPS - 1) / WARPS;
    u32 req = blockIdx.x / groups;
    u32 c = blockIdx.x % groups * WARPS + threadIdx.x / WARP;
    if (c >= chunks) {
        return;
    }
    const Request& request = reinterpret_cast<const Request*>(header + 1)[req];
    Chunk chunk(logits + static_cast<u64>(req) * vocab, vocab, c);
    float max = chunk.max();
    float sum = chunk.sum(max, rate_of(1.0f));
    float sum_to_draw = sum;
    if (request.pick == RANDOM && request.temperature != 1.0f) {
        sum_to_draw = chunk.sum(max, rate_of(request.temperature));
    }
    if (lane() == 0) {
        u64 at = static_cast<u64>(req) * chunks + c;
        model_max[at] = max;
        model_sum[at] = sum;
        draw_max[at] = max;
        draw_sum[at] = sum_to_draw;
    }
}
