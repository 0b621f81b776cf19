// Generates random numbers, rounds them to ELEMENT and makes e4m3 codes of them: code = number / scale, to nearest
// even, with the largest number of a row, or with BLOCKS of each 128 inputs of a row, as code 448. Bitwise equal to
// those of the CPU.
//
// Shapes: to e4m3 [R, cols], rows `stride` bytes apart, a multiple of 16; scales f32 [R], or with BLOCKS [ceil(cols /
// 128)] rows of R, `apart` elements from each other. Row r has the numbers from r * pitch on, `inner` of them; its
// codes are those of `cols` inputs from `first` on, with BLOCKS a multiple of 128. Grid: one block per row, of at most
// THREADS threads, whole warps. Limit: about 40 integer operations per element: each number is made twice. Definition:
// `QuantView::read_row` of random numbers (crates/backend/src/quantised/source.rs).
//
// Defines: ELEMENT, BLOCKS (0 or 1).
#include "fp8/rounding.cuh"
#include "random.cuh"

struct Numbers {
    Uniform all;
    unsigned long long begin;

    __device__ __forceinline__ float at(unsigned input) const {
        return to_f32(from_f32<ELEMENT>(all.at(begin + input)));
    }
};

// Of the largest bits without sign.
__device__ __forceinline__ float scale_of(unsigned bits) {
    const float scale = __uint_as_float(bits) / 448.0f;
    return scale == 0.0f ? 1.0f : scale;
}

__device__ __forceinline__ void store_code(e4m3* to, float number, float scale) {
    const Lanes<float, 1> scaled{{number / scale}};
    store<1>(to, scaled);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    random_codes(e4m3* __restrict__ to, float* __restrict__ scales, unsigned cols, unsigned first, unsigned inner,
                 unsigned stride, unsigned apart, unsigned long long pitch, unsigned long long stream, float centre,
                 float reach) {
    const unsigned long long row = blockIdx.x;
    const Numbers numbers{{stream, centre, reach}, row * pitch};
    to += row * stride;
    scales += row;
#if BLOCKS
    const unsigned lane = threadIdx.x % 32, end = min(first + cols, inner);
    for (unsigned block = threadIdx.x / 32; block * BLOCK_INPUTS < cols; block += blockDim.x / 32) {
        const unsigned begin = first + block * BLOCK_INPUTS, behind = min(begin + BLOCK_INPUTS, end);
        unsigned bits = 0;
        for (unsigned k = begin + lane; k < behind; k += 32) {
            bits = max(bits, __float_as_uint(numbers.at(k)) & SIGNLESS);
        }
        const float scale = scale_of(warp_most(bits));
        if (lane == 0) {
            scales[static_cast<unsigned long long>(block) * apart] = scale;
        }
        for (unsigned k = begin + lane; k < behind; k += 32) {
            store_code(to + (k - first), numbers.at(k), scale);
        }
    }
#else
    unsigned bits = 0;
    for (unsigned k = threadIdx.x; k < inner; k += blockDim.x) {
        bits = max(bits, __float_as_uint(numbers.at(k)) & SIGNLESS);
    }
    const float scale = scale_of(block_most(bits));
    if (threadIdx.x == 0) {
        *scales = scale;
    }
    for (unsigned k = threadIdx.x; k < cols; k += blockDim.x) {
        store_code(to + k, numbers.at(first + k), scale);
    }
#endif
}
