// Every expert's matrix of 4-bit weights times the inputs of its places, on Hopper, for f16 and bf16. One block per
// multiprocessor: in one warpgroup a warp copies panels of codes into a ring and three copy inputs. The others turn
// codes into operands in registers and multiply 64 outputs each. SPLITS of them share outputs and take every SPLITS-th
// panel, so that few outputs occupy the whole multiprocessor too. Tiles follow each other in the ring without a gap.
//
// out[place] = matrix[expert] x[input of the place] (+ bias[expert]) (+ the old out[place], if `accumulates`). An
// element of the matrix is scale * (code - zero), of NVFP4 factor * scale * number, and sums are those of
// four_bit/sums.cuh.
//
// Shapes: x ELEMENT [rows or places, inner], inner a multiple of 8; weights as in four_bit/panels.cuh; bias f32
// [experts, outputs]; firsts [experts + 1], rows [places]; out ELEMENT (f32 if `sums`) [places, outputs].
// A tile has up to CAP places. The sum over the inputs is the same chain for all its sizes; SPLITS changes it.
// Grid: any number of blocks of (GROUPS * SPLITS + 1) * 128 threads; dynamic shared memory for the ring and the splits'
// sums (`FourBitTiles` of crates/cuda/src/compile/four_bit.rs).
// Limit: bandwidth of the weights for few places; tensor cores, and the second-level cache's bandwidth, for many.
// Definition: `Backend::expert_linear`; on the CPU, crates/cpu/src/gemm/quantised/clear.rs.
//
// Defines: ELEMENT, FP4, GROUP, CAP (16, 32, 64, 128, 192 or 256), GROUPS, SPLITS, RING_STAGES, RESCALES (unless scales
// are in the operands), GATED (0).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "attention/barrier.cuh"
#include "attention/mma.cuh"
#include "experts/store.cuh"
#define MOST_STEPS 2
#include "four_bit/sums.cuh"
#include "four_bit/tiles.cuh"
#include "registers.cuh"

