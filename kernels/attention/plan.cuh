// Reads the words of a device plan, as crates/cuda/src/attention/device_plan.rs writes them, and locates partial
// states.
#pragma once

#include "attention/state.cuh"

// Header of the plan. Offsets count words from the start of the plan.
enum PlanWord {
    WIDE_TILES,  // number of wide tiles, described at WIDE_AT
    NARROW_TILES,  // number of narrow tiles, described at NARROW_AT
    WIDE_AT,
    NARROW_AT,
    KV_BLOCKS_AT,  // two words per KV block
    MERGE_AT,        // row r merges the states named by words [MERGE_AT + r] .. [MERGE_AT + r + 1] of STATES_AT
    STATES_AT,
    PARTIAL_SLOTS,  // number of partial slots; each holds the states of all query heads of a row
    WINDOW,  // a row at position `at` sees p iff p <= at and at - p < WINDOW
    WIDE_TICKET,  // next wide tile to take; 0 before and after a step
    NARROW_TICKET,  // the same for narrow tiles
    ENDED_BLOCKS,  // blocks that have written all their states; 0 before and after a step
    LEFT_BLOCKS,  // blocks past the wait for all states; 0 before and after a step
    REAL_ROWS,  // rows without padding; 0 if another kernel merges the states (ranks/merge_members.cu)
    NARROW_HEADS,  // key heads per unit: a warp takes so many of a narrow tile, one after another
    FIRST_POSITION,  // of row 0 when the plan was made; all rows have advanced by the same number of tokens
    OPENING_ROWS,  // packed rows of all openings, the first of the wide tiles
    OPENED_ROWS,  // of these, for all key heads, how many have their states; 0 before and after a step
    WIDE_HEADS,  // key heads whose wide tiles come before those of others, in tree_attention_large.cu
    HEADER_WORDS = 32  // KV blocks begin at a cache line
};

constexpr unsigned KV_BLOCK_TOKENS = 32;
constexpr unsigned TILE_WORDS = 16;
constexpr unsigned TILE_KV_BLOCKS = 4;  // KV blocks repeated in the tile's own words, after its fields

// Number of partial states per row of a tile: several for all, one for all, or differing between rows. Where another
// kernel merges all states, one counts as several.
enum RowStates { SEVERAL, ONE, DIFFERENT };

// An opening computes the first steps of a deterministic plan's tile for all rows that see the same keys there. It
// writes states of SoftmaxRows (attention/rows.cuh) to the partial slots of the tiles that go on from them.
constexpr unsigned OPENS = 4, CONTINUES = 8;

// Packed rows (row * GROUP + head in the group) times KV blocks, for every key head. Stored as so many words in this
// order.
struct Tile {
    unsigned first_row;    // packed
    unsigned rows;         // packed
    unsigned first_kv_block;
    unsigned kv_blocks;
    unsigned slot;  // partial slot of the row that holds `first_row`; the following rows have the following slots
    unsigned lowest;  // smallest position of the rows when the plan was made
    unsigned highest;  // largest position
    unsigned states;       // RowStates, with OPENS or CONTINUES

    __device__ __forceinline__ unsigned row_states() const {
        return states % OPENS;
    }
};
constexpr unsigned TILE_FIELDS = sizeof(Tile) / 4;
static_assert(TILE_FIELDS + 2 * TILE_KV_BLOCKS == TILE_WORDS, "fields and KV blocks");

