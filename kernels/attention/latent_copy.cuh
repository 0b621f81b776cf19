// The copying side of tiles of latents: of four warps two fill each buffer of attention/latent_ring.cuh. One copies the
// left half of the values and the rotated part of the keys, the other the right half. So a share is always filled by
// the same warp, since a barrier's parity does not tell a phase from the second one after it. That warp also widens
// keys of 8 bits.
#pragma once

#include "attention/fp8.cuh"
#include "attention/latent_ring.cuh"
#include "attention/panel_copy.cuh"

// Called by one warp: widens COUNT panels of a step's keys, which begin at `place` + COUNT * COPIED_PANEL_BYTES, to f16
// panels from `place` on, half a panel at a time. What is written covers keys that were read before, and at the end
// those of the same half: all lanes have read it before one of them writes.
template <unsigned COUNT>
__device__ __forceinline__ void widen_panels(unsigned place) {
    constexpr unsigned ROW_CHUNKS = COPIED_ROW_BYTES / 16, ROWS = 32 / ROW_CHUNKS;  // rows read at a time
    const unsigned lane = threadIdx.x % 32, row = lane / ROW_CHUNKS;
    // Of 16 elements, which two neighbouring chunks of 8 become.
    const unsigned chunk = lane % ROW_CHUNKS ^ swizzle_of(row, COPIED_ROW_BYTES);
    unsigned from = place + COUNT * COPIED_PANEL_BYTES + lane * 16, to = place + row * 128 + (chunk * 2 ^ row) * 16;
#pragma unroll 1
    for (unsigned half = 0; half < 2 * COUNT; half++) {
        unsigned bytes[KV_BLOCK_TOKENS / ROWS][4];
#pragma unroll
        for (unsigned i = 0; i < KV_BLOCK_TOKENS / ROWS; i++) {
            load_16(bytes[i], from + i * ROWS * COPIED_ROW_BYTES);
        }
        __syncwarp();
#pragma unroll
        for (unsigned i = 0; i < KV_BLOCK_TOKENS / ROWS; i++) {
            unsigned wide[4][2];
#pragma unroll
            for (unsigned word = 0; word < 4; word++) {
                widen(wide[word], bytes[i][word]);
            }
            const unsigned here = to + i * ROWS * 128;
            store_16(here, wide[0][0], wide[0][1], wide[1][0], wide[1][1]);
            store_16(here ^ 16, wide[2][0], wide[2][1], wide[3][0], wide[3][1]);
        }
        from += KV_PANEL_BYTES;
        to += PANEL_BYTES / 2;
    }
}

