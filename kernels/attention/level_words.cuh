// The words of a plan as src/backend/cuda/level_words.rs lays them out: what level_lse needs to walk a row's context in
// rising positions. And the levels themselves.
#pragma once

#include "kv_page.cuh"

// Header. Offsets count words from the start.
enum LevelWord {
    LISTS_AT,   // row r has the items named by words [LISTS_AT + r] .. [LISTS_AT + r + 1] of LISTED_AT
    LISTED_AT,
    ITEMS_AT,   // two words an item: its first span, and the one behind its last
    SPANS_AT,   // SPAN_WORDS a span: first position, position behind the last, index of the first page
    PAGES_AT,
    WINDOW,     // a row at position `at` sees p iff p <= at and at - p < WINDOW
    HEADER_WORDS = 8
};

constexpr unsigned SPAN_WORDS = 3;
constexpr unsigned MOST_LEVELS = 8;
