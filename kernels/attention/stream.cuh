// Narrow tiles of up to 8 packed rows, each by a single warp: one key head after the other, one KV block after the
// other. Limited by the bandwidth of keys and values, so copies must never pause: a warp's copies run a ring of slots
// ahead of its computation, across tiles. The warp opens the next unit, and takes the ticket of the one after it, one
// slot after issuing the last copy of the current one.
//
// Products are transposed: keys [16 x KEY_DIM] times queries^T [KEY_DIM x 8], and values^T times weights^T, so that 8
// queries fill an operand which would otherwise need 16 rows. A lane holds of scores^T [32 keys x 8 queries] and of
// results^T [KEY_DIM x 8] the columns 2 (t % 4) + {0, 1}.
//
// Of a head of more than 128 elements each warp of a team computes a part: scores are sums over all parts, which the
// warps exchange; results^T are of the warp's own part.
//
// 8-bit keys and values stay 8-bit in the ring and are widened as operands. A lane receives four neighbouring elements
// of a key, so the sum over KEY_DIM runs in that permuted order, for queries too. It receives two neighbours of a
// value: the upper and lower half of each 16 rows of results^T are the even and the odd elements.
#pragma once

#include "attention/fp8.cuh"
#include "attention/page.cuh"

constexpr unsigned NARROW_ROWS = 8;
// A row of queries in shared memory, in bytes. The padding puts eight consecutive rows in different banks.
constexpr unsigned QUERY_ROW_BYTES = PART_DIM * sizeof(T) + 16;
static_assert(NARROW_ROWS * QUERY_ROW_BYTES <= SLOT_BYTES, "queries take a slot too");
constexpr unsigned DECODE_WARPS = PARTS == 1 ? 4 : 0;  // per block, for narrow tiles only
constexpr unsigned MAX_SLOTS = KEY_DIM >= 128 && !FP8 ? 3 : 4;
// Tiles opened at a time. Each has at least three copies, and the next one is opened one slot after a tile's last copy.
constexpr unsigned OPENED = MAX_SLOTS - 1;
static_assert(3 * OPENED > MAX_SLOTS + 2, "copies are fewer tiles ahead");

// State of one warp, in shared memory to save registers.
struct StreamShared {
    unsigned long long full[MAX_SLOTS];  // 32 arrivals per copy
    Tile tiles[OPENED];  // with current positions
    unsigned kv_block_words[MAX_SLOTS];  // second word of the KV block in each slot
    unsigned short heads[OPENED];
};

// What the warps of a team share: one for each part of a head.
struct TeamShared {
    unsigned tickets[2];  // of the next two units, by turns
};

// A warp's place in its team. Its scores are exchanged through `exchange`, EXCHANGE_BYTES of shared memory, which are
// `apart` bytes from those of the next part.
constexpr unsigned EXCHANGE_BYTES = PARTS == 1 ? 0 : 2 * 1024;
struct Team {
    unsigned part, barrier, exchange, apart;
    TeamShared* shared;

    __device__ __forceinline__ void meet_all() const {
        meet(barrier, 32 * PARTS);
    }
};

// Maximum over the lanes that hold the same columns.
__device__ __forceinline__ float column_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 4));
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 8));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 16));
}

__device__ __forceinline__ float column_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 4);
    x += __shfl_xor_sync(ALL_LANES, x, 8);
    return x + __shfl_xor_sync(ALL_LANES, x, 16);
}

// A unit is a tile and NARROW_HEADS of its key heads.
__device__ __forceinline__ unsigned units_per_tile(const Job& job) {
    return job.kv_heads / max(job.words[NARROW_HEADS], 1u);
}

__device__ __forceinline__ unsigned units_of(const Job& job) {
    return job.words[NARROW_TILES] * units_per_tile(job);
}

// Static units: one per decode warp, assigned without a ticket.
__device__ __forceinline__ unsigned static_units() {
    return gridDim.x * DECODE_WARPS;
}

