// Every expert's matrix of e4m3 times the rounded inputs of its places, on Hopper, by pairs of blocks
// (experts/pairs.cuh); or, if GATED, the gate of its two halves. Places are sorted by expert. Tensor cores add up 128
// inputs, whose sums are then added in f32: over all inputs, their own sums would lose 2 to 6 % of a mean result.
//
// out[p][n] = x_scales[p] * w_scales[e][n] * sum over k of x[p][k] w[e][n][k] (+ bias[e][n]), e the expert of place p;
// with BLOCKS the scales are those of each 128 inputs, whose sums they multiply. With GATED, gate(first half, second
// half) of that.
//
// Shapes: out ELEMENT (or f32 if `sums`) [places, outputs, or half of them]; codes w [experts * outputs, inner] and x
// [places, inner], rows a multiple of 16 bytes apart, by tensor maps of boxes of 128 inputs of 64 outputs or 16 places;
// w_scales f32 [experts, outputs], or with BLOCKS [experts, ceil(inner / 128), outputs]; x_scales f32 [places], or with
// BLOCKS [ceil(inner / 128), places], `apart` from one to the next; bias f32 [experts, outputs]; firsts [experts + 1]
// (experts/tile.cuh). With GATED the rows of w and their scales are eight gates and their eight ups in turn, biases all
// gates and then all ups.
// The sum over the inputs is the same chain for all tiles, so a result depends on its input and its expert alone.
// Grid: whole clusters of two blocks of (GROUPS + 1) * 128 threads; dynamic shared memory as `Fp8ExpertKernel` of
// crates/cuda/src/compile/elements.rs counts it.
// Limit: bandwidth of the weights for few places; for many, a warpgroup's own sums of panels, and with BLOCKS scales of
// places: each thread reads those of its columns from shared memory, beside the products' operands.
// Definition: `Backend::expert_linear`, `expert_gated`; on the CPU, crates/cpu/src/gemm/grouped.rs.
//
// Defines: ELEMENT (f16 or bf16), CAP (64 or 192), GROUPS (2), STAGES, BLOCKS (0 or 1), GATED (0 or 1).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "experts/pairs.cuh"
#include "experts/staging.cuh"
#include "fp8/products.cuh"

constexpr unsigned COPIER_REGISTERS = 40, MULTIPLIER_REGISTERS = 232;
static_assert(COPIER_REGISTERS + GROUPS * MULTIPLIER_REGISTERS <= 168 * (GROUPS + 1), "the registers of a block");
constexpr unsigned PANEL_INPUTS = 128;
// With BLOCKS a stage also has the scales of its outputs, and those of its places: lanes t with the same t % 4 need
// those of the same columns, which lie together, each such part 16 bytes further round the banks.
constexpr unsigned OUTPUT_SCALES = GROUPS * GROUP_OUTPUTS, PLACE_SCALES = CAP / 4 + 4,
                   SCALE_BYTES = BLOCKS ? (OUTPUT_SCALES + 4 * PLACE_SCALES) * 4 : 0;
__device__ __forceinline__ unsigned place_scale_at(unsigned place) {
    return OUTPUT_SCALES + place % 8 / 2 * PLACE_SCALES + place / 8 * 2 + place % 2;
}

// Where everything lies in dynamic shared memory: stages, the scales of their places, results on their way.
struct Space {
    unsigned char* stages;  // aligned to 1024

    __device__ __forceinline__ explicit Space(unsigned char* dynamic)
        : stages(dynamic + (ATOM_BYTES - shared_address(dynamic) % ATOM_BYTES) % ATOM_BYTES) {}
    __device__ __forceinline__ unsigned stage(unsigned index) const {
        return shared_address(stages) + index * STAGE_BYTES;
    }
    __device__ __forceinline__ float* scales(unsigned index) const {
        return reinterpret_cast<float*>(stages + STAGES * STAGE_BYTES + index * SCALE_BYTES);
    }
    __device__ __forceinline__ unsigned char* staging(unsigned group) const {
        return stages + STAGES * (STAGE_BYTES + SCALE_BYTES) + group * STAGING_BYTES;
    }
};

struct Scales {
    const float* w;
    const float* x;
    unsigned apart;  // with BLOCKS, scales of x from 128 inputs to the next
};

__device__ __forceinline__ unsigned panels_of_codes(const Operands& operands) {
    return (operands.inner + PANEL_INPUTS - 1) / PANEL_INPUTS;
}

