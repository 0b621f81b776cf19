// The words of a plan for level_lse, as crates/cuda/src/attention/level_words.rs writes them: each row's context by
// rising positions.
#pragma once

#include "kv_page.cuh"

// Header. Offsets count words from the start.
enum LevelWord {
    LISTS_AT,  // row r has the items at words [LISTS_AT + r] .. [LISTS_AT + r + 1] of LISTED_AT
    LISTED_AT,
    ITEMS_AT,  // two words per item: its first span and one past its last
    SPANS_AT,  // SPAN_WORDS per span: first position, one past the last, index of the first page
    PAGES_AT,
    WINDOW,     // a row at position `at` sees p iff p <= at and at - p < WINDOW
    HEADER_WORDS = 8
};

constexpr unsigned SPAN_WORDS = 3;
constexpr unsigned MOST_LEVELS = 8;
