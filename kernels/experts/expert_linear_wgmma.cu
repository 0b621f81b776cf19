// expert_linear on Hopper, for f16 and bf16: every expert's matrix times the inputs of its places, or, if GATED, the gate
// of its two halves. One block per multiprocessor, of three or four warpgroups: in one a warp copies weights into a ring and
// three copy inputs, the others multiply 64 rows of panels each. Tiles follow each other in the ring without a gap, so that few
// places cost what reading the weights costs.
//
// out[place] = matrix[expert] x[input of the place] (+ bias[expert]); with GATED, gate(first half, second half) of that.
//
// Shapes: x ELEMENT [rows or places, inner], inner a multiple of 8; weights as in experts/panels.cuh; bias f32 [experts,
// outputs]; firsts [experts + 1], rows [places]; out ELEMENT (or f32 if `sums`) [places, outputs, or half of them].
// A tile has up to CAP places. Its columns are rounded up to a size of `multiply_panels`; the sum over the inputs is the
// same chain for all sizes, so a result depends on its input and its expert alone.
// Grid: any number of blocks of (MULTIPLIERS + 1) * 128 threads; dynamic shared memory for the ring (`ExpertTiles` of
// src/backend/cuda/compile/elements.rs).
// Limit: bandwidth of the weights for few places, that of the second-level cache for many: the more rows of panels and places
// a tile has, the less of both is read again.
// Definition: `Backend::expert_linear`; on the CPU, src/backend/cpu/gemm/grouped.rs.
//
// Defines: ELEMENT, CAP (64 or 192), GATED (0 or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "attention/barrier.cuh"
#include "attention/mma.cuh"
#include "experts/products.cuh"
#include "experts/store.cuh"
#include "registers.cuh"

constexpr unsigned GROUP_THREADS = 128, MULTIPLIERS = CAP == 64 ? 2 : 3;  // warpgroups that multiply
constexpr unsigned PRODUCTS = MULTIPLIERS * PANEL;  // rows of panels in a tile
constexpr unsigned WEIGHT_BYTES = MULTIPLIERS * WEIGHT_PANEL_BYTES, INPUT_BYTES = CAP * PANEL_ROW_BYTES;
constexpr unsigned STAGE_BYTES = WEIGHT_BYTES + INPUT_BYTES;
constexpr unsigned STAGES = CAP == 64 ? 9 : 4;
// Stages whose inputs may be on their way while the next one is copied.
constexpr unsigned BEHIND = 2;
constexpr unsigned INPUT_WARPS = 3;
constexpr unsigned COPIER_REGISTERS = 72, MULTIPLIER_REGISTERS = CAP == 64 ? 216 : 144;
static_assert(COPIER_REGISTERS + MULTIPLIERS * MULTIPLIER_REGISTERS <= 512, "the registers of a multiprocessor");

struct Ring {
    unsigned long long full[STAGES], empty[STAGES];
};

using RingCursor = Cursor<STAGES>;

// What this block multiplies: every gridDim.x-th of all tiles, those of the same places one after another.
struct Work {
    Operands operands;
    unsigned across;  // tiles of the outputs
    unsigned count, index;

    __device__ __forceinline__ Work(const Operands& given, const TileEnds& ends)
        : operands(given), across((given.outputs + PRODUCTS - 1) / PRODUCTS), count(ends.of[given.experts - 1] * across), index(blockIdx.x) {}
    __device__ __forceinline__ bool more() const {
        return index < count;
    }
    __device__ __forceinline__ void next() {
        index += gridDim.x;
    }
    __device__ __forceinline__ Rows rows(const TileEnds& ends) const {
        return rows_of(ends, operands, index / across, CAP);
    }
    // The first row of panels in the tile.
    __device__ __forceinline__ unsigned product() const {
        return index % across * PRODUCTS;
    }
};

// Columns of the product for `count` places.
__device__ __forceinline__ unsigned columns_of(unsigned count) {
    if (CAP == 64) {
        return count <= 8 ? 8 : count <= 16 ? 16 : count <= 32 ? 32 : 64;
    }
    return count <= 32 ? 32 : count <= 64 ? 64 : count <= 128 ? 128 : 192;
}

// Runs the warp that copies weights: a lane for each panel of a stage.
__device__ __forceinline__ void copy_weights(Work work, const TileEnds& ends, const char* weights, unsigned ring, Ring& shared) {
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
                copy_bulk(ring + cursor.stage * STAGE_BYTES + lane * WEIGHT_PANEL_BYTES, from, WEIGHT_PANEL_BYTES, full);
            }
            from += WEIGHT_PANEL_BYTES;
            cursor.next();
        }
    }
}

