// out = sum over ranks of x, or out += it, folded pair by pair as a balanced tree in rank order: the same bits on each
// rank, whichever of the three kernels. What is sent is rounded to WIRE, the rank's own part too.
//
// all_reduce_packets: each rank writes all of x to every other one, in packets that carry their own flag; twice the
//   bytes, but one way of the link is all that it waits for. For small buffers.
// all_reduce_one_shot: each rank writes all of x to every other one, chunk by chunk. Half the blocks send, half add
//   up what has come. (RANKS - 1) * count elements leave each GPU. For two ranks no order of exchange sends less.
// all_reduce_two_shot: each rank adds up one share of x and writes the sums to every other one. A third of the blocks
//   sends, adds, and takes over sums, each. 2 * (RANKS - 1) / RANKS * count elements leave each GPU, half of them f32.
//
// Shapes: out, x f32 [count], apart from each other; memory as in exchange.cuh.
// Grid: the same on every rank; blocks of 512 threads. Blocks wait only for blocks of a lower number on other ranks.
// Limit: the link.
// Definition: `Ranked::all_reduce`; on the CPU, src/backend/cpu/fabric.rs.
//
// Defines: RANKS (2, 4 or 8), WIRE (f32, f16 or bf16).
#include "ranks/exchange.cuh"

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

// Elements of x from `first`; zero behind its end.
__device__ __forceinline__ Half half_of_x(const float* x, unsigned first, unsigned count) {
    Half half;
#pragma unroll
    for (unsigned i = 0; i < IN_WORD; i++) {
        half.at[i] = from_f32<WIRE>(first + i < count ? x[first + i] : 0.0f);
    }
    return half;
}

extern "C" __global__ void __launch_bounds__(512, 1)
    all_reduce_packets(float* out, const float* x, unsigned count, unsigned adds, const RankMemory* ranks,
                       unsigned* last, const unsigned* aborted, unsigned rank, unsigned most_packets,
                       unsigned most_floats) {
    const Exchange at = {ranks, last, aborted, rank, most_packets, most_floats};
    const unsigned number = number_of(at);
    const unsigned begin = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    const unsigned packets = (count + IN_PACKET - 1) / IN_PACKET;
    for (unsigned packet = begin; packet < packets; packet += step) {
        const unsigned first = packet * IN_PACKET;
        const unsigned long long low = word_of(half_of_x(x, first, count), number);
        const unsigned long long high = word_of(half_of_x(x, first + IN_WORD, count), number);
#pragma unroll
        for (unsigned other = 1; other < RANKS; other++) {
            store_packet(packets_of(at, number, rank, (rank + other) % RANKS) + packet, low, high);
        }
    }
    for (unsigned packet = begin; packet < packets; packet += step) {
        const unsigned first = packet * IN_PACKET;
        Lanes<float, static_cast<int>(IN_PACKET)> parts[RANKS];
#pragma unroll
        for (unsigned sender = 0; sender < RANKS; sender++) {
            Half halves[2];
            if (sender == rank) {
                halves[0] = half_of_x(x, first, count);
                halves[1] = half_of_x(x, first + IN_WORD, count);
            } else {
                const Packet* from = packets_of(at, number, sender, rank) + packet;
                unsigned long long low, high;
                load_packet(from, low, high);
                for (unsigned turn = 1; low >> 32 != number || high >> 32 != number; turn++) {
                    if (turn % TURNS == 0 && *at.aborted != 0) {
                        break;
                    }
                    load_packet(from, low, high);
                }
                halves[0] = half_of_word(low);
                halves[1] = half_of_word(high);
            }
#pragma unroll
            for (unsigned i = 0; i < IN_PACKET; i++) {
                parts[sender].at[i] = to_f32(halves[i / IN_WORD].at[i % IN_WORD]);
            }
        }
        fold(parts);
#pragma unroll
        for (unsigned i = 0; i < IN_PACKET; i++) {
            if (first + i < count) {
                out[first + i] = adds ? __fadd_rn(out[first + i], parts[0].at[i]) : parts[0].at[i];
            }
        }
    }
    end_exchange(at, number);
}

// Where `sender` writes element `i` of x for `receiver`: behind the place of float `share`, the first element of the
// share, so that elements of one share never lie where sums of another do.
__device__ __forceinline__ WIRE* sent_at(const Exchange& at, unsigned number, unsigned sender, unsigned receiver,
                                         unsigned share, unsigned i) {
    return reinterpret_cast<WIRE*>(floats_of(at, number, sender, receiver) + share) + (i - share);
}

// Writes elements [begin, end) of x to ranks first_other, .. behind this one.
template <int N>
__device__ __forceinline__ void send(const Exchange& at, unsigned number, const float* x, unsigned share, unsigned begin,
                                     unsigned end, unsigned first_other, unsigned end_other) {
#pragma unroll 4
    for (unsigned i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
        const Lanes<float, N> own = load<N>(x + i);
        for (unsigned other = first_other; other < end_other; other++) {
            store<N>(sent_at(at, number, at.rank, (at.rank + other) % RANKS, share, i), own);
        }
    }
}

