// expert_linear on Hopper, for f16 and bf16: every expert's matrix times the inputs of its places, or, if GATED, the
// gate of its two halves. One block per multiprocessor, of three or four warpgroups: in one a warp copies weights into
// a ring and three copy inputs, the others multiply 64 rows of panels each. Tiles follow each other in the ring without
// a gap, so that few places cost what reading the weights costs.
//
// out[place] = matrix[expert] x[input of the place] (+ bias[expert]); with GATED, gate(first half, second half) of
// that.
//
// Shapes: x ELEMENT [rows or places, inner], inner a multiple of 8; weights as in experts/panels.cuh; bias f32
// [experts, outputs]; firsts [experts + 1], rows [places]; out ELEMENT (or f32 if `sums`) [places, outputs, or half of
// them].
// A tile has up to CAP places, and those of an expert are spread evenly over its tiles: a rest of few places would read
// the weights again for little. Its columns are rounded up to a size of `multiply_panels`; the sum over the inputs is
// the same chain for all sizes, so a result depends on its input and its expert alone.
// Grid: any number of blocks of (MULTIPLIERS + 1) * 128 threads; dynamic shared memory for the ring (`ExpertTiles` of
// crates/cuda/src/compile/elements.rs).
// Limit: bandwidth of the weights for few places; for many, tensor cores and memory at once, and what neither hides: a
// tile's end, for which its block's tensor cores wait. No cache is near its rate: asking for weights ahead of the ring
// only has them read twice, and tiles of twice the panels leave rings too short.
// Definition: `Backend::expert_linear`; on the CPU, crates/cpu/src/gemm/grouped.rs.
//
// Defines: ELEMENT, CAP (64 or 192), GATED (0 or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "attention/barrier.cuh"
#include "attention/mma.cuh"
#include "experts/products.cuh"
#include "experts/staging.cuh"
#include "registers.cuh"

constexpr unsigned GROUP_THREADS = 128, MULTIPLIERS = CAP == 64 ? 2 : 3;  // warpgroups that multiply
constexpr unsigned PRODUCTS = MULTIPLIERS * PANEL;  // rows of panels in a tile
constexpr unsigned WEIGHT_BYTES = MULTIPLIERS * WEIGHT_PANEL_BYTES, INPUT_BYTES = CAP * PANEL_ROW_BYTES;
constexpr unsigned STAGE_BYTES = WEIGHT_BYTES + INPUT_BYTES;
constexpr unsigned STAGES = CAP == 64 ? 9 : 4;
constexpr unsigned INPUT_WARPS = 3;
constexpr unsigned COPIER_REGISTERS = 72, MULTIPLIER_REGISTERS = CAP == 64 ? 216 : 144;
static_assert(COPIER_REGISTERS + MULTIPLIERS * MULTIPLIER_REGISTERS <= 512, "the registers of a multiprocessor");
// Whether results go through shared memory: those of the smaller tiles are few, and its ring leaves no room.
constexpr bool STAGED = CAP > 64;

struct Ring {
    unsigned long long full[STAGES], empty[STAGES];
};

using RingCursor = Cursor<STAGES>;

// Places of a tile are a multiple, but for an expert's last one: most sizes of a product are.
constexpr unsigned COLUMN_STEP = 16;
static_assert(CAP % COLUMN_STEP == 0, "no tile is empty");

// What this block multiplies: every gridDim.x-th of all tiles, those of the same places one after another.
struct Work {
    Operands operands;
    unsigned across;  // tiles of the outputs
    unsigned count, of_places, of_outputs;  // tiles of places; which this one is, and which of those across
    unsigned expert = 0;

    __device__ __forceinline__ Work(const Operands& given, const TileEnds& ends)
        : operands(given),
          across((given.outputs + PRODUCTS - 1) / PRODUCTS),
          count(ends.of[given.experts - 1]),
          of_places(blockIdx.x / across),
          of_outputs(blockIdx.x % across) {}
    __device__ __forceinline__ bool more() const {
        return of_places < count;
    }
    __device__ __forceinline__ void next() {
        of_places += gridDim.x / across;
        of_outputs += gridDim.x % across;
        if (of_outputs >= across) {
            of_outputs -= across;
            of_places++;
        }
    }
    __device__ __forceinline__ Rows rows(const TileEnds& ends) {
        return even_rows_of(ends, of_places, COLUMN_STEP, expert);
    }
    // The first row of panels in the tile.
    __device__ __forceinline__ unsigned product() const {
        return of_outputs * PRODUCTS;
    }
};

