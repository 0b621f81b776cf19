// out = sum over ranks of their parts, or out += it, folded pair by pair as a balanced tree: the parts of a rank, then
// the ranks in order. The same bits on each rank, whichever of the ways. Parts are rounded to WIRE, as they
// are sent. With EXACT, PARTS * RANKS is always 8, and every sum but the last is rounded to WIRE too, whichever rank
// makes it: then the bits do not depend on the number of ranks. Without, of more than two ranks, the last alone is.
//
// all_reduce_packets: each rank writes all of its sum to every other one, in packets that carry their own flag; twice
//   the bytes, but one way of the link is all that it waits for. For small buffers.
// all_reduce_one_shot: each rank writes all of its sum to every other one, chunk by chunk. Half the blocks send, half
//   add up what has come; of two ranks a multiprocessor has two. (RANKS - 1) * count elements leave each GPU. For two
//   ranks no order of exchange sends less. Of one rank all blocks add up.
// all_reduce_two_shot: each rank adds up one share and writes the sums to every other one. A third of the blocks sends,
//   adds, and takes over sums, each. 2 * (RANKS - 1) / RANKS * count elements leave each GPU; with EXACT, or of two
//   ranks, half of them are f32.
//
// all_reduce_own, all_reduce_gathered: where ranks write no memory of each other, the sum of this rank's parts as WIRE,
//   and from those of all ranks, which a library has gathered, what the others leave. Sums of more ranks than two are
//   what one shot makes of them.
//
// Shapes: out f32, parts PART, of which elements first, .. first + count are summed; memory as in exchange.cuh.
// Grid: the same on every rank; blocks of 512 threads. Blocks wait only for blocks of a lower number on other ranks.
// Limit: the link.
// Definition: `Ranked::all_reduce`; on the CPU, src/backend/cpu/fabric.rs.
//
// Defines: RANKS (1, 2, 4 or 8), PARTS (of a rank: 1, 2, 4 or 8), PART and WIRE (f32, f16 or bf16), EXACT (0 or 1).
#include "ranks/exchange.cuh"

// Whether the last sum is rounded to WIRE, as two shots send it: not if it is exact, nor of two ranks, which never need
// to send it.
constexpr bool ROUNDS_LAST = !EXACT && RANKS > 2;

// What two shots send sums as.
template <bool ROUNDED>
struct SentAs {
    using Type = float;
};
template <>
struct SentAs<true> {
    using Type = WIRE;
};
using SUM = SentAs<ROUNDS_LAST>::Type;

// The buffers of this rank's parts.
struct Parts {
    const PART* at[8];
};

// Folds neighbouring sums into the first, level by level; those of a level are rounded to WIRE if `rounds` says so of
// how many it has left.
template <int N, unsigned COUNT, class Rounds>
__device__ __forceinline__ void fold(Lanes<float, N> (&sums)[COUNT], Rounds rounds) {
#pragma unroll
    for (unsigned apart = 1; apart < COUNT; apart *= 2) {
#pragma unroll
        for (unsigned i = 0; i < COUNT; i += 2 * apart) {
#pragma unroll
            for (int lane = 0; lane < N; lane++) {
                const float sum = __fadd_rn(sums[i].at[lane], sums[i + apart].at[lane]);
                sums[i].at[lane] = rounds(COUNT / (2 * apart)) ? to_f32(from_f32<WIRE>(sum)) : sum;
            }
        }
    }
}

// What this rank sends of elements i, ..: the sum of its parts.
template <int N>
__device__ __forceinline__ Lanes<float, N> own_sum(const Parts& parts, unsigned long long i) {
    Lanes<float, N> sums[PARTS];
#pragma unroll
    for (unsigned part = 0; part < PARTS; part++) {
        const Lanes<float, N> found = load<N>(parts.at[part] + i);
#pragma unroll
        for (int lane = 0; lane < N; lane++) {
            sums[part].at[lane] = to_f32(from_f32<WIRE>(found.at[lane]));
        }
    }
    // Of one rank the last sum is that of all.
    fold(sums, [](unsigned left) { return RANKS > 1 || left > 1; });
    return sums[0];
}