// Runs the thread that copies weights.
__device__ __forceinline__ void copy_weights(PairWork work, const TensorMap& w, const Space& space, Ring& shared) {
    const unsigned panels = panels_of_codes(work.operands);
    RingCursor cursor;
#pragma unroll 1
    for (; work.more(); work.next()) {
        const PairTile tile = work.tile();
        const unsigned bytes = bytes_of(tile);
#pragma unroll 1
        for (unsigned panel = 0; panel < panels; panel++) {
            const unsigned full = shared_address(&shared.full[cursor.stage]);
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
            arrive_expecting(full, bytes);
            for (unsigned group = 0; group < tile.groups; group++) {
                copy_box(space.stage(cursor.stage) + group * GROUP_BYTES, w, panel * PANEL_INPUTS,
                         tile.rows.expert * work.operands.outputs + (tile.group + group) * GROUP_OUTPUTS, full);
            }
            cursor.next();
        }
    }
}

// Runs the warp that copies scales, with BLOCKS. Columns without a place keep what lay there before; they are not
// stored.
__device__ __forceinline__ void copy_scales(PairWork work, const Scales& given, const Space& space, Ring& shared) {
    const Operands& operands = work.operands;
    const unsigned lane = threadIdx.x % 32, panels = panels_of_codes(operands);
    RingCursor cursor;
#pragma unroll 1
    for (; work.more(); work.next()) {
        const PairTile tile = work.tile();
        const float* w = given.w + static_cast<unsigned long long>(tile.rows.expert) * panels * operands.outputs;
        const float* x = given.x + tile.rows.first;
#pragma unroll 1
        for (unsigned panel = 0; panel < panels; panel++) {
            wait_barrier(shared_address(&shared.empty[cursor.stage]), cursor.parity ^ 1);
            const unsigned to = shared_address(space.scales(cursor.stage));
#pragma unroll 1
            for (unsigned i = lane; i < OUTPUT_SCALES; i += 32) {
                // A group may reach behind the last output.
                copy_4(to + i * 4, w + min(tile.group * GROUP_OUTPUTS + i, operands.outputs - 1));
            }
#pragma unroll 1
            for (unsigned place = lane; place < tile.rows.count; place += 32) {
                copy_4(to + place_scale_at(place) * 4, x + place);
            }
            arrive_with_copies(shared_address(&shared.full[cursor.stage]));
            w += operands.outputs;
            x += given.apart;
            cursor.next();
        }
    }
    // No thread ends before its copies.
    copies_issued();
    wait_copies<0>();
}

// Outputs from `output` on, which a warpgroup multiplies by the places `rows`.
struct Part {
    Rows rows;
    unsigned output;
};

// This thread's first output in its warpgroup's sums; the second is eight further.
__device__ __forceinline__ unsigned own_output() {
    return threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
}

// The sums of a warpgroup, for all places that a tile may have.
using Sums = float[CAP / 8][4];

// Multiplies the first N columns of `sum` by the scales of their outputs and places.
template <unsigned N>
__device__ __forceinline__ void scale_rows(Sums& sum, const Scales& given, const Operands& operands,
                                           const Part& part) {
    const unsigned lane = threadIdx.x % 32, output = part.output + own_output();
    const float* w = given.w + static_cast<unsigned long long>(part.rows.expert) * operands.outputs;
    // A group may reach behind the last output.
    const float of_outputs[2] = {w[min(output, operands.outputs - 1)], w[min(output + 8, operands.outputs - 1)]};
    // Lane t holds those of places t, t + 32, ...
    float held[(N + 31) / 32];
#pragma unroll
    for (unsigned i = 0; i < (N + 31) / 32; i++) {
        held[i] = given.x[part.rows.first + min(i * 32 + lane, part.rows.count - 1)];
    }
#pragma unroll
    for (unsigned n = 0; n < N / 8; n++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const float scale = __shfl_sync(0xffffffff, held[n / 4], n % 4 * 8 + lane % 4 * 2 + i % 2);
            sum[n][i] = sum[n][i] * scale * of_outputs[i / 2];
        }
    }
}