// The sums of N elements from `i`.
template <int N>
__device__ __forceinline__ Lanes<float, N> sum_at(const Exchange& at, unsigned number, const float* x, unsigned share,
                                                  unsigned i) {
    Lanes<float, N> parts[RANKS];
#pragma unroll
    for (unsigned sender = 0; sender < RANKS; sender++) {
        parts[sender] = sender == at.rank ? as_sent<WIRE>(load<N>(x + i))
                                          : load<N>(sent_at(at, number, sender, at.rank, share, i));
    }
    fold(parts);
    return parts[0];
}

template <int N>
__device__ __forceinline__ void one_shot(const Exchange& at, float* out, const float* x, unsigned count, unsigned adds,
                                         unsigned chunk) {
    const unsigned number = number_of(at), chunks = (count + chunk - 1) / chunk;
    const unsigned blocks = gridDim.x / 2, block = blockIdx.x % blocks;
    const bool sends = blockIdx.x < blocks;
    for (unsigned c = block; c < chunks; c += blocks) {
        const unsigned begin = c * chunk, end = min(begin + chunk, count);
        if (sends) {
            send<N>(at, number, x, 0, begin, end, 1, RANKS);
            tell(at, number, 0, c);
        } else {
            hear(at, number, 0, c);
#pragma unroll 2
            for (unsigned i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
                put<N>(out + i, sum_at<N>(at, number, x, 0, i), adds);
            }
        }
    }
    end_exchange(at, number);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    all_reduce_one_shot(float* out, const float* x, unsigned count, unsigned adds, unsigned chunk,
                        const RankMemory* ranks, unsigned* last, const unsigned* aborted, unsigned rank,
                        unsigned most_packets, unsigned most_floats) {
    const Exchange at = {ranks, last, aborted, rank, most_packets, most_floats};
    if (count % WIDE == 0) {
        one_shot<WIDE>(at, out, x, count, adds, chunk);
    } else {
        one_shot<1>(at, out, x, count, adds, chunk);
    }
}

// Shares are whole chunks, none of them without any. A chunk's number is its place in x.
template <int N>
__device__ __forceinline__ void two_shot(const Exchange& at, float* out, const float* x, unsigned count, unsigned adds,
                                         unsigned chunk) {
    const unsigned number = number_of(at), chunks = (count + chunk - 1) / chunk;
    const unsigned share = (chunks + RANKS - 1) / RANKS;
    const unsigned blocks = gridDim.x / 3, block = blockIdx.x % blocks, role = blockIdx.x / blocks;
    // Turn by turn a chunk of each other rank's share, so that all adders have work from the beginning.
    for (unsigned turn = block; turn < share * OTHERS && role != 1; turn += blocks) {
        const unsigned other = 1 + turn % OTHERS, owner = (at.rank + other) % RANKS;
        const unsigned c = owner * share + turn / OTHERS;
        const unsigned begin = c * chunk, end = min(begin + chunk, count);
        if (begin >= count) {
            continue;
        }
        if (role == 0) {
            send<N>(at, number, x, owner * share * chunk, begin, end, other, other + 1);
            tell_one(at, number, 0, c, owner);
        } else {
            hear_one(at, number, 1, c, owner);
            const float* sums = floats_of(at, number, owner, at.rank);
#pragma unroll 2
            for (unsigned i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
                put<N>(out + i, load<N>(sums + i), adds);
            }
        }
    }
    for (unsigned c = at.rank * share + block; c < min((at.rank + 1) * share, chunks) && role == 1; c += blocks) {
        const unsigned begin = c * chunk, end = min(begin + chunk, count);
        hear(at, number, 0, c);
        for (unsigned i = begin + threadIdx.x * N; i < end; i += blockDim.x * N) {
            const Lanes<float, N> sums = sum_at<N>(at, number, x, at.rank * share * chunk, i);
            for (unsigned other = 1; other < RANKS; other++) {
                store<N>(floats_of(at, number, at.rank, (at.rank + other) % RANKS) + i, sums);
            }
            put<N>(out + i, sums, adds);
        }
        tell(at, number, 1, c);
    }
    end_exchange(at, number);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    all_reduce_two_shot(float* out, const float* x, unsigned count, unsigned adds, unsigned chunk,
                        const RankMemory* ranks, unsigned* last, const unsigned* aborted, unsigned rank,
                        unsigned most_packets, unsigned most_floats) {
    const Exchange at = {ranks, last, aborted, rank, most_packets, most_floats};
    if (count % WIDE == 0) {
        two_shot<WIDE>(at, out, x, count, adds, chunk);
    } else {
        two_shot<1>(at, out, x, count, adds, chunk);
    }
}