// Columns of a product: the fewest, and those of the next larger one.
constexpr unsigned FEWEST_COLUMNS = CAP == 64 ? 8 : 16;
__device__ constexpr unsigned more_columns(unsigned columns) {
    return CAP == 64 ? columns * 2 : columns + COLUMN_STEP;
}

// Runs the warp that copies weights: a lane for each panel of a stage.
__device__ __forceinline__ void copy_weights(Work work, const TileEnds& ends, const char* weights, unsigned ring,
                                             Ring& shared) {
    const Operands& operands = work.operands;
    const unsigned lane = threadIdx.x % 32, panels = panels_of(operands.inner);
    RingCursor cursor;
#pragma unroll 1
    for (; work.more(); work.next()) {
        const Rows rows = work.rows(ends);
        // The last tile may not have rows for all warpgroups.
        const unsigned real = min(panels_of(operands.outputs - work.product()), MULTIPLIERS);
        const char* from = weights + (lane < real ? row_at(operands, rows.expert, work.product() + lane * PANEL) : 0);
#pragma unroll 1
        for (unsigned panel = 0; panel < panels; panel++) {
            const unsigned full = shared_address(&shared.full[cursor.stage]);
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
            if (lane == 0) {
                arrive_expecting(full, real * WEIGHT_PANEL_BYTES);
            }
            // The barrier knows of the bytes before any of them can come.
            __syncwarp();
            if (lane < real) {
                copy_bulk(ring + cursor.stage * STAGE_BYTES + lane * WEIGHT_PANEL_BYTES, from, WEIGHT_PANEL_BYTES,
                          full);
            }
            from += WEIGHT_PANEL_BYTES;
            cursor.next();
        }
    }
}

// Runs the warps that copy inputs, in chunks of 16 bytes, one column of chunks a thread. Columns without a place hold
// whatever lay there before; they are not stored. Copies arrive by themselves, so that no thread waits for them:
// products wait for a stage's inputs only as long as these are on their way, not for room in the stages behind it.
__device__ __forceinline__ void copy_inputs(Work work, const TileEnds& ends, const ELEMENT* x, unsigned ring,
                                            Ring& shared) {
    constexpr unsigned TOGETHER = INPUT_WARPS * 4, TURNS = (CAP + TOGETHER - 1) / TOGETHER;  // rows copied at a time
    static_assert(TOGETHER % 8 == 4, "every other turn differs in bit 2 of its rows");
    const Operands& operands = work.operands;
    const unsigned thread = threadIdx.x - 32, row = thread / 8, chunk = thread % 8;
    const unsigned place = (chunk ^ row % 8) * 16, chunks = operands.inner / 8, panels = panels_of(operands.inner);
    RingCursor cursor;
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
            const unsigned to = ring + cursor.stage * STAGE_BYTES + WEIGHT_BYTES + row * PANEL_ROW_BYTES;
            const unsigned from = panel * 8 + chunk;
            const bool exists = from < chunks;
            const ELEMENT* column = x + (exists ? from * 8 : 0);
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
#pragma unroll
            for (unsigned i = 0; i < TURNS; i++) {
                if (i < turns) {
                    copy_16(to + i * TOGETHER * PANEL_ROW_BYTES + (place ^ i % 2 * 64),
                            column + static_cast<unsigned long long>(inputs[i]) * 8, exists);
                }
            }
            arrive_with_copies(shared_address(&shared.full[cursor.stage]));
            cursor.next();
        }
    }
    // No thread ends before its copies.
    copies_issued();
    wait_copies<0>();
}

// The sums of a warpgroup, for all places that a tile may have.
using Sums = float[CAP / 8][4];