__device__ __forceinline__ Tile read_tile(const unsigned* words, unsigned at, unsigned index) {
    const uint4* tile = reinterpret_cast<const uint4*>(words + at + index * TILE_WORDS);
    uint4 a = tile[0], b = tile[1];
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

// Tokens by which every row has advanced since the plan was made.
__device__ __forceinline__ unsigned steps_since_plan(const unsigned* words, const unsigned* positions) {
    return positions[0] - words[FIRST_POSITION];
}

// Slots [from, to) of one page, at positions base + slot. Where segments meet inside a page, a deterministic plan has
// one KV block over several pages: then `page` is SHARED_KV_BLOCK | the word offset of a list, which holds the number
// of sub-blocks, then the two words of each, by rising slots.
struct KvBlock {
    unsigned page, base, from, to;
};

constexpr unsigned SHARED_KV_BLOCK = 1u << 31;

// Above the page, the first word of a KV block has its reader: 0 if all rows of the tile see it, k if the k-th alone
// does. Only tiles of latents whose rows are there with all query heads have readers, in plans that have no window and
// are not deterministic. All rows of such a tile see all slots of its KV blocks without a reader.
constexpr unsigned READER_SHIFT = 27, READER_BITS = 4;

__device__ __forceinline__ unsigned reader_of(unsigned word) {
    return word >> READER_SHIFT & ((1u << READER_BITS) - 1);
}

__device__ __forceinline__ const uint2* kv_blocks_at(const unsigned* words) {
    return reinterpret_cast<const uint2*>(words + words[KV_BLOCKS_AT]);
}

// Decodes the two words of a KV block: page, then (base / KV_BLOCK_TOKENS) << 12 | from << 6 | to. Cuts off slots
// behind `last`, the largest position of the tile's rows, as they may not be written yet.
__device__ __forceinline__ KvBlock kv_block_of(uint2 words, unsigned last) {
    KvBlock kv_block = {words.x, (words.y >> 12) * KV_BLOCK_TOKENS, (words.y >> 6) & 63, words.y & 63};
    kv_block.to = min(kv_block.to, last < kv_block.base ? 0u : last + 1 - kv_block.base);
    return kv_block;
}

// The page that holds `slot` of a KV block; for a slot in no sub-block, the page of any sub-block.
__device__ __forceinline__ unsigned page_of(const unsigned* words, unsigned page, unsigned slot) {
    if (!(page & SHARED_KV_BLOCK)) {
        return page;
    }
    const unsigned* list = words + (page & ~SHARED_KV_BLOCK);
    const unsigned sub_blocks = list[0];
    unsigned sub_block = 0;
    while (sub_block + 1 < sub_blocks && slot >= (list[2 + 2 * sub_block] & 63)) {
        sub_block++;
    }
    return list[1 + 2 * sub_block];
}

__device__ __forceinline__ bool sees(unsigned at, unsigned position, unsigned window) {
    return position <= at && at - position < window;
}

// The slots [from, from + count) of a KV block that a row sees.
struct Slots {
    unsigned from, count;
};

__device__ __forceinline__ Slots seen_slots(const KvBlock& kv_block, unsigned at, unsigned window) {
    const unsigned first = at < window ? 0 : at + 1 - window;  // position
    const unsigned from = max(kv_block.from, first < kv_block.base ? 0 : first - kv_block.base);
    const unsigned to = min(kv_block.to, at < kv_block.base ? 0 : at + 1 - kv_block.base);
    return {from, to < from ? 0 : to - from};
}

// Prefetches a cache line into L1.
__device__ __forceinline__ void prefetch(const void* from) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
}

// Whether `row` has a single state, which is written directly to `out`.
__device__ __forceinline__ bool has_one_state(const unsigned* words, unsigned row) {
    const unsigned* merge = words + words[MERGE_AT] + row;
    return merge[1] - merge[0] == 1;
}

// The same for a row of a tile with `states`, usually without a lookup.
__device__ __forceinline__ bool has_one_state(const unsigned* words, unsigned states, unsigned row) {
    return states == DIFFERENT ? has_one_state(words, row) : states == ONE;
}

// Partial states: o [slot][q head][value_dim] (in the kernels for Hopper permuted by `state_place`), followed by
// Extent [slot][q head].
struct Partials {
    float* o;
    Extent* extents;
};

__device__ __forceinline__ Partials partials_at(float* memory, const unsigned* words, unsigned q_heads,
                                                unsigned value_dim) {
    return {memory,
            reinterpret_cast<Extent*>(memory + static_cast<size_t>(words[PARTIAL_SLOTS]) * q_heads * value_dim)};
}