// The static unit of warp `warp` of this block. Blocks without a wide tile come first, so that if both kinds are few,
// no block has both (wide tiles go to the first blocks).
__device__ __forceinline__ unsigned static_unit(const Job& job, unsigned warp) {
    const unsigned busy = min(job.words[WIDE_TILES] * job.kv_heads, gridDim.x), idle = gridDim.x - busy;
    if (blockIdx.x >= busy) {
        return warp * idle + blockIdx.x - busy;
    }
    return DECODE_WARPS * idle + warp * busy + blockIdx.x;
}

// Called by one thread: takes the next dynamic unit from the ticket. May be past the last unit.
__device__ __forceinline__ unsigned next_dynamic_unit(const Job& job) {
    return static_units() + atomicAdd(job.words + NARROW_TICKET, 1);
}

// The copying side: the unit, head and copy to be issued next.
struct StreamCopies {
    unsigned ticket, kv_blocks, head, item, opened;
    Team team;
    bool more, ended;  // whether there is a next copy; whether the unit is fully copied and the next one not yet opened
    unsigned words;  // this lane's word of the tile
    uint2 lane_kv_block;  // this lane's of the 32 KV blocks to be copied next; the first ones are in the tile's words

    __device__ __forceinline__ unsigned field(unsigned i) const {
        return __shfl_sync(ALL_LANES, words, i);
    }
    __device__ __forceinline__ uint2 kv_block(unsigned at) const {
        if (at < TILE_KV_BLOCKS) {
            return {field(TILE_FIELDS + 2 * at), field(TILE_FIELDS + 2 * at + 1)};
        }
        return {__shfl_sync(ALL_LANES, lane_kv_block.x, at % 32), __shfl_sync(ALL_LANES, lane_kv_block.y, at % 32)};
    }
    __device__ __forceinline__ void hold(const Job& job, unsigned from) {
        const unsigned at = from + threadIdx.x % 32, first_kv_block = field(2);
        if (at >= TILE_KV_BLOCKS && at < kv_blocks) {
            lane_kv_block = kv_blocks_at(job.words)[first_kv_block + at];
        }
    }

    __device__ __forceinline__ void open(const Job& job, unsigned unit, StreamShared& shared) {
        more = unit < units_of(job);
        if (!more) {
            return;
        }
        const unsigned lane = threadIdx.x % 32, shares = units_per_tile(job),
                       moved = steps_since_plan(job.words, job.positions);
        if (lane < TILE_WORDS) {
            words = job.words[job.words[NARROW_AT] + unit / shares * TILE_WORDS + lane];
        }
        head = unit % shares * job.words[NARROW_HEADS];
        item = 0;
        if (lane == 0 && team.part == 0) {
            ticket = units_of(job) > static_units() ? next_dynamic_unit(job) : ~0u;
        }
        if (lane == 5 || lane == 6) {
            words += moved;  // lowest and highest
        }
        kv_blocks = field(3);
        hold(job, 0);
        if (lane < TILE_FIELDS) {
            reinterpret_cast<unsigned*>(&shared.tiles[opened % OPENED])[lane] = words;
        }
        if (lane == 0) {
            shared.heads[opened % OPENED] = head;
        }
        opened++;
    }

    // Called once per loop iteration, to keep the code small for the instruction cache.
    __device__ __forceinline__ void open_next(const Job& job, StreamShared& shared) {
        if (ended) {
            ended = false;
            open(job, PARTS == 1 ? __shfl_sync(ALL_LANES, ticket, 0) : team.shared->tickets[opened % 2], shared);
        }
    }

    // Tells the team its next ticket, in good time: a unit has a KV block, whose scores are exchanged, before the next
    // one is opened.
    __device__ __forceinline__ void tell_ticket() const {
        if (threadIdx.x % 32 == 0 && team.part == 0) {
            team.shared->tickets[opened % 2] = ticket;
        }
    }

