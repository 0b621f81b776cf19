// advance: the step that is loaded, one token further: row r holds what request r of the step before drew, one position
// and one KV slot further (the slot's page has room).
//
//   tokens[r] = drawn token r,  positions[r] += 1,  slots[r] += 1
//
// Shapes: tokens, positions, slots [rows], u32; slot words are page * PAGE_TOKENS + slot. One thread a row; what limits
// it is the launch. CPU definition: StepBatch::advance.

#include "token_word.cuh"

extern "C" __global__ void advance(unsigned* tokens, unsigned* positions, unsigned* slots, unsigned rows) {
    unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    tokens[row] = DRAWN | row;
    positions[row] += 1;
    slots[row] += 1;
}