// Adds the products of a tile of COLUMNS columns to the first of `sum`.
template <unsigned COLUMNS>
__device__ __forceinline__ void multiply_columns(unsigned panels, unsigned ring, Ring& shared, RingCursor& cursor,
                                                 Sums& sum) {
    const unsigned group = threadIdx.x / GROUP_THREADS - 1;
    unsigned before = 0;
    auto release = [&] {
        if (threadIdx.x % 32 == 0) {
            arrive(shared_address(&shared.empty[before]));
        }
    };
#pragma unroll 1
    for (unsigned panel = 0; panel < panels; panel++) {
        wait_barrier(shared_address(&shared.full[cursor.stage]), cursor.parity);
        // Inputs were not written by the copy engine.
        fence_proxies();
        const unsigned stage = ring + cursor.stage * STAGE_BYTES;
        const unsigned long long w = descriptor(stage + group * WEIGHT_PANEL_BYTES),
                                 x = descriptor(stage + WEIGHT_BYTES);
        begin_products();
#pragma unroll
        for (unsigned k = 0; k < PANEL / 16; k++) {
            // 16 elements further: 32 bytes.
            multiply_panels<ELEMENT, COLUMNS>(reinterpret_cast<float (&)[COLUMNS / 8][4]>(sum), w + k * 2, x + k * 2);
        }
        products_issued();
        if (panel > 0) {
            wait_products<1>();
            release();
        }
        before = cursor.stage;
        cursor.next();
    }
    wait_products<0>();
    release();
}

// The same, of the fewest columns that hold `count` places, at least COLUMNS.
template <unsigned COLUMNS>
__device__ __forceinline__ void multiply_fitting(unsigned count, unsigned panels, unsigned ring, Ring& shared,
                                                 RingCursor& cursor, Sums& sum) {
    if constexpr (COLUMNS < CAP) {
        if (count > COLUMNS) {
            return multiply_fitting<more_columns(COLUMNS)>(count, panels, ring, shared, cursor, sum);
        }
    }
    multiply_columns<COLUMNS>(panels, ring, shared, cursor, sum);
}

// Runs a multiplying warpgroup. `staging`: its buffers, if results are staged.
__device__ __forceinline__ void multiply_tiles(Work work, const TileEnds& ends, const Results& results, unsigned ring,
                                               Ring& shared, unsigned char* staging) {
    const unsigned group = threadIdx.x / GROUP_THREADS - 1, warp = threadIdx.x % GROUP_THREADS / 32;
    const bool staged = STAGED && !results.sums && width_of(work.operands) % 8 == 0;
    RingCursor cursor;
    unsigned turn = 0;
#pragma unroll 1
    for (; work.more(); work.next()) {
        const Rows rows = work.rows(ends);
        // Zeros, not a first product without a sum; and one set of sums for all columns: else more registers are in
        // use.
        Sums sum = {};
        multiply_fitting<FEWEST_COLUMNS>(rows.count, panels_of(work.operands.inner), ring, shared, cursor, sum);
        settled(sum);
        const unsigned product = work.product() + group * PANEL;
        if (staged) {
            store_staged(results, work.operands, rows, product, sum, staging, turn, group + 1);
        } else {
            store_sums(results, work.operands, rows, product + warp * 16, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__((MULTIPLIERS + 1) * GROUP_THREADS, 1)
    expert_linear_wgmma(void* out, const ELEMENT* __restrict__ x, const char* __restrict__ weights,
                        const float* __restrict__ bias, const unsigned* __restrict__ firsts,
                        const unsigned* __restrict__ rows, unsigned experts, unsigned outputs, unsigned inner,
                        unsigned gathers, unsigned biased, unsigned sums, unsigned gate) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Ring shared;
    __shared__ TileEnds ends;
    const Operands operands = {firsts, rows, experts, outputs, inner, gathers};
    const Results results = {out, bias, biased, sums, gate};
    unsigned char* const aligned = dynamic + (ATOM_BYTES - shared_address(dynamic) % ATOM_BYTES) % ATOM_BYTES;
    const unsigned ring = shared_address(aligned);
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            // All lanes of the warps that copy.
            init_barrier(shared_address(&shared.full[i]), GROUP_THREADS);
            init_barrier(shared_address(&shared.empty[i]), MULTIPLIERS * GROUP_THREADS / 32);
        }
        fence_proxies();
    }
    count_tiles(ends, operands, CAP);
    __syncthreads();
    const Work work(operands, ends);
    const unsigned warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // uniform for the compiler
    if (warp < GROUP_THREADS / 32) {
        fewer_registers<COPIER_REGISTERS>();
        if (warp == 0) {
            copy_weights(work, ends, weights, ring, shared);
        } else {
            copy_inputs(work, ends, x, ring, shared);
        }
    } else {
        more_registers<MULTIPLIER_REGISTERS>();
        multiply_tiles(work, ends, results, ring, shared,
                       aligned + STAGES * STAGE_BYTES + (warp / 4 - 1) * STAGING_BYTES);
    }
}
#endif