    // Issues the next copy, to `slot` of `ring`: first the queries, then keys and values of each KV block in turn.
    __device__ __forceinline__ void issue(const Job& job, unsigned ring, unsigned slot, StreamShared& shared) {
        if (more) {
            const unsigned lane = threadIdx.x % 32, to = ring + slot * SLOT_BYTES,
                           full = shared_address(&shared.full[slot]);
            if (item == 0) {
                const unsigned first_row = field(0), rows = field(1);
                if (lane == 0) {
                    arrive_expecting(full, NARROW_ROWS * PART_DIM * sizeof(T));
                }
                if (lane < NARROW_ROWS) {
                    // As in `copy_kv_block`.
                    fence_proxies();
                    copy_bulk(to + lane * QUERY_ROW_BYTES,
                              job.query(first_row + min(lane, rows - 1), head) + team.part * PART_DIM,
                              PART_DIM * sizeof(T), full);
                }
            } else {
                const unsigned at = (item - 1) / 2, values = (item - 1) % 2;
                if (item % 64 == 1 && item > 1) {
                    hold(job, at);
                }
                const uint2 words = kv_block(at);
                const KvBlock kv_block = kv_block_of(words, field(6));
                const KvElement* page = values ? job.values(kv_block.page, head) : job.keys(kv_block.page, head);
                copy_kv_block(to, page + KV_BLOCK_TOKENS * team.part * PART_DIM, kv_block, full);
                if (lane == 0) {
                    shared.kv_block_words[slot] = words.y;
                }
            }
            if (++item > 2 * kv_blocks) {
                item = 0;
                if (++head % job.words[NARROW_HEADS] == 0) {
                    more = false;
                    ended = true;
                } else if (kv_blocks > 32) {
                    hold(job, 0);
                }
            }
        }
    }
};

// This lane's share of a tile's rows: queries, o, m and l.
struct StreamRows {
    unsigned query[PART_STEPS][2];
    float o[PART_STEPS][4];
    float m[2], l[2];

    __device__ __forceinline__ void begin(unsigned queries) {
        const unsigned lane = threadIdx.x % 32;
        if constexpr (FP8) {
#pragma unroll
            for (unsigned k = 0; k < PART_STEPS; k++) {
                load_8(query[k], queries + lane / 4 * QUERY_ROW_BYTES + k * 32 + lane % 4 * 8);
                query[k][0] = as_f16<T>(query[k][0]);
                query[k][1] = as_f16<T>(query[k][1]);
            }
        } else {
#pragma unroll
            for (unsigned k = 0; k < PART_STEPS; k += 2) {
                unsigned b[4];
                load_matrices(b, queries + lane % 8 * QUERY_ROW_BYTES + lane / 8 * 16 + k * 32);
                query[k][0] = b[0];
                query[k][1] = b[1];
                if (k + 1 < PART_STEPS) {
                    query[k + 1][0] = b[2];
                    query[k + 1][1] = b[3];
                }
            }
        }
#pragma unroll
        for (unsigned n = 0; n < PART_STEPS; n++) {
            o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
        }
        m[0] = m[1] = NO_SCORE;
        l[0] = l[1] = 0.0f;
    }

