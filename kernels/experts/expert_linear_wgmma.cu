// expert_linear on Hopper, for f16 and bf16: every expert's matrix times the inputs of its places, or, if GATED, the gate
// of its two halves. One block per multiprocessor, of three warpgroups: one copies weights and inputs into a ring, the
// others multiply 64 rows of the product each. Tiles of weights follow each other in the ring without a gap, so that few
// places cost what reading the weights costs.
//
// out[place] = matrix[expert] x[input of the place] (+ bias[expert]); with GATED, gate(first half, second half) of that.
//
// Shapes: x ELEMENT [rows or places, inner], inner a multiple of 8; weights as in experts/panels.cuh; bias f32 [experts,
// outputs]; firsts [experts + 1], rows [places]; out ELEMENT (or f32 if `sums`) [places, outputs, or half of them].
// A tile has up to CAP places. Its columns are rounded up to a size of `multiply_panels`; the sum over the inputs is the
// same chain for all sizes, so a result depends on its input and its expert alone.
// Grid: any number of blocks of 384 threads; SHARED_BYTES of dynamic shared memory.
// Limit: bandwidth of the weights for few places, tensor cores and the second-level cache for many.
// Definition: `Backend::expert_linear`; on the CPU, src/backend/cpu/gemm/grouped.rs.
//
// Defines: ELEMENT, CAP (64 or 256), GATED (0 or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "attention/barrier.cuh"
#include "attention/mma.cuh"
#include "experts/products.cuh"
#include "experts/store.cuh"

constexpr unsigned GROUP_THREADS = 128, MULTIPLIERS = 2;  // warpgroups that multiply
constexpr unsigned ATOMS = MULTIPLIERS * PANEL / 8;  // of weights in a stage
constexpr unsigned WEIGHT_BYTES = MULTIPLIERS * WEIGHT_PANEL_BYTES, INPUT_BYTES = CAP * PANEL_ROW_BYTES;
constexpr unsigned STAGE_BYTES = WEIGHT_BYTES + INPUT_BYTES;
constexpr unsigned STAGES = CAP == 64 ? 9 : 4;
// Stages whose inputs may be on their way while the next one is copied.
constexpr unsigned BEHIND = CAP == 64 ? 4 : 2;
constexpr unsigned COPIER_REGISTERS = 40, MULTIPLIER_REGISTERS = 232;
static_assert(COPIER_REGISTERS + MULTIPLIERS * MULTIPLIER_REGISTERS <= 512, "the registers of a multiprocessor");

template <unsigned COUNT>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <unsigned COUNT>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Copies `bytes` with the copy engine and signals `barrier`. Addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

struct Ring {
    unsigned long long full[STAGES], empty[STAGES];
    unsigned inputs[CAP];  // the input of each place of the tile that is copied
};

// A position in the ring: stage and phase parity.
struct RingCursor {
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ void next() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

// What this block multiplies: every gridDim.x-th of all tiles, those of the same places one after another.
struct Work {
    Operands operands;
    unsigned across;  // tiles of the outputs
    unsigned count, index;

    __device__ __forceinline__ Work(const Operands& given, const TileEnds& ends)
        : operands(given), across((width_of(given) + RESULTS - 1) / RESULTS), count(ends.of[given.experts - 1] * across), index(blockIdx.x) {}
    __device__ __forceinline__ bool more() const {
        return index < count;
    }
    __device__ __forceinline__ void next() {
        index += gridDim.x;
    }
    __device__ __forceinline__ Rows rows(const TileEnds& ends) const {
        return rows_of(ends, operands, index / across, CAP);
    }
    // The first result of the tile.
    __device__ __forceinline__ unsigned begin() const {
        return index % across * RESULTS;
    }

