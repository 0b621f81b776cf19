// Copies rounded rows to the places that experts have for them: codes and scales as round_rows would make them of the
// rows that `rows` lists.
//
// Shapes: to codes [places], rows `stride` bytes apart, a multiple of 16; to_scales f32 [places], or with `blocks` of
// inputs [blocks] rows of places, `to_apart` elements from each other; codes and scales of rows likewise, `apart`
// elements from each other; rows u32 [places].
// Grid: a warp for each place, WARPS to a block.
// Limit: bandwidth, a byte read per row and one written per place for each input.
// Definition: `Backend::expert_linear` with quantised matrices; on the CPU, `round_row` of
// crates/backend/src/quantised/rounding.rs.

constexpr unsigned WARPS = 4, TOGETHER = 4;

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    gather_rounded(uint4* __restrict__ to, float* __restrict__ to_scales, const uint4* __restrict__ codes,
                   const float* __restrict__ scales, const unsigned* __restrict__ rows, unsigned places,
                   unsigned stride, unsigned blocks, unsigned to_apart, unsigned apart) {
    const unsigned lane = threadIdx.x % 32, chunks = stride / sizeof(uint4);
    const unsigned long long place = blockIdx.x * WARPS + threadIdx.x / 32;
    if (place >= places) {
        return;
    }
    const unsigned long long row = rows[place];
    const uint4* from = codes + row * chunks;
    to += place * chunks;
#pragma unroll 1
    for (unsigned first = lane; first < chunks; first += TOGETHER * 32) {
        uint4 held[TOGETHER];
        // Behind the row's end its last chunk is copied again.
#pragma unroll
        for (unsigned k = 0; k < TOGETHER; ++k) {
            held[k] = from[min(first + k * 32, chunks - 1)];
        }
#pragma unroll
        for (unsigned k = 0; k < TOGETHER; ++k) {
            to[min(first + k * 32, chunks - 1)] = held[k];
        }
    }
    for (unsigned block = lane; block < blocks; block += 32) {
        to_scales[static_cast<unsigned long long>(block) * to_apart + place] =
            scales[static_cast<unsigned long long>(block) * apart + row];
    }
}