// The sum of all ranks'.
template <int N>
__device__ __forceinline__ Lanes<float, N> fold_ranks(Lanes<float, N> (&sums)[RANKS]) {
    fold(sums, [](unsigned left) { return left > 1 ? EXACT : ROUNDS_LAST; });
    return sums[0];
}

// Elements of a packet.
constexpr unsigned IN_PACKET = 8 / sizeof(WIRE);

// Elements of 16 bytes.
constexpr int WIDE = 16 / sizeof(WIRE);

constexpr unsigned IN_WORD = IN_PACKET / 2;

// Half a packet as its elements.
struct alignas(4) Half {
    WIRE at[IN_WORD];
};

__device__ __forceinline__ unsigned long long word_of(const Half& half, unsigned number) {
    return static_cast<unsigned long long>(number) << 32 | *reinterpret_cast<const unsigned*>(&half);
}

__device__ __forceinline__ Half half_of_word(unsigned long long word) {
    const unsigned low = static_cast<unsigned>(word);
    return *reinterpret_cast<const Half*>(&low);
}

// The sums of this rank's elements from `begin` on, of `count`; zero behind their end.
template <int N>
__device__ __forceinline__ Lanes<float, N> own_or_zero(const Parts& parts, unsigned long long first, unsigned begin,
                                                       unsigned count) {
    Lanes<float, N> own;
    if (begin + N <= count && N > 1 && first % N == 0) {
        return own_sum<N>(parts, first + begin);
    }
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
        own.at[lane] = begin + lane < count ? own_sum<1>(parts, first + begin + lane).at[0] : 0.0f;
    }
    return own;
}

