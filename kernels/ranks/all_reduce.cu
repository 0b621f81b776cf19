// out = sum over ranks of their parts, or out += it, folded pair by pair as a balanced tree: the parts of a rank, then
// the ranks in order. The same bits on each rank, whichever of the ways. Parts are rounded to WIRE, as they
// are sent. With EXACT, PARTS * RANKS is always 8, and every sum but the last is rounded to WIRE too, whichever rank
// makes it: then the bits do not depend on the number of ranks. Without, of more than two ranks, the last alone is.
//
// all_reduce_one_shot: each rank writes all of its sum to every other one, in lines that carry their own numbers, so
//   that one way of the link is all that it waits for. (RANKS - 1) * count elements leave each GPU, and a fifteenth
//   more; for two ranks no order of exchange sends less. One rank adds up its parts.
// all_reduce_two_shot: each rank adds up one share, whole lines of warps, and writes the sums to every other one, both
//   in lines. 2 * (RANKS - 1) / RANKS * count elements leave each GPU, and a fifteenth more; with EXACT, or of two
//   ranks, half of them are f32.
//
// all_reduce_own, all_reduce_gathered: where ranks write no memory of each other, the sum of this rank's parts as WIRE,
//   and from those of all ranks, which a library has gathered, what the others leave. Sums of more ranks than two are
//   what one shot makes of them.
//
// Shapes: out f32, parts PART, of which elements first, .. first + count are summed; memory as in exchange.cuh.
// Grid: the same on every rank. Warps wait only for the same warps of other ranks.
// Limit: the link.
// Definition: `Ranked::all_reduce`; on the CPU, crates/cpu/src/fabric.rs.
//
// Defines: RANKS (1, 2, 4 or 8), PARTS (of a rank: 1, 2, 4 or 8), PART and WIRE (f32, f16 or bf16), EXACT (0 or 1).
#include "overlap.cuh"
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

// Elements of 16 bytes.
constexpr int WIDE = 16 / sizeof(WIRE);

// Elements of a word, and of a warp's lines.
constexpr int IN_WORD = 8 / sizeof(WIRE);
constexpr unsigned WARP_ELEMENTS = WARP_WORDS * IN_WORD;

// A launch's elements: a place of `parts` and `out` for each of `count`.
struct Elements {
    float* out;
    const Parts& parts;
    unsigned long long first;
    unsigned count;
    bool adds;
};

// A thread's elements of its warp's lines, two words, or the line's last one beside the number.
struct Words {
    Lanes<float, IN_WORD> at[2];
};

__device__ __forceinline__ unsigned lane() {
    return threadIdx.x % 32;
}

__device__ __forceinline__ bool is_last() {
    return lane() % LINE_PARTS == LINE_PARTS - 1;
}

// The first element of this lane's word `word`.
__device__ __forceinline__ unsigned element_of(unsigned begin, unsigned word) {
    return begin + (lane() / LINE_PARTS * (2 * LINE_PARTS - 1) + lane() % LINE_PARTS * 2 + word) * IN_WORD;
}

// Calls op(word, first element) for each of this lane's words of the warp's lines from element `begin` on.
template <class Op>
__device__ __forceinline__ void for_words(unsigned begin, Op op) {
    op(0, element_of(begin, 0));
    if (!is_last()) {
        op(1, element_of(begin, 1));
    }
}

// This rank's sums; zero behind their end. ALIGNED: all words are whole, and aligned in memory.
template <bool ALIGNED>
__device__ __forceinline__ Words own_words(const Elements& of, unsigned begin) {
    Words own = {};
    for_words(begin, [&](unsigned word, unsigned i) {
        if constexpr (ALIGNED) {
            if (i < of.count) {
                own.at[word] = own_sum<IN_WORD>(of.parts, of.first + i);
            }
        } else {
            for (int lane = 0; lane < IN_WORD; lane++) {
                own.at[word].at[lane] = i + lane < of.count ? own_sum<1>(of.parts, of.first + i + lane).at[0] : 0.0f;
            }
        }
    });
    return own;
}