// Adds the products of N columns to the first of `sum`. While a warpgroup adds a panel's sums, the tensor cores make
// those of the other one.
template <unsigned N>
__device__ __forceinline__ void sum_columns(Sums& sum, const Scales& given, const Operands& operands, const Part& part,
                                            const Space& space, Ring& shared, RingCursor& cursor) {
    const unsigned group = threadIdx.x / GROUP_THREADS - 1, panels = panels_of_codes(operands);
    float of_panel[N / 8][4];
#pragma unroll 1
    for (unsigned panel = 0; panel < panels; panel++) {
        wait_barrier(shared_address(&shared.full[cursor.stage]), cursor.parity);
        const unsigned at = space.stage(cursor.stage);
        const unsigned long long w = descriptor(at + group * GROUP_BYTES), x = descriptor(at + WEIGHT_BYTES);
        begin_products();
#pragma unroll
        for (unsigned k = 0; k < PANEL_INPUTS / 32; k++) {
            multiply_fp8<N>(of_panel, w + k * 2, x + k * 2, k > 0);
        }
        products_issued();
        wait_products<0>();
        settled(of_panel);
        if (BLOCKS) {
            const float* scales = space.scales(cursor.stage);
            const float* of_places = scales + place_scale_at(threadIdx.x % 4 * 2);
            const float first = scales[group * GROUP_OUTPUTS + own_output()],
                        second = scales[group * GROUP_OUTPUTS + own_output() + 8];
#pragma unroll
            for (unsigned n = 0; n < N / 8; n += 2) {
                // Those of columns 8 n + 2 (t % 4) + {0, 1} and 8 further.
                const float4 places = *reinterpret_cast<const float4*>(of_places + n * 2);
                sum[n][0] += of_panel[n][0] * (places.x * first);
                sum[n][1] += of_panel[n][1] * (places.y * first);
                sum[n][2] += of_panel[n][2] * (places.x * second);
                sum[n][3] += of_panel[n][3] * (places.y * second);
                sum[n + 1][0] += of_panel[n + 1][0] * (places.z * first);
                sum[n + 1][1] += of_panel[n + 1][1] * (places.w * first);
                sum[n + 1][2] += of_panel[n + 1][2] * (places.z * second);
                sum[n + 1][3] += of_panel[n + 1][3] * (places.w * second);
            }
            // All lanes have read the scales.
            __syncwarp();
            release(shared, cursor.stage);
        } else {
            release(shared, cursor.stage);
#pragma unroll
            for (unsigned n = 0; n < N / 8; n++) {
#pragma unroll
                for (unsigned i = 0; i < 4; i++) {
                    sum[n][i] += of_panel[n][i];
                }
            }
        }
        cursor.next();
    }
    if (!BLOCKS) {
        scale_rows<N>(sum, given, operands, part);
    }
}

// The same, of the fewest columns that hold all places, at least N.
template <unsigned N>
__device__ __forceinline__ void sum_fitting(Sums& sum, const Scales& given, const Operands& operands, const Part& part,
                                            const Space& space, Ring& shared, RingCursor& cursor) {
    if constexpr (N < CAP) {
        if (part.rows.count > N) {
            return sum_fitting<N + STEP>(sum, given, operands, part, space, shared, cursor);
        }
    }
    sum_columns<N>(sum, given, operands, part, space, shared, cursor);
}

// Runs a multiplying warpgroup.
__device__ __forceinline__ void multiply_tiles(PairWork work, const Scales& given, const Results& results,
                                               const Space& space, Ring& shared) {
    const unsigned group = threadIdx.x / GROUP_THREADS - 1, warp = threadIdx.x % GROUP_THREADS / 32;
    const Operands& operands = work.operands;
    const bool staged = !results.sums && width_of(operands) % 8 == 0;
    RingCursor cursor;
    unsigned turn = 0;
#pragma unroll 1
    for (; work.more(); work.next()) {
        const PairTile tile = work.tile();
        if (group >= tile.groups) {
            pass_tile(panels_of_codes(operands), shared, cursor);
            continue;
        }
        const Part part = {tile.rows, (tile.group + group) * GROUP_OUTPUTS};
        Sums sum = {};
        sum_fitting<STEP>(sum, given, operands, part, space, shared, cursor);
        if (staged) {
            store_staged(results, operands, part.rows, part.output, sum, space.staging(group), turn, group + 1);
        } else {
            store_sums(results, operands, part.rows, part.output + warp * 16, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__((GROUPS + 1) * GROUP_THREADS, 1) __cluster_dims__(PAIR, 1, 1)
    expert_linear_fp8(void* out, const __grid_constant__ TensorMap w, const float* __restrict__ w_scales,
                      const __grid_constant__ TensorMap x, const float* __restrict__ x_scales,
                      const float* __restrict__ bias, const unsigned* __restrict__ firsts, unsigned experts,
                      unsigned outputs, unsigned inner, unsigned apart, unsigned biased, unsigned sums,
                      unsigned gate) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ Ring shared;
    __shared__ TileEnds ends;
    const Operands operands = {firsts, nullptr, experts, outputs, inner, 0};
    const Space space(dynamic);
    const Scales scales = {w_scales, x_scales, apart};
    init_pairs(shared, ends, operands, BLOCKS ? 2 : 1);
    const PairWork work(operands, ends);
    const unsigned warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // uniform for the compiler
    if (warp < GROUP_THREADS / 32) {
        fewer_registers<COPIER_REGISTERS>();
        if (threadIdx.x == 0) {
            copy_weights(work, w, space, shared);
        } else if (warp == 1) {
            copy_inputs(work, x, PANEL_INPUTS, panels_of_codes(operands), space.stage(0), shared);
        } else if (BLOCKS && warp == 2) {
            copy_scales(work, scales, space, shared);
        }
    } else {
        more_registers<MULTIPLIER_REGISTERS>();
        multiply_tiles(work, scales, {out, bias, biased, sums, gate}, space, shared);
    }
    // No block ends while the other may signal it or copy to it.
    meet_cluster(PAIR);
}
#endif