constexpr unsigned STAGES = RING_STAGES, MULTIPLIERS = GROUPS * SPLITS;  // warpgroups that multiply
constexpr unsigned OUTPUTS = GROUPS * CODE_OUTPUTS;  // of a tile
// A stage has inputs in two panels of 64, which are aligned to 1024 bytes, and behind them GROUPS panels of codes.
constexpr unsigned INPUT_PANEL_BYTES = CAP * PANEL_ROW_BYTES, INPUT_BYTES = 2 * INPUT_PANEL_BYTES;
constexpr unsigned STAGE_BYTES = (INPUT_BYTES + GROUPS * CODE_PANEL_BYTES + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES;
// Stages whose inputs may be on their way while the next one is copied. Every split reads a stage while it waits for
// its next.
constexpr unsigned FREE_STAGES = STAGES - SPLITS - 1, BEHIND = FREE_STAGES < 2 ? FREE_STAGES : 2;
constexpr unsigned INPUT_WARPS = 3;
// All threads of a block begin with as many as a multiprocessor has for each.
constexpr unsigned BEGIN_REGISTERS = 65536 / ((MULTIPLIERS + 1) * GROUP_THREADS) / 8 * 8;
constexpr unsigned MULTIPLIER_REGISTERS = MULTIPLIERS == 2 ? (CAP > 128 ? 216 : 200) : MULTIPLIERS == 3 ? 136 : 104;
constexpr unsigned COPIER_REGISTERS = BEGIN_REGISTERS * (MULTIPLIERS + 1) - MULTIPLIERS * MULTIPLIER_REGISTERS;
static_assert(MULTIPLIERS >= 2 && MULTIPLIERS <= 4, "registers are shared out for so many");
static_assert(STAGES > SPLITS, "every split waits for a stage while it reads one");
constexpr unsigned SPLIT_SUMS = CAP / 2;  // f32 of a thread
constexpr unsigned LEAST_COLUMNS = CAP <= 64 ? 8 : CAP == 128 ? 16 : 32;  // of a product; doubled up to CAP

struct Ring {
    unsigned long long full[STAGES], empty[STAGES];
};

using RingCursor = Cursor<STAGES>;

// The stages of the panels of one split, which are SPLITS apart.
struct SplitCursor {
    unsigned stage, parity;

    // `turn`: the stages that were filled before.
    __device__ __forceinline__ explicit SplitCursor(unsigned turn) : stage(turn % STAGES), parity(turn / STAGES % 2) {}
    __device__ __forceinline__ void next() {
        stage += SPLITS;
        if (stage >= STAGES) {
            stage -= STAGES;
            parity ^= 1;
        }
    }
};

// The ring in shared memory, as four_bit/sums.cuh has it. `group`: whose codes a warpgroup reads.
struct Stages {
    Ring& ring;
    const unsigned char* begin;  // aligned to 1024
    unsigned group;

    __device__ __forceinline__ unsigned x(unsigned stage) const {
        return shared_address(begin) + stage * STAGE_BYTES;
    }
    __device__ __forceinline__ const unsigned char* codes(unsigned stage) const {
        return begin + stage * STAGE_BYTES + INPUT_BYTES + group * CODE_PANEL_BYTES;
    }
    __device__ __forceinline__ void wait(unsigned stage, unsigned parity) const {
        wait_barrier(shared_address(&ring.full[stage]), parity);
    }
    __device__ __forceinline__ void release(unsigned stage) const {
        if (threadIdx.x % 32 == 0) {
            arrive(shared_address(&ring.empty[stage]));
        }
    }
};

// What this block multiplies: every gridDim.x-th of all tiles.
struct Work {
    Operands operands;
    unsigned across, down;  // tiles of the outputs, and of the places
    unsigned index;

    __device__ __forceinline__ Work(const Operands& given, const TileEnds& ends)
        : operands(given),
          across((given.outputs + OUTPUTS - 1) / OUTPUTS),
          down(ends.of[given.experts - 1]),
          index(blockIdx.x) {}
    __device__ __forceinline__ bool more() const {
        return index < across * down;
    }
    __device__ __forceinline__ void next() {
        index += gridDim.x;
    }
    __device__ __forceinline__ Rows rows(const TileEnds& ends) const {
        return rows_of(ends, operands, tile_index(operands, index, across, down).places, CAP);
    }
    // The tile's first output.
    __device__ __forceinline__ unsigned output() const {
        return tile_index(operands, index, across, down).outputs * OUTPUTS;
    }
};

// Runs the warp that copies codes: a lane for each panel of a stage.
__device__ __forceinline__ void copy_codes(Work work, const TileEnds& ends, const unsigned char* weights, unsigned ring,
                                           Ring& shared) {
    const Operands& operands = work.operands;
    const unsigned lane = threadIdx.x % 32, panels = code_panels(operands.inner);
    RingCursor cursor;
#pragma unroll 1
    for (; work.more(); work.next()) {
        const Rows rows = work.rows(ends);
        // The last tile may not have outputs for all warpgroups.
        const unsigned real = min(code_groups(operands.outputs - work.output()), GROUPS);
        const unsigned own = work.output() + (lane < real ? lane * CODE_OUTPUTS : 0);
        const unsigned char* from = weights + panel_at(rows.expert, own, operands.outputs, operands.inner);
#pragma unroll 1
        for (unsigned panel = 0; panel < panels; panel++) {
            const unsigned full = shared_address(&shared.full[cursor.stage]);
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
            if (lane == 0) {
                arrive_expecting(full, real * CODE_PANEL_BYTES);
            }
            // The barrier knows of the bytes before any of them can come.
            __syncwarp();
            if (lane < real) {
                copy_bulk(ring + cursor.stage * STAGE_BYTES + INPUT_BYTES + lane * CODE_PANEL_BYTES, from,
                          CODE_PANEL_BYTES, full);
            }
            from += CODE_PANEL_BYTES;
            cursor.next();
        }
    }
}

// Runs the warps that copy inputs, in chunks of 16 bytes, one column of chunks a thread. Columns without a place hold
// whatever lay there before; they are not stored.
__device__ __forceinline__ void copy_inputs(Work work, const TileEnds& ends, const ELEMENT* x, unsigned ring,
                                            Ring& shared) {
    constexpr unsigned TOGETHER = INPUT_WARPS * 2, TURNS = (CAP + TOGETHER - 1) / TOGETHER;  // rows copied at a time
    const Operands& operands = work.operands;
    const unsigned thread = threadIdx.x - 32, lane = thread % 32, row = thread / 16, chunk = thread % 16;
    const unsigned chunks = operands.inner / 8, panels = code_panels(operands.inner);
    RingCursor cursor, signalled;
    unsigned waiting = 0;  // stages whose inputs are copied but not signalled
    auto signal = [&] {
        fence_proxies();
        __syncwarp();
        if (lane == 0) {
            arrive(shared_address(&shared.full[signalled.stage]));
        }
        signalled.next();
        waiting--;
    };
#pragma unroll 1
    for (; work.more(); work.next()) {
        const Rows rows = work.rows(ends);
        const unsigned turns = row < rows.count ? (rows.count - row + TOGETHER - 1) / TOGETHER : 0;
        unsigned inputs[TURNS];  // the chunk at which each begins
#pragma unroll
        for (unsigned i = 0; i < TURNS; i++) {
            inputs[i] = i < turns ? input_of(operands, rows.first + i * TOGETHER + row) * chunks : 0;
        }
#pragma unroll 1
        for (unsigned panel = 0; panel < panels; panel++) {
            const unsigned to = ring + cursor.stage * STAGE_BYTES + chunk / 8 * INPUT_PANEL_BYTES;
            const unsigned from = panel * 16 + chunk;
            const bool exists = from < chunks;
            const ELEMENT* column = x + (exists ? from * 8 : 0);
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
#pragma unroll
            for (unsigned i = 0; i < TURNS; i++) {
                if (i < turns) {
                    const unsigned at = i * TOGETHER + row;
                    copy_16(to + at * PANEL_ROW_BYTES + (chunk ^ at) % 8 * 16,
                            column + static_cast<unsigned long long>(inputs[i]) * 8, exists);
                }
            }
            copies_issued();
            cursor.next();
            if (++waiting > BEHIND) {
                wait_copies<BEHIND>();
                signal();
            }
        }
    }
    wait_copies<0>();
    while (waiting > 0) {
        signal();
    }
}

// Adds the sums of all splits in their order, in the first one's registers. `partial`:
// [SPLITS - 1][GROUPS][SPLIT_SUMS][128].
template <unsigned COLUMNS>
__device__ __forceinline__ void join_splits(float (&sum)[COLUMNS / 8][4], float* partial, unsigned group,
                                            unsigned split) {
    const unsigned thread = threadIdx.x % GROUP_THREADS;
    auto at = [&](unsigned of) { return partial + ((of - 1) * GROUPS + group) * SPLIT_SUMS * GROUP_THREADS + thread; };
    // The first split has read the sums of the tile before.
    meet(1, MULTIPLIERS * GROUP_THREADS);
    if (split > 0) {
#pragma unroll
        for (unsigned n = 0; n < COLUMNS / 2; n++) {
            at(split)[n * GROUP_THREADS] = sum[n / 4][n % 4];
        }
    }
    meet(1, MULTIPLIERS * GROUP_THREADS);
    if (split == 0) {
#pragma unroll 1
        for (unsigned other = 1; other < SPLITS; other++) {
#pragma unroll
            for (unsigned n = 0; n < COLUMNS / 2; n++) {
                sum[n / 4][n % 4] += at(other)[n * GROUP_THREADS];
            }
        }
    }
}

// Multiplies one tile of COLUMNS columns and stores its results. `turn`: the stages that all tiles before it had.
template <unsigned COLUMNS>
__device__ __forceinline__ void multiply_tile(const Work& work, const Rows& rows, const Results& results,
                                              const unsigned char* weights, unsigned char* dynamic, unsigned offset,
                                              Ring& shared, unsigned turn) {
    const unsigned warpgroup = threadIdx.x / GROUP_THREADS - 1, group = warpgroup % GROUPS, split = warpgroup / GROUPS;
    const unsigned panels = code_panels(work.operands.inner);
    // Zeros, not a first product without a sum: else registers of all sizes stay in use.
    float sum[COLUMNS / 8][4] = {};
    if (split < panels) {
        SplitCursor cursor(turn + split);
        const Stages stages = {shared, dynamic + offset, group};
        sum_panels<COLUMNS>(sum, cursor, (panels - split + SPLITS - 1) / SPLITS, stages, INPUT_PANEL_BYTES);
        const Operands& operands = work.operands;
        multiply_by_factors<COLUMNS>(sum, weights, rows.expert, work.output() + group * CODE_OUTPUTS, operands.outputs,
                                     operands.inner);
    }
    if (SPLITS > 1) {
        join_splits<COLUMNS>(sum, reinterpret_cast<float*>(dynamic + offset + STAGES * STAGE_BYTES), group, split);
    }
    if (split == 0) {
        const unsigned warp = threadIdx.x % GROUP_THREADS / 32;
        store_sums(results, work.operands, rows, work.output() + group * CODE_OUTPUTS + warp * 16, sum);
    }
}

// Multiplies one tile with the fewest columns, COLUMNS or more, that its places need.
template <unsigned COLUMNS>
__device__ __forceinline__ void multiply_fitting(const Work& work, const Rows& rows, const Results& results,
                                                 const unsigned char* weights, unsigned char* dynamic, unsigned offset,
                                                 Ring& shared, unsigned turn) {
    if constexpr (COLUMNS < CAP) {
        if (rows.count > COLUMNS) {
            multiply_fitting<(COLUMNS * 2 < CAP ? COLUMNS * 2 : CAP)>(work, rows, results, weights, dynamic, offset,
                                                                      shared, turn);
            return;
        }
    }
    multiply_tile<COLUMNS>(work, rows, results, weights, dynamic, offset, shared, turn);
}

// Runs the warpgroups that multiply. `offset`: of the ring in `dynamic`.
__device__ __forceinline__ void multiply_tiles(Work work, const TileEnds& ends, const Results& results,
                                               const unsigned char* weights, unsigned char* dynamic, unsigned offset,
                                               Ring& shared) {
    unsigned turn = 0;
#pragma unroll 1
    for (; work.more(); work.next(), turn += code_panels(work.operands.inner)) {
        multiply_fitting<LEAST_COLUMNS>(work, work.rows(ends), results, weights, dynamic, offset, shared, turn);
    }
}

extern "C" __global__ void __launch_bounds__((MULTIPLIERS + 1) * GROUP_THREADS, 1)
    expert_linear_4bit_wgmma(void* out, const ELEMENT* __restrict__ x, const unsigned char* __restrict__ weights,
                             const float* __restrict__ bias, const unsigned* __restrict__ firsts,
                             const unsigned* __restrict__ rows, unsigned experts, unsigned outputs, unsigned inner,
                             unsigned places, unsigned gathers, unsigned biased, unsigned sums, unsigned accumulates) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Ring shared;
    __shared__ TileEnds ends;
    const Operands operands = {firsts, rows, experts, outputs, inner, gathers};
    const Results results = {out, bias, biased, sums, SILU, accumulates};
    const unsigned begin = shared_address(dynamic), ring = (begin + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES;
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            // Each warp that copies inputs, and all lanes of the one that copies codes.
            init_barrier(shared_address(&shared.full[i]), INPUT_WARPS + 32);
            // The warpgroups of one split.
            init_barrier(shared_address(&shared.empty[i]), GROUPS * GROUP_THREADS / 32);
        }
        fence_proxies();
    }
    count_any_tiles(ends, operands, places, CAP);
    __syncthreads();
    const Work work(operands, ends);
    const unsigned warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // uniform for the compiler
    if (warp < GROUP_THREADS / 32) {
        fewer_registers<COPIER_REGISTERS>();
        if (warp == 0) {
            copy_codes(work, ends, weights, ring, shared);
        } else {
            copy_inputs(work, ends, x, ring, shared);
        }
    } else {
        more_registers<MULTIPLIER_REGISTERS>();
        multiply_tiles(work, ends, results, weights, dynamic, ring - begin, shared);
    }
}
#endif
