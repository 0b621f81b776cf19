// out[r][c] = number r * pitch + c of a stream: generates random weights, or columns of them, on the device, bitwise
// equal to those of the CPU.
//
// Shapes: out ELEMENT [rows, cols]. An element depends on its stream and index alone, not on the grid.
// Grid: grid-stride loops, x over the columns and y over the rows.
// Limit: bandwidth, sizeof(ELEMENT) bytes per element, plus about 20 integer operations.
// Definition: `RandomWeight` of crates/backend/src/weights.rs.
#include "random.cuh"

extern "C" __global__ void random_weights(ELEMENT* out, unsigned rows, unsigned long long cols,
                                          unsigned long long pitch, unsigned long long stream, float centre,
                                          float reach) {
    const Uniform numbers{stream, centre, reach};
    const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned row = blockIdx.y; row < rows; row += gridDim.y) {
        for (unsigned long long c = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; c < cols;
             c += step) {
            out[row * cols + c] = from_f32<ELEMENT>(numbers.at(row * pitch + c));
        }
    }
}