    // Scores of a KV block.
    __device__ __forceinline__ void score(float (&s)[2][4], unsigned keys) const {
        const unsigned lane = threadIdx.x % 32, row = lane / 8 % 2 * 8 + lane % 8;
        float odd[2][4] = {};
#pragma unroll
        for (unsigned h = 0; h < 2; h++) {
            s[h][0] = s[h][1] = s[h][2] = s[h][3] = 0.0f;
        }
#pragma unroll
        for (unsigned k = 0; k < PART_STEPS; k++) {
            unsigned bytes[4];
            if constexpr (FP8) {
                load_matrices(bytes, moved_by(row_place(keys, lane, 0), k));
            }
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                unsigned a[4];
                if constexpr (FP8) {
                    unsigned upper[2], lower[2];
                    widen(upper, bytes[2 * h]);
                    widen(lower, bytes[2 * h + 1]);
                    a[0] = upper[0], a[1] = lower[0], a[2] = upper[1], a[3] = lower[1];
                } else {
                    load_matrices(a, moved_by(row_place(keys, row, lane / 16), 2 * k) + h * 16 * KV_ROW_BYTES);
                }
                // Two chains of sums, except for fp8, which needs the registers for widening.
                multiply<Operand>(k % 2 && !FP8 ? odd[h] : s[h], a, query[k][0], query[k][1]);
            }
        }
#pragma unroll
        for (unsigned i = 0; i < 8; i++) {
            s[i / 4][i % 4] += odd[i / 4][i % 4];
        }
    }

    // Turns scores into weights against the new m, rescales o, and packs the weights as operands.
    __device__ __forceinline__ void softmax_step(float (&s)[2][4], float scale, unsigned (&weights)[2][2]) {
        float factor[2];
#pragma unroll
        for (unsigned c = 0; c < 2; c++) {
            const float most = fmaxf(fmaxf(s[0][c], s[0][c + 2]), fmaxf(s[1][c], s[1][c + 2]));
            const float top = fmaxf(m[c], column_max(most) * scale), against = finite_max(top);
            factor[c] = weight(m[c], against);
            m[c] = top;
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                s[i / 2][c + i % 2 * 2] = weight(s[i / 2][c + i % 2 * 2] * scale, against);
            }
            l[c] = l[c] * factor[c] + ((s[0][c] + s[0][c + 2]) + (s[1][c] + s[1][c + 2]));
        }
        if (__any_sync(ALL_LANES, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
            for (unsigned n = 0; n < PART_STEPS; n++) {
                o[n][0] *= factor[0];
                o[n][1] *= factor[1];
                o[n][2] *= factor[0];
                o[n][3] *= factor[1];
            }
        }
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            weights[i / 2][i % 2] = transpose(pack<Operand>(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]));
        }
    }

    // Adds weights^T times values to o.
    __device__ __forceinline__ void add(const unsigned (&weights)[2][2], unsigned values) {
        const unsigned lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8;
        if constexpr (FP8) {
#pragma unroll
            for (unsigned n = 0; n < PART_STEPS; n++) {
                unsigned bytes[4];
                load_matrices_transposed(bytes, moved_by(row_place(values, lane, 0), n));
#pragma unroll
                for (unsigned h = 0; h < 2; h++) {
                    // From an even and an odd element of each of two tokens to both even ones, then both odd ones.
                    unsigned left[2], right[2];
                    widen(left, __byte_perm(bytes[2 * h], 0, 0x3120));
                    widen(right, __byte_perm(bytes[2 * h + 1], 0, 0x3120));
                    const unsigned a[4] = {left[0], left[1], right[0], right[1]};
                    multiply<Operand>(o[n], a, weights[h][0], weights[h][1]);
                }
            }
            return;
        }
#pragma unroll
        for (unsigned h = 0; h < 2; h++) {
#pragma unroll
            for (unsigned n = 0; n < PART_STEPS; n++) {
                unsigned a[4];
                load_matrices_transposed(a,
                                         moved_by(row_place(values, row, lane / 8 % 2), 2 * n) + h * 16 * KV_ROW_BYTES);
                multiply<Operand>(o[n], a, weights[h][0], weights[h][1]);
            }
        }
    }

    // Writes part `part` of each row's result to `out` if this is its only state, else as a partial state.
    __device__ __forceinline__ void store(const Job& job, const Tile& tile, unsigned head, unsigned part) {
        const unsigned lane = threadIdx.x % 32, q_heads = job.group * job.kv_heads;
        float scale[2];
        bool alone = false;
#pragma unroll
        for (unsigned c = 0; c < 2; c++) {
            l[c] = column_sum(l[c]);
            scale[c] = 0.0f;
            const unsigned i = lane % 4 * 2 + c, packed = tile.first_row + i, row = job.by_group.quotient(packed);
            if (i >= tile.rows) {
                continue;
            }
            const unsigned q_head = head * job.group + job.by_group.remainder(packed);
            if (has_one_state(job.words, tile.states, row)) {
                const float sink = sink_of(job.sinks, q_head);
                scale[c] = final_factor_fast(m[c], l[c], sink);
                alone = true;
                if (job.lse && lane / 4 == 0 && part == 0) {
                    job.lse[static_cast<size_t>(row) * q_heads + q_head] = log_sum(m[c], l[c], sink);
                }
                continue;
            }
            size_t state =
                static_cast<size_t>(tile.slot + row - job.by_group.quotient(tile.first_row)) * q_heads + q_head;
            float* to = job.partials.o + state * VALUE_DIM + part * PART_DIM + state_place(lane / 4 * (FP8 ? 2 : 1));
#pragma unroll
            for (unsigned n = 0; n < PART_STEPS; n++) {
                if constexpr (FP8) {
                    to[n * 16] = o[n][c];
                    to[n * 16 + 2] = o[n][c + 2];
                } else {
                    *reinterpret_cast<float2*>(to + n * 16) = {o[n][c], o[n][c + 2]};
                }
            }
            if (lane / 4 == 0 && part == 0) {
                job.partials.extents[state] = {m[c], l[c]};
            }
        }
        if (!__any_sync(ALL_LANES, alone)) {
            return;
        }
        // After transposing, a lane holds neighbouring elements of row t / 4.
        const unsigned packed = packed_row(tile, lane / 4), row = job.by_group.quotient(packed);
        const bool real = lane / 4 < tile.rows && has_one_state(job.words, tile.states, row);
        T* out = job.out +
                 (static_cast<size_t>(row) * q_heads + head * job.group + job.by_group.remainder(packed)) * VALUE_DIM +
                 part * PART_DIM + lane % 4 * (FP8 ? 4 : 2);
#pragma unroll
        for (unsigned n = 0; n < PART_STEPS; n++) {
            unsigned upper = transpose(pack<T>(o[n][0] * scale[0], o[n][1] * scale[1]));
            unsigned lower = transpose(pack<T>(o[n][2] * scale[0], o[n][3] * scale[1]));
            if (FP8 && real) {
                *reinterpret_cast<uint2*>(out + n * 16) = {__byte_perm(upper, lower, 0x5410),
                                                           __byte_perm(upper, lower, 0x7632)};
            } else if (real) {
                *reinterpret_cast<unsigned*>(out + n * 16) = upper;
                *reinterpret_cast<unsigned*>(out + n * 16 + 8) = lower;
            }
        }
    }
};

