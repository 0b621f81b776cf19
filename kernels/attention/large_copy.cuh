// The copying side of wide tiles of heads of 256 and 512, and of 192 with values of 128: four warps fill the slots of
// attention/large_ring.cuh in turn, so that one that waits for the end of its own copies does not delay the others.
// Full KV blocks are brought by the copy engine, a panel of 32 slots (4 KB) at a time; of others the slots that no row
// sees are zeroed.
#pragma once

#include "attention/large_ring.cuh"
#include "attention/panel_copy.cuh"

constexpr unsigned COPYING_WARPS = GROUP_THREADS / 32;

// Runs copying warp `warp`.
__device__ __forceinline__ void copy_large(const Job& job, unsigned warp, unsigned ring, LargeShared& large) {
    const unsigned lane = threadIdx.x % 32, window = job.words[WINDOW],
                   moved = steps_since_plan(job.words, job.positions);
    WideTiles tiles(job);
    unsigned coming = tiles.word(job);  // of the next tile
    unsigned before = 0;  // slots of earlier tiles
#pragma unroll 1
    while (tiles.more()) {
        const unsigned words = coming, head = tiles.head(job);
        auto field = [&](unsigned i) { return __shfl_sync(ALL_LANES, words, i); };
        const Tile tile = {
            field(0), field(1), field(2), field(3), field(4), field(5) + moved, field(6) + moved, field(7)};
        const unsigned steps = steps_of(tile), slots = slots_of(steps);
        const uint2* kv_blocks = kv_blocks_at(job.words) + tile.first_kv_block;
        // lane_kv_block: this lane's of the 32 KV blocks of steps `held` .. `held` + 15; ahead: of the 32 after them.
        auto hold = [&](unsigned at) { return at + lane < tile.kv_blocks ? kv_blocks[at + lane] : uint2{0, 0}; };
        uint2 lane_kv_block = hold(0), ahead = hold(32);
        unsigned held = 0;
        tiles.next();
        coming = tiles.word(job);
#pragma unroll 1
        for (unsigned i = (warp - before) % COPYING_WARPS; i < slots; i += COPYING_WARPS) {
            const SlotContent content = slot_content(i, steps);
            if (content.step >= held + 16) {
                held += 16;
                lane_kv_block = ahead;
                ahead = hold(held * 2 + 32);
            }
            const unsigned slot = (before + i) % RING_SLOTS, parity = (before + i) / RING_SLOTS % 2;
            const unsigned to = ring + slot * RING_SLOT_BYTES, full = shared_address(&large.full[slot]);
            KvBlock here[2];
            bool is_full[2];
            StageInfo info;
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                const unsigned at = (content.step - held) * 2 + half;
                const uint2 words = {__shfl_sync(ALL_LANES, lane_kv_block.x, at),
                                     __shfl_sync(ALL_LANES, lane_kv_block.y, at)};
                here[half] = kv_block_of(words, tile.highest);
                is_full[half] = here[half].from == 0 && here[half].to == KV_BLOCK_TOKENS &&
                                !(DETERMINISTIC && words.x & SHARED_KV_BLOCK);
                info.kv_blocks[half] = words.y;
            }
            // Positions rise from KV block to KV block.
            info.whole = is_full[0] && is_full[1] && here[1].base + KV_BLOCK_TOKENS <= tile.lowest + 1 &&
                         tile.highest - here[0].base < window;
            auto page_at = [&](unsigned page) {
                const KvElement* rows = content.values ? job.values(page, head) : job.keys(page, head);
                return reinterpret_cast<const char*>(rows + KV_BLOCK_TOKENS * content.share * COLUMNS);
            };
            wait_barrier(shared_address(&large.empty[slot]), parity ^ 1);
            if (lane == 0) {
                large.keys[slot] = info;
            }
            if (content.values) {
                copy_panels<VALUE_PANELS>(job, to, here, is_full, full, page_at);
            } else {
                copy_panels<KEY_PANELS>(job, to, here, is_full, full, page_at);
            }
        }
        before += slots;
    }
}
