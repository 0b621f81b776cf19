// Copies rows of gates and, behind them, as many ups so that eight gates and their eight ups follow in turn
// (experts/panels.cuh): for experts of e4m3, once, when they are loaded.
//
// Shapes: to, from [matrices, rows, words], 32 bits a word; rows a multiple of 16.
// Grid: x = row, y = matrix; any number of threads.
// Limit: bandwidth, 8 bytes per word.
// Definition: `Backend::experts`.
#include "element.cuh"

extern "C" __global__ void alternate_rows(unsigned* __restrict__ to, const unsigned* __restrict__ from,
                                          unsigned rows, unsigned words) {
    const unsigned row = blockIdx.x, source = row / 16 * 8 + row % 8 + row / 8 % 2 * (rows / 2);
    const unsigned long long matrix = static_cast<unsigned long long>(blockIdx.y) * rows;
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) {
        to[(matrix + row) * words + i] = from[(matrix + source) * words + i];
    }
}