// Sums the parts' products with keys, in the order of the parts. `turn`: number of the exchange.
__device__ __forceinline__ void sum_parts(float (&s)[2][4], const Team& team, unsigned turn) {
    const unsigned from = team.exchange + turn % 2 * 1024 + threadIdx.x % 32 * 16, to = from + team.part * team.apart;
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
        store_16(to + h * 512, __float_as_uint(s[h][0]), __float_as_uint(s[h][1]), __float_as_uint(s[h][2]),
                 __float_as_uint(s[h][3]));
    }
    team.meet_all();
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
#pragma unroll
        for (unsigned part = 0; part < PARTS; part++) {
            unsigned words[4];
            load_16(words, from + part * team.apart + h * 512);
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                s[h][i] = part == 0 ? __uint_as_float(words[i]) : s[h][i] + __uint_as_float(words[i]);
            }
        }
    }
}

// Sets scores that the lane's rows do not see to NO_SCORE.
__device__ __forceinline__ void mask_kv_block(const Job& job, float (&s)[2][4], const KvBlock& kv_block,
                                              const Tile& tile, unsigned window) {
#pragma unroll
    for (unsigned c = 0; c < 2; c++) {
        const unsigned row = job.by_group.quotient(packed_row(tile, threadIdx.x % 4 * 2 + c));
        const Slots seen =
            seen_slots(kv_block, tile.lowest == tile.highest ? tile.highest : job.positions[row], window);
        const unsigned from = threadIdx.x % 32 / 4 - seen.from;
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            s[i / 2][c + i % 2 * 2] = from + i * 8 < seen.count ? s[i / 2][c + i % 2 * 2] : NO_SCORE;
        }
    }
}