template <int N>
__device__ __forceinline__ unsigned long long word_of_sums(const Lanes<float, N>& own, unsigned begin,
                                                           unsigned number) {
    Half half;
#pragma unroll
    for (unsigned i = 0; i < IN_WORD; i++) {
        half.at[i] = from_f32<WIRE>(own.at[begin + i]);
    }
    return word_of(half, number);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    all_reduce_packets(float* out, const Parts parts, unsigned long long first, unsigned count, unsigned adds,
                       const RankMemory* ranks, unsigned* last, const unsigned* aborted, unsigned rank,
                       unsigned most_packets, unsigned most_floats) {
    constexpr int N = static_cast<int>(IN_PACKET);
    if (count == 0) {
        return;
    }
    const Exchange at = {ranks, last, aborted, rank, most_packets, most_floats};
    const unsigned number = number_of(at);
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    const unsigned packets = (count + IN_PACKET - 1) / IN_PACKET;
    for (unsigned packet = thread; packet < packets; packet += step) {
        const Lanes<float, N> own = own_or_zero<N>(parts, first, packet * IN_PACKET, count);
        const unsigned long long low = word_of_sums(own, 0, number), high = word_of_sums(own, IN_WORD, number);
#pragma unroll
        for (unsigned other = 1; other < RANKS; other++) {
            store_packet(packets_of(at, number, rank, (rank + other) % RANKS) + packet, low, high);
        }
    }
    for (unsigned packet = thread; packet < packets; packet += step) {
        const unsigned begin = packet * IN_PACKET;
        // What is there, before the wait for what comes.
        float before[IN_PACKET] = {};
#pragma unroll
        for (unsigned i = 0; i < IN_PACKET; i++) {
            if (adds && begin + i < count) {
                before[i] = out[first + begin + i];
            }
        }
        Lanes<float, N> sums[RANKS];
#pragma unroll
        for (unsigned sender = 0; sender < RANKS; sender++) {
            if (sender == rank) {
                sums[sender] = own_or_zero<N>(parts, first, begin, count);
                continue;
            }
            const Packet* from = packets_of(at, number, sender, rank) + packet;
            unsigned long long low, high;
            load_packet(from, low, high);
            for (unsigned turn = 1; low >> 32 != number || high >> 32 != number; turn++) {
                if (turn % TURNS == 0 && *at.aborted != 0) {
                    break;
                }
                load_packet(from, low, high);
            }
            const Half halves[2] = {half_of_word(low), half_of_word(high)};
#pragma unroll
            for (unsigned i = 0; i < IN_PACKET; i++) {
                sums[sender].at[i] = to_f32(halves[i / IN_WORD].at[i % IN_WORD]);
            }
        }
        const Lanes<float, N> sum = fold_ranks(sums);
#pragma unroll
        for (unsigned i = 0; i < IN_PACKET; i++) {
            if (begin + i < count) {
                out[first + begin + i] = adds ? __fadd_rn(before[i], sum.at[i]) : sum.at[i];
            }
        }
    }
    end_exchange(at, number);
}

// Where `sender` writes element `i` for `receiver`, as T: behind the place of float `share`, the first element of the
// share, so that elements of one share never lie where sums of another do.
template <class T>
__device__ __forceinline__ T* sent_at(const Exchange& at, unsigned number, unsigned sender, unsigned receiver,
                                      unsigned share, unsigned i) {
    return reinterpret_cast<T*>(floats_of(at, number, sender, receiver) + share) + (i - share);
}

// A launch's elements: a place of `parts` and `out` for each of `count`, in chunks.
struct Elements {
    float* out;
    const Parts& parts;
    unsigned long long first;
    unsigned count, chunk;
    bool adds;
};

// Writes elements [begin, end) to ranks first_other, .. behind this one.
template <int N>
__device__ __forceinline__ void send(const Exchange& at, unsigned number, const Elements& of, unsigned share,
                                     unsigned begin, unsigned end, unsigned first_other, unsigned end_other) {
#pragma unroll 4
    for (unsigned i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
        const Lanes<float, N> own = own_sum<N>(of.parts, of.first + i);
        for (unsigned other = first_other; other < end_other; other++) {
            store<N>(sent_at<WIRE>(at, number, at.rank, (at.rank + other) % RANKS, share, i), own);
        }
    }
}

// The sums of N elements from `i`.
template <int N>
__device__ __forceinline__ Lanes<float, N> sum_at(const Exchange& at, unsigned number, const Elements& of,
                                                  unsigned share, unsigned i) {
    Lanes<float, N> sums[RANKS];
#pragma unroll
    for (unsigned sender = 0; sender < RANKS; sender++) {
        sums[sender] = sender == at.rank ? own_sum<N>(of.parts, of.first + i)
                                         : load<N>(sent_at<WIRE>(at, number, sender, at.rank, share, i));
    }
    return fold_ranks(sums);
}

template <int N>
__device__ __forceinline__ void one_shot(const Exchange& at, const Elements& of) {
    constexpr unsigned ROLES = RANKS > 1 ? 2 : 1;
    const unsigned number = number_of(at), chunks = (of.count + of.chunk - 1) / of.chunk;
    const unsigned blocks = gridDim.x / ROLES, block = blockIdx.x % blocks;
    const bool sends = RANKS > 1 && blockIdx.x < blocks;
    for (unsigned c = block; c < chunks; c += blocks) {
        const unsigned begin = c * of.chunk, end = min(begin + of.chunk, of.count);
        if (sends) {
            send<N>(at, number, of, 0, begin, end, 1, RANKS);
            tell(at, number, 0, c);
        } else {
            hear(at, number, 0, c);
#pragma unroll 2
            for (unsigned i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
                put<N>(of.out + of.first + i, sum_at<N>(at, number, of, 0, i), of.adds);
            }
        }
    }
    end_exchange(at, number);
}

// Sums of more ranks, or of eight parts, need more registers.
constexpr unsigned ONE_SHOT_BESIDE = RANKS == 2 ? 2 : 1;

extern "C" __global__ void __launch_bounds__(512, ONE_SHOT_BESIDE)
    all_reduce_one_shot(float* out, const Parts parts, unsigned long long first, unsigned count, unsigned adds,
                        unsigned chunk, const RankMemory* ranks, unsigned* last, const unsigned* aborted, unsigned rank,
                        unsigned most_packets, unsigned most_floats) {
    if (count == 0) {
        return;
    }
    const Exchange at = {ranks, last, aborted, rank, most_packets, most_floats};
    const Elements of = {out, parts, first, count, chunk, adds != 0};
    if (count % WIDE == 0 && first % WIDE == 0) {
        one_shot<WIDE>(at, of);
    } else {
        one_shot<1>(at, of);
    }
}

// Shares are whole chunks, none of them without any. A chunk's number is its place among all.
template <int N>
__device__ __forceinline__ void two_shot(const Exchange& at, const Elements& of) {
    const unsigned number = number_of(at), chunks = (of.count + of.chunk - 1) / of.chunk;
    const unsigned share = (chunks + RANKS - 1) / RANKS;
    const unsigned blocks = gridDim.x / 3, block = blockIdx.x % blocks, role = blockIdx.x / blocks;
    // Turn by turn a chunk of each other rank's share, so that all adders have work from the beginning.
    for (unsigned turn = block; turn < share * OTHERS && role != 1; turn += blocks) {
        const unsigned other = 1 + turn % OTHERS_OR_ONE, owner = (at.rank + other) % RANKS;
        const unsigned c = owner * share + turn / OTHERS_OR_ONE;
        const unsigned begin = c * of.chunk, end = min(begin + of.chunk, of.count);
        if (begin >= of.count) {
            continue;
        }
        if (role == 0) {
            send<N>(at, number, of, owner * share * of.chunk, begin, end, other, other + 1);
            tell_one(at, number, 0, c, owner);
        } else {
            hear_one(at, number, 1, c, owner);
            const SUM* sums = sent_at<SUM>(at, number, owner, at.rank, owner * share * of.chunk, begin);
#pragma unroll 2
            for (unsigned i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
                put<N>(of.out + of.first + i, load<N>(sums + (i - begin)), of.adds);
            }
        }
    }
    for (unsigned c = at.rank * share + block; c < min((at.rank + 1) * share, chunks) && role == 1; c += blocks) {
        const unsigned begin = c * of.chunk, end = min(begin + of.chunk, of.count);
        hear(at, number, 0, c);
        for (unsigned i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
            const unsigned own = at.rank * share * of.chunk;
            const Lanes<float, N> sums = sum_at<N>(at, number, of, own, i);
            for (unsigned other = 1; other < RANKS; other++) {
                store<N>(sent_at<SUM>(at, number, at.rank, (at.rank + other) % RANKS, own, i), sums);
            }
            put<N>(of.out + of.first + i, sums, of.adds);
        }
        tell(at, number, 1, c);
    }
    end_exchange(at, number);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    all_reduce_two_shot(float* out, const Parts parts, unsigned long long first, unsigned count, unsigned adds,
                        unsigned chunk, const RankMemory* ranks, unsigned* last, const unsigned* aborted, unsigned rank,
                        unsigned most_packets, unsigned most_floats) {
    if (count == 0) {
        return;
    }
    const Exchange at = {ranks, last, aborted, rank, most_packets, most_floats};
    const Elements of = {out, parts, first, count, chunk, adds != 0};
    if (count % WIDE == 0 && first % WIDE == 0) {
        two_shot<WIDE>(at, of);
    } else {
        two_shot<1>(at, of);
    }
}

template <int N>
__device__ __forceinline__ void own_sums(WIRE* to, const Parts& parts, unsigned long long first, unsigned count) {
    for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) * N; i < count; i += gridDim.x * blockDim.x * N) {
        store<N>(to + i, own_sum<N>(parts, first + i));
    }
}