// Runs copying warp `warp`, 0 to 3.
__device__ __forceinline__ void copy_latents(const Job& job, unsigned warp, unsigned buffers, LatentShared& latent) {
    const unsigned lane = threadIdx.x % 32, window = job.words[WINDOW],
                   moved = steps_since_plan(job.words, job.positions);
    const unsigned buffer = warp % 2;
    const bool copies_right = warp / 2 == 1;
    WideTiles tiles(job);
    unsigned coming = tiles.word(job);  // of the next tile
    unsigned filled = 0;  // steps that the buffer has held
    bool is_first = true;  // the block's first tile
#pragma unroll 1
    while (tiles.more()) {
        const unsigned words = coming, head = tiles.head(job);
        auto field = [&](unsigned i) { return __shfl_sync(ALL_LANES, words, i); };
        const Tile tile = {
            field(0), field(1), field(2), field(3), field(4), field(5) + moved, field(6) + moved, field(7)};
        const unsigned steps = steps_of(tile);
        const uint2* kv_blocks = kv_blocks_at(job.words) + tile.first_kv_block;
        // lane_kv_block: this lane's of the 32 KV blocks of steps `held` .. `held` + 15; ahead: of the 32 after them.
        // The first TILE_KV_BLOCKS are in the tile's words.
        auto hold = [&](unsigned at) {
            return at + lane >= TILE_KV_BLOCKS && at + lane < tile.kv_blocks ? kv_blocks[at + lane] : uint2{0, 0};
        };
        uint2 lane_kv_block = {0, 0}, ahead = {0, 0};
        unsigned held = 0;
        tiles.next();
        auto look_ahead = [&] {
            coming = tiles.word(job);
            lane_kv_block = hold(0);
            ahead = hold(32);
        };
        if (buffer >= steps) {
            look_ahead();
        }
#pragma unroll 1
        for (unsigned step = buffer; step < steps; step += 2) {
            if (step >= held + 16) {
                held += 16;
                lane_kv_block = ahead;
                ahead = hold(held * 2 + 32);
            }
            KvBlock here[2];
            bool is_full[2];
            unsigned readers[2];
            StageInfo info;
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                const unsigned i = step * 2 + half, at = (step - held) * 2 + half, in_tile = TILE_FIELDS + 2 * i;
                uint2 kv_block;
                if (i < TILE_KV_BLOCKS) {
                    // An empty KV block past the last one.
                    kv_block = {field(in_tile), i < tile.kv_blocks ? field(in_tile + 1) : 0};
                } else {
                    kv_block = {__shfl_sync(ALL_LANES, lane_kv_block.x, at),
                                __shfl_sync(ALL_LANES, lane_kv_block.y, at)};
                }
                const unsigned reader = DETERMINISTIC ? 0 : reader_of(kv_block.x);
                kv_block.x -= reader << READER_SHIFT;
                here[half] = kv_block_of(kv_block, tile.highest);
                // What lies behind the reader may not be written yet, even if another row is further.
                if (reader != 0 && here[half].base + here[half].to > tile.lowest + 1) {
                    const unsigned row = job.by_group.quotient(tile.first_row) + reader - 1;
                    here[half] = kv_block_of(kv_block, job.positions[row]);
                }
                readers[half] = reader;
                is_full[half] = here[half].from == 0 && here[half].to == KV_BLOCK_TOKENS &&
                                !(DETERMINISTIC && kv_block.x & SHARED_KV_BLOCK);
                info.kv_blocks[half] = kv_block.y;
            }
            // Positions rise from KV block to KV block.
            info.whole = is_full[0] && is_full[1] && here[1].base + KV_BLOCK_TOKENS <= tile.lowest + 1 &&
                         tile.highest - here[0].base < window;
            if ((readers[0] | readers[1]) != 0) {
                info.whole = BY_READER;
#pragma unroll
                for (unsigned half = 0; half < 2; half++) {
                    const KvBlock& of_half = here[half];
                    const unsigned slots = of_half.to > of_half.from ? of_half.to - of_half.from : 0;
                    info.kv_blocks[half] = of_half.from | slots << 6 | readers[half] << 12;
                }
            }
            auto place_of = [&](unsigned share) { return buffers + buffer * OPERAND_BYTES + share_at(share); };
            // Copies COUNT panels, the share's, once they are empty.
            auto copy = [&](auto count, unsigned share) {
                constexpr unsigned COUNT = decltype(count)::PANELS;
                // At first the keys that are scored first come alone beside the queries: all blocks load theirs then.
                // The rotated share comes last of this warp's two, and is waited for as its next phase cannot end
                // before step 1's keys are there: warpgroup 1 empties it only after it has scored them.
                if (is_first && step == 1) {
                    auto& first = FP8 ? latent.copied[0][ROTATED] : latent.full[0][ROTATED];
                    wait_barrier(shared_address(&first), 0);
                }
                wait_barrier(shared_address(&latent.empty[buffer][share]), filled % 2 ^ 1);
                auto page_at = [&](unsigned page) {
                    return reinterpret_cast<const char*>(job.keys(page, head)) + share * HALF_PANELS * KV_PANEL_BYTES;
                };
                if (share == ROTATED && lane == 0) {
                    latent.keys[buffer] = info;
                }
                auto& there = FP8 ? latent.copied[FP8 ? buffer : 0][share] : latent.full[buffer][share];
                copy_panels<COUNT>(job, place_of(share) + (FP8 ? COUNT * COPIED_PANEL_BYTES : 0), here, is_full,
                                   shared_address(&there), page_at);
            };
            // Widens them, if they have 8 bits.
            auto widen = [&](auto count, unsigned share) {
                if constexpr (FP8) {
                    wait_barrier(shared_address(&latent.copied[buffer][share]), filled % 2);
                    widen_panels<decltype(count)::PANELS>(place_of(share));
                    fence_proxies();
                    arrive(shared_address(&latent.full[buffer][share]));
                }
            };
            if (copies_right) {
                copy(Panels<HALF_PANELS>(), RIGHT);
                widen(Panels<HALF_PANELS>(), RIGHT);
            } else {
                copy(Panels<HALF_PANELS>(), LEFT);
                copy(Panels<1>(), ROTATED);
                widen(Panels<HALF_PANELS>(), LEFT);
                widen(Panels<1>(), ROTATED);
            }
            filled++;
            // Behind the tile's first keys, which its own words name.
            if (step == buffer) {
                look_ahead();
            }
        }
        is_first = false;
    }
}