// Called by one warp, or by all of a team: computes unit `first` and all further units it takes by ticket, with a ring
// of SLOTS.
template <unsigned SLOTS>
__device__ __forceinline__ void stream_narrow(const Job& job, unsigned first, unsigned ring, StreamShared& shared,
                                              const Team& team) {
    static_assert(SLOTS <= MAX_SLOTS, "one info a slot");
    StreamCopies copies = {};
    copies.team = team;
    unsigned exchanges = 0;
    copies.open(job, first, shared);
    if (!copies.more) {
        return;
    }
    if (threadIdx.x % 32 == 0) {
        for (unsigned i = 0; i < SLOTS; i++) {
            init_barrier(shared_address(&shared.full[i]), 32);
        }
        fence_proxies();
    }
    __syncwarp();
#pragma unroll 1
    for (unsigned i = 0; i < SLOTS - 1; i++) {
        copies.issue(job, ring, i, shared);
    }
    if constexpr (PARTS > 1) {
        // The second unit may be opened before scores are exchanged.
        copies.tell_ticket();
        team.meet_all();
    }
    unsigned slot = 0, free = SLOTS - 1, parity = 0;  // parity: of the phase that the oldest copy ends
    // Issues the newest copy into the slot freed last, waits for the oldest copy, and returns its address.
    auto next_copy = [&] {
        __syncwarp();
        copies.issue(job, ring, free, shared);
        wait_barrier(shared_address(&shared.full[slot]), parity);
        free = slot;
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        parity ^= slot == 0;
        return ring + free * SLOT_BYTES;
    };
#pragma unroll 1
    for (unsigned taken = 0; taken < copies.opened; taken++) {
        __syncwarp();  // the tile was written by other lanes
        const Tile& tile = shared.tiles[taken % OPENED];
        const unsigned kv_blocks = tile.kv_blocks, begin = shared.heads[taken % OPENED],
                       end = begin + job.words[NARROW_HEADS];
#pragma unroll 1
        for (unsigned head = begin; head < end; head++) {
            StreamRows rows;
            // A unit's last copy is issued while copy SLOTS - 1 before it is waited for, which may be in the previous
            // unit; the next slot then belongs to the next unit.
            if constexpr (SLOTS == 4) {
                copies.open_next(job, shared);
            }
            rows.begin(next_copy());
#pragma unroll 1
            for (unsigned i = 0; i < kv_blocks; i++) {
                if constexpr (SLOTS % 2 == 1) {
                    copies.open_next(job, shared);
                }
                const unsigned keys = next_copy();
                float s[2][4];
                rows.score(s, keys);
                if constexpr (PARTS > 1) {
                    copies.tell_ticket();
                    sum_parts(s, team, exchanges++);
                }
                job.cap(s);
                const KvBlock kv_block = kv_block_of({0, shared.kv_block_words[free]}, tile.highest);
                const unsigned window = job.words[WINDOW];
                const bool whole = kv_block.from == 0 && kv_block.to == KV_BLOCK_TOKENS &&
                                   kv_block.base + KV_BLOCK_TOKENS <= tile.lowest + 1 &&
                                   tile.highest - kv_block.base < window;
                if (!whole) {
                    mask_kv_block(job, s, kv_block, tile, window);
                }
                unsigned weights[2][2];
                rows.softmax_step(s, job.scale, weights);
                if constexpr (SLOTS % 2 == 0) {
                    copies.open_next(job, shared);
                }
                rows.add(weights, next_copy());
            }
            rows.store(job, tile, head, team.part);
        }
    }
}