// Runs the warps that copy inputs, in chunks of 16 bytes, one column of chunks a thread. Columns without a place hold
// whatever lay there before; they are not stored.
__device__ __forceinline__ void copy_inputs(Work work, const TileEnds& ends, const ELEMENT* x, unsigned ring, Ring& shared) {
    constexpr unsigned TOGETHER = INPUT_WARPS * 4, TURNS = (CAP + TOGETHER - 1) / TOGETHER;  // rows copied at a time
    static_assert(TOGETHER % 8 == 4, "every other turn differs in bit 2 of its rows");
    const Operands& operands = work.operands;
    const unsigned thread = threadIdx.x - 32, lane = thread % 32, row = thread / 8, chunk = thread % 8;
    const unsigned place = (chunk ^ row % 8) * 16, chunks = operands.inner / 8, panels = panels_of(operands.inner);
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
            const unsigned to = ring + cursor.stage * STAGE_BYTES + WEIGHT_BYTES + row * PANEL_ROW_BYTES;
            const unsigned from = panel * 8 + chunk;
            const bool exists = from < chunks;
            const ELEMENT* column = x + (exists ? from * 8 : 0);
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
#pragma unroll
            for (unsigned i = 0; i < TURNS; i++) {
                if (i < turns) {
                    copy_16(to + i * TOGETHER * PANEL_ROW_BYTES + (place ^ i % 2 * 64), column + static_cast<unsigned long long>(inputs[i]) * 8, exists);
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

// Multiplies one tile of COLUMNS columns and stores its results.
template <unsigned COLUMNS>
__device__ __forceinline__ void multiply_tile(const Work& work, const Rows& rows, const Results& results, unsigned ring, Ring& shared, RingCursor& cursor) {
    const unsigned group = threadIdx.x / GROUP_THREADS - 1, warp = threadIdx.x % GROUP_THREADS / 32;
    const unsigned panels = panels_of(work.operands.inner);
    // Zeros, not a first product without a sum: else registers of all sizes stay in use.
    float sum[COLUMNS / 8][4] = {};
    unsigned before = 0;
#pragma unroll 1
    for (unsigned panel = 0; panel < panels; panel++) {
        wait_barrier(shared_address(&shared.full[cursor.stage]), cursor.parity);
        const unsigned stage = ring + cursor.stage * STAGE_BYTES;
        const unsigned long long w = descriptor(stage + group * WEIGHT_PANEL_BYTES), x = descriptor(stage + WEIGHT_BYTES);
        begin_products();
#pragma unroll
        for (unsigned k = 0; k < PANEL / 16; k++) {
            // 16 elements further: 32 bytes.
            multiply_panels<ELEMENT, COLUMNS>(sum, w + k * 2, x + k * 2);
        }
        products_issued();
        if (panel > 0) {
            wait_products<1>();
            if (threadIdx.x % 32 == 0) {
                arrive(shared_address(&shared.empty[before]));
            }
        }
        before = cursor.stage;
        cursor.next();
    }
    wait_products<0>();
    settled(sum);
    if (threadIdx.x % 32 == 0) {
        arrive(shared_address(&shared.empty[before]));
    }
    store_sums(results, work.operands, rows, work.product() + group * PANEL + warp * 16, sum);
}

// Runs a multiplying warpgroup.
__device__ __forceinline__ void multiply_tiles(Work work, const TileEnds& ends, const Results& results, unsigned ring, Ring& shared) {
    RingCursor cursor;
#pragma unroll 1
    for (; work.more(); work.next()) {
        const Rows rows = work.rows(ends);
        switch (columns_of(rows.count)) {
#if CAP == 64
            case 8:
                multiply_tile<8>(work, rows, results, ring, shared, cursor);
                break;
            case 16:
                multiply_tile<16>(work, rows, results, ring, shared, cursor);
                break;
#else
            case 128:
                multiply_tile<128>(work, rows, results, ring, shared, cursor);
                break;
            case 192:
                multiply_tile<192>(work, rows, results, ring, shared, cursor);
                break;
#endif
            case 32:
                multiply_tile<32>(work, rows, results, ring, shared, cursor);
                break;
            default:
                multiply_tile<64>(work, rows, results, ring, shared, cursor);
        }
    }
}

extern "C" __global__ void __launch_bounds__((MULTIPLIERS + 1) * GROUP_THREADS, 1)
    expert_linear_wgmma(void* out, const ELEMENT* __restrict__ x, const char* __restrict__ weights, const float* __restrict__ bias,
                        const unsigned* __restrict__ firsts, const unsigned* __restrict__ rows, unsigned experts, unsigned outputs,
                        unsigned inner, unsigned gathers, unsigned biased, unsigned sums, unsigned gate) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Ring shared;
    __shared__ TileEnds ends;
    const Operands operands = {firsts, rows, experts, outputs, inner, gathers};
    const Results results = {out, bias, biased, sums, gate};
    const unsigned ring = (shared_address(dynamic) + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES;
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            // Each warp that copies inputs, and all lanes of the one that copies weights.
            init_barrier(shared_address(&shared.full[i]), INPUT_WARPS + 32);
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
        multiply_tiles(work, ends, results, ring, shared);
    }
}
#endif
