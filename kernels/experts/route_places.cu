// Gives every choice of an expert its place: places are sorted by expert, those of an expert by row.
//
// Shapes: expert_of [choices], choices = rows * chosen, padded to a multiple of 8; out: firsts [experts + 1], the first
// place of each expert and the number of places; rows [choices], the row of each place; places [choices], the place of
// each choice. needed[0] rises by the number of the first `multiplied` experts that have places, needed[1] by 1.
// Grid: one block of THREADS threads per expert, which looks at all choices; a thread at RUN neighbours at a time.
// Limit: latency; every block reads 2 bytes per choice, twice.
// Definition: `Backend::route`; on the CPU, `sort` of crates/cpu/src/experts.rs.

constexpr unsigned THREADS = 512, RUN = 8;

struct alignas(16) Choices {
    unsigned short of[RUN];
};

// The sum of `x` over the threads before this one. `sums`: a word for each warp and one more, which becomes the sum
// over all.
__device__ __forceinline__ unsigned sum_before(unsigned x, unsigned* sums) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned up_to = x;
    for (unsigned distance = 1; distance < 32; distance *= 2) {
        const unsigned other = __shfl_sync(0xffffffff, up_to, lane - distance);
        up_to += lane >= distance ? other : 0;
    }
    if (lane == 31) {
        sums[warp] = up_to;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned before = 0;
        for (unsigned i = 0; i <= THREADS / 32; i++) {
            const unsigned own = i < THREADS / 32 ? sums[i] : 0;
            sums[i] = before;
            before += own;
        }
    }
    __syncthreads();
    return sums[warp] + up_to - x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    route_places(unsigned* __restrict__ firsts, unsigned* __restrict__ rows, unsigned* __restrict__ places,
                 unsigned* __restrict__ needed, const Choices* __restrict__ expert_of, unsigned choices,
                 unsigned chosen, unsigned experts, unsigned multiplied) {
    __shared__ unsigned sums[THREADS / 32 + 1];
    const unsigned expert = blockIdx.x;
    // A thread takes `runs` neighbouring runs, so that its choices stay in order.
    const unsigned all = (choices + RUN - 1) / RUN, runs = (all + THREADS - 1) / THREADS;
    const unsigned begin = min(threadIdx.x * runs, all), end = min(begin + runs, all);
    unsigned less = 0, equal = 0;
    for (unsigned run = begin; run < end; run++) {
        const Choices here = expert_of[run];
#pragma unroll
        for (unsigned i = 0; i < RUN; i++) {
            const bool exists = run * RUN + i < choices;
            less += exists && here.of[i] < expert;
            equal += exists && here.of[i] == expert;
        }
    }
    sum_before(less, sums);
    const unsigned first = sums[THREADS / 32];
    __syncthreads();
    unsigned place = first + sum_before(equal, sums);
    if (threadIdx.x == 0) {
        firsts[expert] = first;
        if (expert < multiplied && sums[THREADS / 32] > 0) {
            atomicAdd(needed, 1);
        }
        if (expert + 1 == experts) {
            firsts[experts] = choices;
            atomicAdd(needed + 1, 1);
        }
    }
    if (equal == 0) {
        return;
    }
    for (unsigned run = begin; run < end; run++) {
        const Choices here = expert_of[run];
#pragma unroll
        for (unsigned i = 0; i < RUN; i++) {
            const unsigned choice = run * RUN + i;
            if (choice < choices && here.of[i] == expert) {
                rows[place] = choice / chosen;
                places[choice] = place++;
            }
        }
    }
}