// What is there; zeros if nothing is added to.
template <bool ALIGNED>
__device__ __forceinline__ Words words_before(const Elements& of, unsigned begin) {
    Words before = {};
    if (of.adds) {
        for_words(begin, [&](unsigned word, unsigned i) {
            const float* from = of.out + of.first + i;
            if constexpr (ALIGNED) {
                if (i < of.count) {
                    before.at[word] = load<IN_WORD>(from);
                }
            } else {
                for (int lane = 0; lane < IN_WORD; lane++) {
                    before.at[word].at[lane] = i + lane < of.count ? from[lane] : 0.0f;
                }
            }
        });
    }
    return before;
}

template <bool ALIGNED>
__device__ __forceinline__ void put_words(const Elements& of, unsigned begin, const Words& before, const Words& sums) {
    for_words(begin, [&](unsigned word, unsigned i) {
        Lanes<float, IN_WORD> sum = sums.at[word];
        for (int lane = 0; lane < IN_WORD && of.adds; lane++) {
            sum.at[lane] = __fadd_rn(before.at[word].at[lane], sum.at[lane]);
        }
        float* to = of.out + of.first + i;
        if constexpr (ALIGNED) {
            if (i < of.count) {
                store<IN_WORD>(to, sum);
            }
        } else {
            for (int lane = 0; lane < IN_WORD; lane++) {
                if (i + lane < of.count) {
                    to[lane] = sum.at[lane];
                }
            }
        }
    });
}

// A word of T.
template <class T>
struct alignas(8) Word {
    T at[8 / sizeof(T)];
};

// The word of elements from `from` on.
template <class T>
__device__ __forceinline__ unsigned long long word_of(const Lanes<float, IN_WORD>& x, unsigned from) {
    Word<T> word;
#pragma unroll
    for (unsigned i = 0; i < 8 / sizeof(T); i++) {
        word.at[i] = from_f32<T>(x.at[from + i]);
    }
    return *reinterpret_cast<const unsigned long long*>(&word);
}

template <class T>
__device__ __forceinline__ void take_word(Lanes<float, IN_WORD>& x, unsigned from, unsigned long long found) {
    const Word<T> word = *reinterpret_cast<const Word<T>*>(&found);
#pragma unroll
    for (unsigned i = 0; i < 8 / sizeof(T); i++) {
        x.at[from + i] = to_f32(word.at[i]);
    }
}

// A warp's elements take so many times its lines as T.
template <class T>
constexpr unsigned TIMES = sizeof(T) / sizeof(WIRE);

// Lines of one warp as T: a thread's halves of words, if they are twice as many.
template <class T>
__device__ __forceinline__ void send(LinePart* to, const Words& words, unsigned number) {
    constexpr unsigned HALF = IN_WORD / TIMES<T>;
#pragma unroll
    for (unsigned time = 0; time < TIMES<T>; time++) {
        unsigned long long low, high;
        if constexpr (TIMES<T> == 1) {
            low = word_of<T>(words.at[0], 0);
            high = word_of<T>(words.at[1], 0);
        } else {
            low = word_of<T>(words.at[is_last() ? 0 : time], is_last() ? time * HALF : 0);
            high = word_of<T>(words.at[time], HALF);
        }
        store_lines(to + time * 32 + lane(), low, is_last() ? number : high);
    }
}

// A thread's part of a warp's lines, when all of them have come; anything, if a rank has failed.
__device__ __forceinline__ LinePart receive(const Exchange& at, const LinePart* from, unsigned number) {
    LinePart part;
    load_lines(from + lane(), part.words[0], part.words[1]);
    for (unsigned turn = 1; __any_sync(0xffffffff, is_last() && part.words[1] != number); turn++) {
        // All lanes leave together: each reads for itself.
        if (turn % TURNS == 0 && __any_sync(0xffffffff, *at.aborted != 0)) {
            break;
        }
        load_lines(from + lane(), part.words[0], part.words[1]);
    }
    return part;
}

