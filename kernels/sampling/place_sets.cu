// Puts the sets of allowed tokens that a step has copied to the device, one behind the other, in the places from which
// the kernels of `sample` read them.
//
//   sets[places[i]][w] = copied[i][w]
//
// Shapes: copied [count, quads], places u32 [count], no two equal, sets [places, quads]; a quad is 16 bytes, the bits
// of 128 tokens.
// Grid: one block per copied set.
// Limit: bandwidth. 1,024 sets of 152,064 tokens are 19 MB, read and written once: 10 us at 4 TB/s. The copy from the
// host takes 0.4 ms at 50 GB/s, beside what the device computes.
// Definition: none of its own; a request's set decides what `Backend::sample` samples, wherever it lies.

extern "C" __global__ void __launch_bounds__(256)
    place_sets(const uint4* __restrict__ copied, const unsigned* __restrict__ places, uint4* __restrict__ sets,
               unsigned quads) {
    const uint4* from = copied + static_cast<unsigned long long>(blockIdx.x) * quads;
    uint4* to = sets + static_cast<unsigned long long>(places[blockIdx.x]) * quads;
    for (unsigned i = threadIdx.x; i < quads; i += blockDim.x) {
        to[i] = from[i];
    }
}
