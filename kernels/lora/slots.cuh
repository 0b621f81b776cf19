// What low-rank adapters add to one linear layer, by slot, and the rows that a block of their kernels computes. The
// host writes the table (crates/cuda/src/lora.rs): its address never changes, what it points to does.
//
// Defines: ELEMENT.
#pragma once

#include "lanes.cuh"

// Modules that are stacked in one layer.
constexpr unsigned MOST_PARTS = 4;

// A row without an adapter.
constexpr unsigned NO_ADAPTER = 0xffffffff;

// Rows of a tile, and the threads of a block.
constexpr unsigned TILE_ROWS = 8;
constexpr unsigned LORA_THREADS = 256;

// One slot; an empty one has a rank of 0 in every part.
struct LoraSlot {
    const ELEMENT* a;              // [parts, rank, inputs]
    const ELEMENT* b;              // [outputs, rank]
    unsigned rank;                 // of all parts, rounded up to LANES: what lies behind a part's own rank is 0
    unsigned unused;
    unsigned ranks[MOST_PARTS];    // of each part; 0: the adapter adds nothing there
    float scales[MOST_PARTS];
};

// Inputs that a block of lora_shrink adds up: the sums of a row are kept for each so many inputs, and lora_expand adds
// these up in rising order. `inputs` alone decides it, so that a row's bits do not depend on the rows beside it.
constexpr unsigned CHUNK_INPUTS = 1024;

// The runs of a tile: neighbouring rows with the same adapter, of which one exists. Each of `groups` blocks takes the
// runs whose number, modulo `groups`, is its own. The same for all threads of a block; all lanes of a warp call it.
class TileRuns {
   public:
    // Of the tile that begins at row `begin`, of `rows` of the buffers. `adapters`: of each row of the step;
    // `logit_rows`: or null, where buffers have all rows of the step.
    __device__ __forceinline__ TileRuns(const unsigned* adapters, const unsigned* logit_rows, unsigned begin,
                                        unsigned rows, unsigned group, unsigned groups)
        : group(group), groups(groups) {
        const unsigned lane = threadIdx.x % 32, count = min(TILE_ROWS, rows - begin), row = begin + lane;
        own = NO_ADAPTER;
        if (lane < count) {
            own = adapters[logit_rows ? logit_rows[row] : row];
        }
        const unsigned before = __shfl_up_sync(0xffffffff, own, 1);
        const bool begins = lane < count && (lane == 0 || own != before);
        bounds = __ballot_sync(0xffffffff, begins || lane == count);
        left = __ballot_sync(0xffffffff, begins && own != NO_ADAPTER);
    }

    // Goes to the next run of this block; false: there is none.
    __device__ __forceinline__ bool next() {
        while (left != 0) {
            first = __ffs(left) - 1;
            left &= left - 1;
            if (passed++ % groups == group) {
                count = __ffs(bounds >> (first + 1));
                slot = __shfl_sync(0xffffffff, own, first);
                return true;
            }
        }
        return false;
    }

    // The run: its first row, counted from that of the tile, its rows, and their adapter.
    unsigned first, count, slot;

   private:
    const unsigned group, groups;
    unsigned own;     // the adapter of row `lane`
    unsigned bounds;  // bits of the rows where another run begins, and of the row behind the last one
    unsigned left;    // bits of the first rows of runs that `next` has not passed
    unsigned passed = 0;
};
