// Runs of a step as the ops of delta-rule layers read them: consecutive rows that continue one state. Written by
// crates/cuda/src/delta_rule/runs.rs.
#pragma once

// No state: that of an empty sequence, or one that is not kept.
constexpr unsigned NO_STATE = 0xffffffff;

// Inputs of the convolution that a state keeps, the newest last.
constexpr unsigned CONV_TOKENS = 4;

// A run, or a segment of one: 64 of its rows, or those that are left.
struct alignas(16) Run {
    unsigned first;  // row of the step
    unsigned rows;
    unsigned from, to;
    unsigned is_in;  // whether `from` holds the first row's token already
    unsigned place, part;  // the segment: its first row's place in the run, and its rows
    unsigned segment;  // number of the run's first segment among those of its launch
};
