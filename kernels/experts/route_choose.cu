// Chooses the experts of each row, those with the largest scores, the lower number first among equals, and weighs them.
//
// Shapes: scores f32 [rows, experts]; factors f32 [experts], if `scaled`; out: expert_of [rows, chosen], weights f32
// [rows, chosen], the likeliest first. chosen <= 32.
// kind: weights are 0 the softmax over all experts, 1 the softmax over the chosen ones (or over all, divided by their
// sum, which is the same), 2 sigmoids, 3 sigmoids divided by the sum of the chosen ones.
// Grid: one warp per row, WARPS to a block; WARPS * experts words of dynamic shared memory.
// Limit: latency, `chosen` passes over a row's scores.
// Definition: `Backend::route`; on the CPU, `choose` of crates/cpu/src/experts.rs.
#include "reduce.cuh"

constexpr unsigned WARPS = 4;

// An unsigned number for each float in its total order, never 0.
__device__ __forceinline__ unsigned ordered(float x) {
    const unsigned bits = __float_as_uint(x);
    return max(bits & 0x80000000 ? ~bits : bits | 0x80000000, 1u);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    route_choose(unsigned short* __restrict__ expert_of, float* __restrict__ weights, const float* __restrict__ scores,
                 const float* __restrict__ factors, unsigned rows, unsigned experts, unsigned chosen, unsigned kind,
                 unsigned scaled) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    const unsigned lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    unsigned* keys = reinterpret_cast<unsigned*>(dynamic) + threadIdx.x / 32 * experts;
    const float* of_row = scores + static_cast<unsigned long long>(row) * experts;
    for (unsigned expert = lane; expert < experts; expert += 32) {
        keys[expert] = ordered(of_row[expert]);
    }
    __syncwarp();
    unsigned mine = 0, first = 0;  // the choice of this lane, and the likeliest one
    for (unsigned choice = 0; choice < chosen; choice++) {
        unsigned best = 0, at = 0xffffffff;
        for (unsigned expert = lane; expert < experts; expert += 32) {
            if (keys[expert] > best) {
                best = keys[expert];
                at = expert;
            }
        }
        const unsigned most = __reduce_max_sync(0xffffffff, best);
        const unsigned winner = __reduce_min_sync(0xffffffff, best == most ? at : 0xffffffff);
        if (lane == choice) {
            mine = winner;
        }
        if (choice == 0) {
            first = winner;
        }
        if (lane == 0) {
            keys[winner] = 0;
        }
        __syncwarp();
    }
    const float largest = of_row[first];
    auto weight_of_score = [&](float score) { return kind < 2 ? expf(score - largest) : 1.0f / (1.0f + expf(-score)); };
    const float weight = lane < chosen ? weight_of_score(of_row[mine]) : 0.0f;
    float sum = 0.0f;
    if (kind == 0) {
        for (unsigned expert = lane; expert < experts; expert += 32) {
            sum += weight_of_score(of_row[expert]);
        }
        sum = warp_sum(sum);
    } else if (kind == 2) {
        sum = 1.0f;
    } else {
        for (unsigned choice = 0; choice < chosen; choice++) {
            sum += __shfl_sync(0xffffffff, weight, choice);
        }
    }
    if (lane < chosen) {
        const unsigned long long at = static_cast<unsigned long long>(row) * chosen + lane;
        expert_of[at] = static_cast<unsigned short>(mine);
        weights[at] = weight / sum * (scaled ? factors[mine] : 1.0f);
    }
}