extern "C" __global__ void __launch_bounds__(512, 1)
    all_reduce_own(WIRE* to, const Parts parts, unsigned long long first, unsigned count) {
    if (count % WIDE == 0 && first % WIDE == 0) {
        own_sums<WIDE>(to, parts, first, count);
    } else {
        own_sums<1>(to, parts, first, count);
    }
}

// given [RANKS, count]: the sums of elements first, .. of `out`.
template <int N>
__device__ __forceinline__ void gathered(float* out, const WIRE* given, unsigned long long first, unsigned count,
                                         bool adds) {
    for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) * N; i < count; i += gridDim.x * blockDim.x * N) {
        Lanes<float, N> sums[RANKS];
#pragma unroll
        for (unsigned rank = 0; rank < RANKS; rank++) {
            sums[rank] = load<N>(given + static_cast<unsigned long long>(rank) * count + i);
        }
        put<N>(out + first + i, fold_ranks(sums), adds);
    }
}

extern "C" __global__ void __launch_bounds__(512, 1)
    all_reduce_gathered(float* out, const WIRE* given, unsigned long long first, unsigned count, unsigned adds) {
    if (count % WIDE == 0 && first % WIDE == 0) {
        gathered<WIDE>(out, given, first, count, adds != 0);
    } else {
        gathered<1>(out, given, first, count, adds != 0);
    }
}