template <class T>
__device__ __forceinline__ Words receive_words(const Exchange& at, const LinePart* from, unsigned number) {
    constexpr unsigned HALF = IN_WORD / TIMES<T>;
    Words words = {};
#pragma unroll
    for (unsigned time = 0; time < TIMES<T>; time++) {
        const LinePart part = receive(at, from + time * 32, number);
        if constexpr (TIMES<T> == 1) {
            take_word<T>(words.at[0], 0, part.words[0]);
            take_word<T>(words.at[1], 0, part.words[1]);
        } else if (is_last()) {
            take_word<T>(words.at[0], time * HALF, part.words[0]);
        } else {
            take_word<T>(words.at[time], 0, part.words[0]);
            take_word<T>(words.at[time], HALF, part.words[1]);
        }
    }
    return words;
}

// The sums of all ranks', of which others are at `line` of theirs.
__device__ __forceinline__ Words sum_words(const Exchange& at, unsigned number, const Words& own, unsigned line) {
    LinePart parts[RANKS];
#pragma unroll
    for (unsigned sender = 0; sender < RANKS; sender++) {
        const LinePart* from = lines_of(at, number, sender, at.rank) + line * LINE_PARTS;
        parts[sender] = sender == at.rank ? LinePart{} : receive(at, from, number);
    }
    Words sums;
#pragma unroll
    for (unsigned word = 0; word < 2; word++) {
        Lanes<float, IN_WORD> each[RANKS];
#pragma unroll
        for (unsigned rank = 0; rank < RANKS; rank++) {
            take_word<WIRE>(each[rank], 0, parts[rank].words[word]);
#pragma unroll
            for (int i = 0; i < IN_WORD; i++) {
                each[rank].at[i] = rank == at.rank ? own.at[word].at[i] : each[rank].at[i];
            }
        }
        sums.at[word] = fold_ranks(each);
    }
    return sums;
}

// Adds up what has come of elements `begin`, .., at line `line`, and puts the sums.
template <bool ALIGNED>
__device__ __forceinline__ Words add_lines(const Exchange& at, unsigned number, const Elements& of, const Words& own,
                                           unsigned begin, unsigned line) {
    const Words before = words_before<ALIGNED>(of, begin);
    const Words sums = sum_words(at, number, own, line);
    put_words<ALIGNED>(of, begin, before, sums);
    return sums;
}

template <int N>
__device__ __forceinline__ void add_own(const Elements& of) {
    for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) * N; i < of.count; i += gridDim.x * blockDim.x * N) {
        put<N>(of.out + of.first + i, own_sum<N>(of.parts, of.first + i), of.adds);
    }
}

template <bool ALIGNED>
__device__ __forceinline__ void one_shot(const Exchange& at, unsigned number, const Elements& of) {
    const unsigned warps = gridDim.x * blockDim.x / 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const unsigned times = (of.count + WARP_ELEMENTS - 1) / WARP_ELEMENTS;
    for (unsigned time = warp; time < times; time += warps) {
        const Words own = own_words<ALIGNED>(of, time * WARP_ELEMENTS);
#pragma unroll
        for (unsigned other = 1; other < RANKS; other++) {
            send<WIRE>(lines_of(at, number, at.rank, (at.rank + other) % RANKS) + time * 32, own, number);
        }
        add_lines<ALIGNED>(at, number, of, own, time * WARP_ELEMENTS, time * WARP_LINES);
    }
}

