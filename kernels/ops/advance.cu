// Advances the loaded step by one token: row r takes the token that request r sampled in the previous step and moves on
// by one position and, in each page group, one KV slot. The slots' pages must have room.
//
//   tokens[r] = SAMPLED | r,  positions[r] += 1,  slots[g][r] += 1
//
// Shapes: tokens, positions u32 [rows], slots u32 [groups, padded]; a slot word counts slots, page after page.
// Grid: one thread per row.
// Limit: launch latency.
// Definition: `StepBatch::advance` of crates/backend/src/step.rs.

#include "token_word.cuh"

extern "C" __global__ void advance(unsigned* tokens, unsigned* positions, unsigned* slots, unsigned rows,
                                   unsigned groups, unsigned padded) {
    unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    tokens[row] = SAMPLED | row;
    positions[row] += 1;
    for (unsigned group = 0; group < groups; ++group) {
        slots[group * padded + row] += 1;
    }
}
