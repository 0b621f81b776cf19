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

// Rows of a block, and its threads.
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

// The adapters of a step's rows.
struct RowAdapters {
    const unsigned* adapters;
    const unsigned* logit_rows;  // or null, where buffers have all rows of the step

    __device__ __forceinline__ unsigned of(unsigned row) const {
        return adapters[logit_rows ? logit_rows[row] : row];
    }

    // Rows from `first` on, up to `end`, which have the adapter of `first`.
    __device__ __forceinline__ unsigned run(unsigned first, unsigned end) const {
        const unsigned slot = of(first);
        unsigned count = 1;
        while (first + count < end && of(first + count) == slot) {
            ++count;
        }
        return count;
    }
};