// Shares are whole lines of warps, and none of them is empty: each rank hears from all others. Sums lie behind the
// lines that are added up.
template <bool ALIGNED>
__device__ __forceinline__ void two_shot(const Exchange& at, unsigned number, const Elements& of) {
    const unsigned warps = gridDim.x * blockDim.x / 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const unsigned times = (of.count + WARP_ELEMENTS - 1) / WARP_ELEMENTS, share = (times + RANKS - 1) / RANKS;
    for (unsigned time = warp; time < share; time += warps) {
        const unsigned sums_at = share * 32 + time * TIMES<SUM> * 32;
#pragma unroll
        for (unsigned other = 1; other < RANKS; other++) {
            const unsigned owner = (at.rank + other) % RANKS, of_all = owner * share + time;
            if (of_all < times) {
                const Words own = own_words<ALIGNED>(of, of_all * WARP_ELEMENTS);
                send<WIRE>(lines_of(at, number, at.rank, owner) + time * 32, own, number);
            }
        }
        if (at.rank * share + time < times) {
            const unsigned begin = (at.rank * share + time) * WARP_ELEMENTS;
            const Words own = own_words<ALIGNED>(of, begin);
            const Words sums = add_lines<ALIGNED>(at, number, of, own, begin, time * WARP_LINES);
#pragma unroll
            for (unsigned other = 1; other < RANKS; other++) {
                send<SUM>(lines_of(at, number, at.rank, (at.rank + other) % RANKS) + sums_at, sums, number);
            }
        }
#pragma unroll
        for (unsigned other = 1; other < RANKS; other++) {
            const unsigned owner = (at.rank + other) % RANKS, of_all = owner * share + time;
            if (of_all < times) {
                const Words before = words_before<ALIGNED>(of, of_all * WARP_ELEMENTS);
                const LinePart* from = lines_of(at, number, owner, at.rank) + sums_at;
                put_words<ALIGNED>(of, of_all * WARP_ELEMENTS, before, receive_words<SUM>(at, from, number));
            }
        }
    }
}

// Blocks of a multiprocessor: sums of more ranks need more registers.
constexpr unsigned BESIDE = RANKS <= 2 ? 4 : RANKS == 4 ? 3 : 2;

// Blocks beside each other of the two-shot kernel: before Hopper its exact sums of eight ranks, which come in 16 bits
// and are sent on in f32, take 181 registers, and spill 488 bytes if they have 128 (NVRTC 13.0).
#if __CUDA_ARCH__ < 900
constexpr unsigned BESIDE_TWO_SHOT = EXACT && RANKS == 8 && sizeof(WIRE) == 2 ? 1 : BESIDE;
#else
constexpr unsigned BESIDE_TWO_SHOT = BESIDE;
#endif

extern "C" __global__ void __launch_bounds__(256, BESIDE)
    all_reduce_one_shot(float* out, const Parts parts, unsigned long long first, unsigned count, unsigned adds,
                        const RankMemory* ranks, unsigned* last, const unsigned* aborted, unsigned rank,
                        unsigned most_lines, unsigned most_floats) {
    begin_next_kernel();
    wait_for_kernels_before();
    if (count == 0) {
        return;
    }
    const Elements of = {out, parts, first, count, adds != 0};
    const Exchange at = {ranks, last, aborted, rank, most_lines, most_floats};
    const unsigned number = number_of(at);
    if constexpr (RANKS == 1) {
        if (count % WIDE == 0 && first % WIDE == 0) {
            add_own<WIDE>(of);
        } else {
            add_own<1>(of);
        }
    } else if (count % IN_WORD == 0 && first % IN_WORD == 0) {
        one_shot<true>(at, number, of);
    } else {
        one_shot<false>(at, number, of);
    }
    end_exchange(at, number);
}

extern "C" __global__ void __launch_bounds__(256, BESIDE_TWO_SHOT)
    all_reduce_two_shot(float* out, const Parts parts, unsigned long long first, unsigned count, unsigned adds,
                        const RankMemory* ranks, unsigned* last, const unsigned* aborted, unsigned rank,
                        unsigned most_lines, unsigned most_floats) {
    begin_next_kernel();
    wait_for_kernels_before();
    if (count == 0) {
        return;
    }
    const Elements of = {out, parts, first, count, adds != 0};
    const Exchange at = {ranks, last, aborted, rank, most_lines, most_floats};
    const unsigned number = number_of(at);
    if (count % IN_WORD == 0 && first % IN_WORD == 0) {
        two_shot<true>(at, number, of);
    } else {
        two_shot<false>(at, number, of);
    }
    end_exchange(at, number);
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
