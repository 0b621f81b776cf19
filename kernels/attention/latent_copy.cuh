// The copying side of tiles of latents: of four warps two fill each buffer of attention/latent_ring.cuh. One copies the
// left half of the values and the rotated part of the keys, the other the right half. So a share is always filled by
// the same warp, since a barrier's parity does not tell a phase from the second one after it.
#pragma once

#include "attention/latent_ring.cuh"
#include "attention/panel_copy.cuh"

// Runs copying warp `warp`, 0 to 3.
__device__ __forceinline__ void copy_latents(const Job& job, unsigned warp, unsigned buffers, LatentShared& latent) {
    const unsigned lane = threadIdx.x % 32, window = job.words[WINDOW],
                   moved = steps_since_plan(job.words, job.positions);
    const unsigned buffer = warp % 2;
    const bool copies_right = warp / 2 == 1;
    WideTiles tiles(job);
    unsigned coming = tiles.word(job);  // of the next tile
    unsigned filled = 0;  // steps that the buffer has held
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
        uint2 lane_kv_block = hold(0), ahead = hold(32);
        unsigned held = 0;
        tiles.next();
        coming = tiles.word(job);
#pragma unroll 1
        for (unsigned step = buffer; step < steps; step += 2) {
            if (step >= held + 16) {
                held += 16;
                lane_kv_block = ahead;
                ahead = hold(held * 2 + 32);
            }
            KvBlock here[2];
            bool is_full[2];
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
                here[half] = kv_block_of(kv_block, tile.highest);
                is_full[half] = here[half].from == 0 && here[half].to == KV_BLOCK_TOKENS &&
                                !(DETERMINISTIC && kv_block.x & SHARED_KV_BLOCK);
                info.kv_blocks[half] = kv_block.y;
            }
            // Positions rise from KV block to KV block.
            info.whole = is_full[0] && is_full[1] && here[1].base + KV_BLOCK_TOKENS <= tile.lowest + 1 &&
                         tile.highest - here[0].base < window;
            // Fills COUNT panels, the share's, once they are empty.
            auto fill = [&](auto count, unsigned share) {
                wait_barrier(shared_address(&latent.empty[buffer][share]), filled % 2 ^ 1);
                auto page_at = [&](unsigned page) {
                    return reinterpret_cast<const char*>(job.keys(page, head)) + share * HALF_PANELS * KV_PANEL_BYTES;
                };
                const unsigned full = shared_address(&latent.full[buffer][share]);
                if (share == ROTATED && lane == 0) {
                    latent.keys[buffer] = info;
                }
                copy_panels<decltype(count)::PANELS>(job, buffers + buffer * OPERAND_BYTES + share_at(share), here,
                                                    is_full, full, page_at);
            };
            if (copies_right) {
                fill(Panels<HALF_PANELS>(), RIGHT);
            } else {
                fill(Panels<HALF_PANELS>(), LEFT);
                fill(Panels<1>(), ROTATED);
            }
            filled++;
        }
    }
}
