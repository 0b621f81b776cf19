// Chooses the experts of each row, those with the largest scores or merits, the lower number first among equals, and
// weighs them.
//
// Shapes: scores f32 [rows, experts]; factors, bias f32 [experts], or null; out: expert_of [rows, chosen], weights f32
// [rows, chosen], in the order they are chosen in. chosen <= 32.
// kind: weights are 0 the softmax over all experts, 1 the softmax over the chosen ones (or over all, divided by their
// sum, which is the same), 2 sigmoids, 3 sigmoids divided by the sum of the chosen ones and `number`, 4 for each choice
// the softmax over the experts not chosen before it, but those whose score s is too far below the largest one m of
// these: (m - s) / max(|s|, m) > number.
// With a bias or groups experts are chosen by merits: the softmax over all experts, or the sigmoid, plus the bias.
// `groups` > 0: of so many groups of neighbours, at most 32, a row chooses only among those `kept` whose best merit, or
// if `sums_two` the sum of their best two, is largest. They have at least `chosen` experts.
// Grid: one warp per row, WARPS to a block; WARPS * experts words of dynamic shared memory.
// Limit: latency, `chosen` passes over a row's scores.
// Definition: `Backend::route`; on the CPU, `judge`, `choose` and `weigh` of crates/cpu/src/experts.rs.
#include "reduce.cuh"

constexpr unsigned WARPS = 4;

// An unsigned number for each float in its total order, never 0.
__device__ __forceinline__ unsigned ordered(float x) {
    const unsigned bits = __float_as_uint(x);
    return max(bits & 0x80000000 ? ~bits : bits | 0x80000000, 1u);
}

// The float of an ordered number.
__device__ __forceinline__ float float_of(unsigned key) {
    return __uint_as_float(key & 0x80000000 ? key & 0x7fffffff : ~key);
}

__device__ __forceinline__ float warp_largest(float x) {
    return float_of(__reduce_max_sync(0xffffffff, ordered(x)));
}

__device__ __forceinline__ float sigmoid_of(float score) {
    return 1.0f / (1.0f + expf(-score));
}

// A row's scores, for a warp.
struct Scores {
    const float* of;
    unsigned count;

    __device__ float largest() const {
        float most = of[0];
        for (unsigned expert = threadIdx.x % 32; expert < count; expert += 32) {
            most = float_of(max(ordered(most), ordered(of[expert])));
        }
        return warp_largest(most);
    }

    // The sum of their exponentials below `most`.
    __device__ float sum_below(float most) const {
        float sum = 0.0f;
        for (unsigned expert = threadIdx.x % 32; expert < count; expert += 32) {
            sum += expf(of[expert] - most);
        }
        return warp_sum(sum);
    }
};

// Makes the ordered merits `keys` of all groups but the `kept` best 0.
__device__ __forceinline__ void leave_groups(unsigned* keys, unsigned experts, unsigned groups, unsigned kept,
                                             bool sums_two) {
    const unsigned lane = threadIdx.x % 32, size = experts / groups;
    unsigned best = 0, second = 0;
    for (unsigned i = 0; lane < groups && i < size; i++) {
        const unsigned key = keys[lane * size + i];
        second = max(second, min(best, key));
        best = max(best, key);
    }
    unsigned merit = lane >= groups ? 0 : sums_two ? ordered(float_of(best) + float_of(second)) : best;
    unsigned stays = 0;  // a bit for each group
    for (unsigned round = 0; round < kept; round++) {
        const unsigned most = __reduce_max_sync(0xffffffff, merit);
        const unsigned winner = __ffs(__ballot_sync(0xffffffff, merit == most)) - 1;
        stays |= 1u << winner;
        merit = lane == winner ? 0 : merit;
    }
    for (unsigned expert = lane; expert < experts; expert += 32) {
        keys[expert] = stays >> expert / size & 1 ? keys[expert] : 0;
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    route_choose(unsigned short* __restrict__ expert_of, float* __restrict__ weights, const float* __restrict__ scores,
                 const float* __restrict__ factors, const float* __restrict__ bias, unsigned rows, unsigned experts,
                 unsigned chosen, unsigned kind, unsigned groups, unsigned kept, unsigned sums_two, float number) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    const unsigned lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    unsigned* keys = reinterpret_cast<unsigned*>(dynamic) + threadIdx.x / 32 * experts;
    const float* of_row = scores + static_cast<unsigned long long>(row) * experts;
    const Scores all = {of_row, experts};
    const bool has_merits = bias || groups > 0;
    const bool is_sigmoid = kind == 2 || kind == 3;
    const bool sums_all = kind == 0 || (!is_sigmoid && has_merits);
    const float largest = sums_all ? all.largest() : 0.0f, sum_of_all = sums_all ? all.sum_below(largest) : 1.0f;
    for (unsigned expert = lane; expert < experts; expert += 32) {
        float merit = of_row[expert];
        if (has_merits) {
            merit = is_sigmoid ? sigmoid_of(merit) : expf(merit - largest) / sum_of_all;
            merit += bias ? bias[expert] : 0.0f;
        }
        keys[expert] = ordered(merit);
    }
    __syncwarp();
    if (groups > 0) {
        leave_groups(keys, experts, groups, kept, sums_two);
    }
    unsigned mine = 0;  // the choice of this lane
    float near = 1.0f;  // of kind 4, the sum of the exponentials that this lane's choice is one of
    for (unsigned choice = 0; choice < chosen; choice++) {
        unsigned best = 0, at = 0xffffffff;
        for (unsigned expert = lane; expert < experts; expert += 32) {
            if (keys[expert] > best) {
                best = keys[expert];
                at = expert;
            }
        }
        const unsigned most = __reduce_max_sync(0xffffffff, best);
        // Where no candidate is left, which hosts refuse, the last expert, not a number behind the keys.
        const unsigned winner = min(__reduce_min_sync(0xffffffff, best == most ? at : 0xffffffff), experts - 1);
        if (kind == 4) {
            const float largest_left = of_row[winner];
            float sum = 0.0f;
            for (unsigned expert = lane; expert < experts; expert += 32) {
                const float score = of_row[expert];
                const bool is_far = (largest_left - score) / fmaxf(fabsf(score), largest_left) > number;
                sum += keys[expert] == 0 || is_far ? 0.0f : expf(score - largest_left);
            }
            sum = warp_sum(sum);
            near = lane == choice ? sum : near;
        }
        if (lane == choice) {
            mine = winner;
        }
        if (lane == 0) {
            keys[winner] = 0;
        }
        __syncwarp();
    }
    const float score = of_row[mine];
    const float first = __shfl_sync(0xffffffff, score, 0);
    const float most = kind == 1 ? warp_largest(lane < chosen ? score : first) : largest;
    const float share = is_sigmoid ? sigmoid_of(score) : kind == 4 ? 1.0f : expf(score - most);
    const float weight = lane < chosen ? share : 0.0f;
    float sum = 0.0f;
    if (kind == 0 || kind == 2) {
        sum = sum_of_all;
    } else if (kind == 4) {
        sum = near;
    } else {
        for (unsigned choice = 0; choice < chosen; choice++) {
            sum += __shfl_sync(0xffffffff, weight, choice);
        }
        sum += kind == 3 ? number : 0.0f;
    }
    if (lane < chosen) {
        const unsigned long long at = static_cast<unsigned long long>(row) * chosen + lane;
        expert_of[at] = static_cast<unsigned short>(mine);
        weights[at] = weight / sum * (factors ? factors[mine] : 1.0f);
    }
}
