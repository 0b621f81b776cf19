// The first of the two kernels of `sample`: for each chunk c of 512 tokens of each row of logits [asks, vocab]
//   maxima[ask][c]     = max x
//   model_sums[ask][c] = sum e^(x - max)
//   draw_sums[ask][c]  = sum e^((x - max) / temperature)     (rows that draw at random)
// and newest[ask], the token that the step before drew for the ask's branch: copied before `sample_draw` draws the next ones.
// Grid: asks * groups blocks, a group being 8 chunks, one a warp. Nothing is summed in an order that timing decides.
// Limited by bytes: each logit is read once, 4 bytes for about 12 instructions (two exponentials among them), so that 2,560
// rows of 128,256 cannot take less than 0.31 ms at 4.3 TB/s.
#include "sample.cuh"

constexpr u32 WARPS = 8;

extern "C" __global__ void __launch_bounds__(WARPS* WARP) sample_chunks(
    const float* __restrict__ logits, u32 vocab, u32 chunks, const Header* __restrict__ header,
    const u32* __restrict__ drawn, float* __restrict__ maxima, float* __restrict__ model_sums,
    float* __restrict__ draw_sums, u32* __restrict__ newest) {
    u32 groups = (chunks + WARPS - 1) / WARPS;
    u32 ask = blockIdx.x / groups;
    u32 group = blockIdx.x % groups;
    const Request& request = reinterpret_cast<const Request*>(header + 1)[ask];
    if (group == 0 && threadIdx.x == 0 && request.unseen != NONE) {
        newest[ask] = drawn[request.unseen];
    }
    u32 c = group * WARPS + threadIdx.x / WARP;
    if (c >= chunks) {
        return;
    }
    Chunk chunk(logits + static_cast<u64>(ask) * vocab, vocab, c);
    float max = chunk.max();
    float model_sum = chunk.sum(max, rate_of(1.0f));
    float draw_sum = model_sum;
    if (request.pick == RANDOM && request.temperature != 1.0f) {
        draw_sum = chunk.sum(max, rate_of(request.temperature));
    }
    if (threadIdx.x % WARP == 0) {
        u64 at = static_cast<u64>(ask) * chunks + c;
        maxima[at] = max;
        model_sums[at] = model_sum;
        draw_sums[at] = draw_sum;
    }
}
