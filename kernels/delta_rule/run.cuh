// Runs of a step as the ops of recurrent layers read them: consecutive rows that continue one state. Written by
// crates/cuda/src/delta_rule/runs.rs.
#pragma once

// No state: that of an empty sequence, or one that is not kept.
constexpr unsigned NO_STATE = 0xffffffff;

// A run, or a segment of one: 64 of its rows, or those that are left.
struct alignas(16) Run {
    unsigned first;  // row of the step
    unsigned rows;
    unsigned from, to;
    unsigned is_in;  // whether `from` holds the first row's token already
    unsigned place, part;  // the segment: its first row's place in the run, and its rows
    unsigned segment;  // number of the run's first segment among those of its launch
};