    static constexpr unsigned RESULTS = MULTIPLIERS * PANEL / (GATED ? 2 : 1);
};

// Columns of the product for `count` places.
__device__ __forceinline__ unsigned columns_of(unsigned count) {
    if (CAP == 64) {
        return count <= 8 ? 8 : count <= 16 ? 16 : count <= 32 ? 32 : 64;
    }
    return count <= 32 ? 32 : count <= 64 ? 64 : count <= 128 ? 128 : count <= 192 ? 192 : 256;
}

// Runs the copying warpgroup. Inputs come in chunks of 16 bytes, one column of chunks a thread; weights in atoms, one a
// lane of the first warp.
__device__ __forceinline__ void copy_tiles(Work work, const TileEnds& ends, const ELEMENT* x, const char* weights, unsigned ring, Ring& shared) {
    constexpr unsigned TOGETHER = GROUP_THREADS / 8;  // rows copied at a time
    const Operands& operands = work.operands;
    const unsigned thread = threadIdx.x % GROUP_THREADS, lane = thread % 32, row = thread / 8, chunk = thread % 8;
    const unsigned place = row * PANEL_ROW_BYTES + (chunk ^ row % 8) * 16, panels = panels_of(operands.inner);
    const bool copies_weights = thread < 32;
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
        const unsigned columns = columns_of(rows.count);
        // The lanes of a row look up its places in turn; other warps have other rows.
        __syncwarp();
        for (unsigned at = chunk * TOGETHER + row; at < rows.count; at += 8 * TOGETHER) {
            shared.inputs[at] = input_of(operands, rows.first + at);
        }
        __syncwarp();
        const unsigned first = lane < ATOMS ? row_of_atom(operands, work.begin(), lane) : operands.outputs;
        const bool real = first < operands.outputs;
        const char* atom = weights + (real ? atom_at(operands, rows.expert, first) : 0);
        unsigned bytes = real ? WEIGHT_ATOM_BYTES : 0;
        for (unsigned distance = 16; distance > 0; distance /= 2) {
            bytes += __shfl_xor_sync(0xffffffff, bytes, distance);
        }
#pragma unroll 1
        for (unsigned panel = 0; panel < panels; panel++) {
            const unsigned to = ring + cursor.stage * STAGE_BYTES, full = shared_address(&shared.full[cursor.stage]);
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
            if (copies_weights) {
                if (lane == 0) {
                    arrive_expecting(full, bytes);
                }
                if (real) {
                    copy_bulk(to + lane * WEIGHT_ATOM_BYTES, atom, WEIGHT_ATOM_BYTES, full);
                }
                atom += WEIGHT_PANEL_BYTES;
            }
            const unsigned from = panel * PANEL + chunk * 8;
            const bool inside = from < operands.inner;
#pragma unroll
            for (unsigned i = 0; i < CAP / TOGETHER; i++) {
                if (i * TOGETHER >= columns) {
                    break;
                }
                const bool exists = inside && i * TOGETHER + row < rows.count;
                const ELEMENT* input = exists ? x + static_cast<unsigned long long>(shared.inputs[i * TOGETHER + row]) * operands.inner + from : x;
                copy_16(to + WEIGHT_BYTES + i * TOGETHER * PANEL_ROW_BYTES + place, input, exists);
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
    store_sums(results, work.operands, rows, work.begin(), group * PANEL / 8 + warp * 2, sum);
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
            case 256:
                multiply_tile<256>(work, rows, results, ring, shared, cursor);
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
            // Each copying warp, and a whole one for the weights.
            init_barrier(shared_address(&shared.full[i]), GROUP_THREADS / 32 + 32);
            init_barrier(shared_address(&shared.empty[i]), MULTIPLIERS * GROUP_THREADS / 32);
        }
        fence_proxies();
    }
    count_tiles(ends, operands, CAP);
    __syncthreads();
    const Work work(operands, ends);
    if (__shfl_sync(0xffffffff, threadIdx.x / GROUP_THREADS, 0) == 0) {
        fewer_registers<COPIER_REGISTERS>();
        copy_tiles(work, ends, x, weights, ring, shared);
    } else {
        more_registers<MULTIPLIER_REGISTERS>();
        multiply_tiles(work, ends, results, ring, shared);
    }
}
#endif
