// Runs CUDA kernels on the CPU, thread by thread, to find out whether they compute what they should: where no GPU is at
// hand, and in schedules that a GPU would show once in a million. Every CUDA thread is a fiber; what warps, warpgroups
// and blocks do together happens when all of them have come. Asynchronous copies and products are done at once, or as
// late as the kernel's own waits allow, so that a missing wait is seen. It knows the instructions that the kernels of
// `kernels/` wrap in functions, and nothing of time.
//
// What it cannot see: missing fences between memory proxies, orders of memory that a GPU relaxes, and bank conflicts.
#pragma once

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <sys/mman.h>
#include <type_traits>
#include <ucontext.h>
#include <vector>

struct f16;
struct bf16;
struct e4m3;

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

namespace emulated {

struct Dim {
    unsigned x = 0, y = 0, z = 0;
};

constexpr unsigned WARP = 32;
constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t SHARED_BYTES = 227 << 10;

// Something that a fiber waits for.
using Queue = std::vector<struct Fiber*>;

// A copy of 16 bytes, or, where `barrier` is set, an arrival there once the copies before it are done.
struct Copy {
    unsigned to;
    const void* from;
    bool real;
    bool arrives;
    unsigned barrier;
};

// What the copy engine was told to bring, in any order; a barrier's phase waits for its bytes.
struct Bulk {
    std::function<void(unsigned char* shared)> copy;
    unsigned bytes;
    unsigned barrier;
};

// A product that was issued and may not be computed yet.
using Product = std::function<void()>;

struct Warp {
    void* args[WARP];
    unsigned arrived = 0;
    const char* what = nullptr;
    Queue waiting;
    std::deque<std::vector<Product>> groups;  // the newest is not committed
};

struct Phases {
    unsigned expected = 0, pending = 0, parity = 0;
    long bytes = 0;  // of the copy engine that this phase waits for, less those that came before it was told
    Queue waiting;
};

struct Meeting {
    unsigned arrived = 0;
    Queue waiting;
};

struct Block {
    Dim index;
    unsigned launch;  // of those that run beside each other
    unsigned threads, running;
    std::vector<Warp> warps;
    Meeting meetings[16];
    std::map<unsigned, Phases> phases;  // by address
    std::vector<Bulk> bulks;  // that are not done
    unsigned char* shared;
    size_t dynamic, used;
    std::map<std::string, size_t> named;  // __shared__ variables
};

struct Fiber {
    Block* block;
    unsigned thread;
    unsigned char* stack;
    ucontext_t context;
    jmp_buf at;
    bool begun = false, ended = false;
    std::deque<Copy> copies;
    std::deque<size_t> groups;  // copies in each committed group that is not done, oldest first
    size_t ungrouped = 0;
    const char* waits = "";
    const void* looked = nullptr;  // at last, where others write
};

inline Fiber* current = nullptr;
inline jmp_buf scheduler;
inline std::deque<Fiber*> ready;
inline Queue polling;  // look again and again at what others write
inline std::vector<std::unique_ptr<Fiber>> fibers;
inline std::vector<std::unique_ptr<Block>> blocks;
inline std::map<unsigned, Meeting> clusters;  // by their first block
inline size_t looks = 0;  // at something else than before
inline unsigned grid = 0;
inline unsigned launches = 1;  // kernels that run beside each other, as on several GPUs, each with `grid` blocks
inline bool late_copies = false, late_products = false;
inline std::mt19937 dice;
inline std::string fault;
inline std::function<void()> body;

[[noreturn]] inline void leave() {
    _longjmp(scheduler, 1);
}

inline void stop(const std::string& why) {
    if (fault.empty()) {
        char where[96];
        std::snprintf(where, sizeof where, " (block %u, thread %u)", current->block->index.x, current->thread);
        fault = why + where;
    }
    current->ended = true;
    leave();
}

inline void suspend() {
    if (_setjmp(current->at) == 0) {
        leave();
    }
}

inline void wait(Queue& queue, const char* what) {
    current->waits = what;
    queue.push_back(current);
    suspend();
}

inline void wake(Queue& queue) {
    ready.insert(ready.end(), queue.begin(), queue.end());
    queue.clear();
}

// Lets all others run first, as far as they can go.
inline void pause() {
    current->waits = "pause";
    polling.push_back(current);
    suspend();
}

inline Warp& warp() {
    return current->block->warps[current->thread / WARP];
}

inline unsigned lane() {
    return current->thread % WARP;
}

// `op` is called once all lanes of the warp are here, with the arguments of each.
template <class Args, class Op>
void together(const char* what, Args& args, Op op) {
    Warp& all = warp();
    if (all.arrived > 0 && std::strcmp(all.what, what) != 0) {
        stop(std::string("lanes of a warp are at ") + all.what + " and at " + what);
    }
    all.what = what;
    all.args[lane()] = &args;
    if (++all.arrived < WARP) {
        return wait(all.waiting, what);
    }
    all.arrived = 0;
    op(reinterpret_cast<Args**>(all.args));
    wake(all.waiting);
}

// Shared memory.

inline unsigned char* at(unsigned address) {
    if (address + 16 > SHARED_BYTES) {
        stop("an address behind the end of shared memory");
    }
    return current->block->shared + address;
}

inline unsigned address_of(const void* pointer) {
    const size_t address = static_cast<const unsigned char*>(pointer) - current->block->shared;
    if (address >= SHARED_BYTES) {
        stop("not a pointer into shared memory");
    }
    return static_cast<unsigned>(address);
}

// The block's own variable of that name.
template <class V>
V& shared_variable(const char* name) {
    Block& block = *current->block;
    auto found = block.named.find(name);
    if (found == block.named.end()) {
        const size_t here = (block.used + 15) / 16 * 16;
        block.used = here + sizeof(V);
        if (block.used > SHARED_BYTES) {
            stop("shared memory is too small");
        }
        found = block.named.emplace(name, here).first;
    }
    return *reinterpret_cast<V*>(block.shared + found->second);
}

inline unsigned char* dynamic_shared() {
    return current->block->shared + current->block->dynamic;
}

template <unsigned N>
void load_words(unsigned (&to)[N], unsigned from) {
    if (from % sizeof to != 0) {
        stop("shared memory is read where it is not aligned");
    }
    std::memcpy(to, at(from), sizeof to);
}

inline void load_8(unsigned (&to)[2], unsigned from) {
    load_words(to, from);
}

inline void load_16(unsigned (&to)[4], unsigned from) {
    load_words(to, from);
}

inline void store_16(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
    if (to % 16 != 0) {
        stop("shared memory is written where it is not aligned");
    }
    const unsigned words[4] = {a, b, c, d};
    std::memcpy(at(to), words, sizeof words);
}

// Barriers.

inline void end_phase_if_complete(Phases& phases) {
    if (phases.pending == 0 && phases.bytes == 0) {
        phases.pending = phases.expected;
        phases.parity ^= 1;
        wake(phases.waiting);
    }
}

inline void complete(Phases& phases, unsigned arrivals = 1) {
    // Whoever is to blame: copies arrive outside of threads too.
    if (phases.pending < arrivals && fault.empty()) {
        fault = "more arrivals than a phase has";
    }
    phases.pending -= arrivals;
    end_phase_if_complete(phases);
}

inline Phases& phases_at(unsigned barrier) {
    auto found = current->block->phases.find(barrier);
    if (found == current->block->phases.end()) {
        stop("a barrier that nobody has initialised");
    }
    return found->second;
}

inline void init_barrier(unsigned barrier, unsigned arrivals) {
    Phases& phases = current->block->phases[barrier];
    phases.expected = phases.pending = arrivals;
    phases.parity = 0;
}

inline void arrive(unsigned barrier, unsigned arrivals = 1) {
    complete(phases_at(barrier), arrivals);
}

inline void arrive_expecting(unsigned barrier, unsigned bytes) {
    Phases& phases = phases_at(barrier);
    phases.bytes += bytes;
    complete(phases, WARP);
}

inline void wait_barrier(unsigned barrier, unsigned parity) {
    Phases& phases = phases_at(barrier);
    while (phases.parity == parity) {
        wait(phases.waiting, "wait_barrier");
    }
}

inline void meet(unsigned id, unsigned threads) {
    Meeting& meeting = current->block->meetings[id];
    if (++meeting.arrived == threads) {
        meeting.arrived = 0;
        wake(meeting.waiting);
    } else {
        wait(meeting.waiting, "meet");
    }
}

// Clusters: `size` neighbouring blocks.

inline unsigned cluster_begin(unsigned size) {
    return current->block->index.x / size * size;
}

inline void meet_cluster(unsigned size) {
    Meeting& meeting = clusters[cluster_begin(size)];
    if (++meeting.arrived == size * current->block->threads) {
        meeting.arrived = 0;
        wake(meeting.waiting);
    } else {
        wait(meeting.waiting, "meet_cluster");
    }
}

inline void meet_cluster_again(unsigned size) {
    meet_cluster(size);
}

inline float4 load_of_peer(unsigned address, unsigned rank, unsigned size) {
    const Block& peer = *blocks.at(cluster_begin(size) + rank);
    if (address % 16 != 0 || rank >= size || peer.running == 0) {
        stop("shared memory of a peer that is not there, or not aligned");
    }
    at(address);
    float4 numbers;
    std::memcpy(&numbers, peer.shared + address, sizeof numbers);
    return numbers;
}

// Kernels are run one after another.
inline void begin_next_kernel() {}
inline void wait_for_kernels_before() {}

// Copies.

inline void do_copy(Fiber& fiber) {
    const Copy copy = fiber.copies.front();
    fiber.copies.pop_front();
    if (copy.arrives) {
        complete(fiber.block->phases.at(copy.barrier));
    } else if (copy.real) {
        std::memcpy(fiber.block->shared + copy.to, copy.from, 16);
    } else {
        std::memset(fiber.block->shared + copy.to, 0, 16);
    }
}

inline void enqueue(Copy copy) {
    current->copies.push_back(copy);
    if (!late_copies) {
        do_copy(*current);
    }
}

inline void copy_16(unsigned to, const void* from, bool real) {
    if (to % 16 != 0 || (real && reinterpret_cast<size_t>(from) % 16 != 0)) {
        stop("a copy of 16 bytes that is not aligned");
    }
    at(to);
    enqueue({to, from, real, false, 0});
    current->ungrouped++;
}

inline void arrive_with_copies(unsigned barrier) {
    phases_at(barrier);
    enqueue({0, nullptr, false, true, barrier});
    current->ungrouped++;
}

inline void do_bulk(Block& block, size_t which) {
    const Bulk bulk = block.bulks[which];
    block.bulks.erase(block.bulks.begin() + static_cast<long>(which));
    bulk.copy(block.shared);
    Phases& phases = block.phases.at(bulk.barrier);
    phases.bytes -= bulk.bytes;
    end_phase_if_complete(phases);
}

inline void enqueue_bulk(Bulk bulk) {
    phases_at(bulk.barrier);
    Block& block = *current->block;
    block.bulks.push_back(std::move(bulk));
    if (!late_copies) {
        do_bulk(block, block.bulks.size() - 1);
    }
}

inline void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<size_t>(from) % 16 != 0) {
        stop("a copy of the copy engine that is not aligned");
    }
    at(to + bytes - 16);
    enqueue_bulk({[=](unsigned char* shared) { std::memcpy(shared + to, from, bytes); }, bytes, barrier});
}

// A tensor map's words are, in this order: address, elements of a row, rows, bytes between rows, elements of a box's row, rows
// of a box, bytes of an element, and whether boxes are swizzled.
template <class Map>
void copy_box(unsigned to, const Map& map, unsigned x, unsigned y, unsigned barrier) {
    const auto* words = map.words;
    const uint64_t address = words[0], width = words[1], rows = words[2], apart = words[3], box = words[4], box_rows = words[5], size = words[6], swizzled = words[7];
    const uint64_t row_bytes = box * size;
    if (to % (swizzled ? 1024 : 128) != 0 || address % 16 != 0 || apart % 16 != 0 || row_bytes % 16 != 0 || (swizzled && row_bytes != 128) || box > 256 || box_rows > 256) {
        stop("a box that the copy engine does not take");
    }
    const unsigned bytes = static_cast<unsigned>(row_bytes * box_rows);
    at(to + bytes - 16);
    enqueue_bulk({[=](unsigned char* shared) {
        for (uint64_t row = 0; row < box_rows; row++) {
            for (uint64_t byte = 0; byte < row_bytes; byte++) {
                const uint64_t column = x + byte / size;
                const bool real = y + row < rows && column < width;
                const uint64_t place = swizzled ? (byte / 16 ^ row % 8) * 16 + byte % 16 : byte;
                const auto* from = reinterpret_cast<const unsigned char*>(address) + (y + row) * apart + column * size + byte % size;
                shared[to + row * row_bytes + place] = real ? *from : 0;
            }
        }
    }, bytes, barrier});
}

template <class Map>
void fetch_map(const Map&) {}

inline void copies_issued() {
    current->groups.push_back(current->ungrouped);
    current->ungrouped = 0;
}

template <int NEWER>
void wait_copies() {
    size_t newer = current->ungrouped;
    for (size_t group = 0; group < current->groups.size() && group < static_cast<size_t>(NEWER); group++) {
        newer += current->groups[current->groups.size() - 1 - group];
    }
    while (current->copies.size() > newer) {
        do_copy(*current);
    }
    while (current->groups.size() > static_cast<size_t>(NEWER)) {
        current->groups.pop_front();
    }
}

// Elements.

template <class T>
float converted(uint16_t bits) {
    if constexpr (std::is_same_v<T, bf16>) {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float x;
        std::memcpy(&x, &wide, 4);
        return x;
    } else {
        _Float16 x;
        std::memcpy(&x, &bits, 2);
        return static_cast<float>(x);
    }
}

// Looked up: conversions take most of the time otherwise.
template <class T>
float element(uint16_t bits) {
    static const std::vector<float> all = [] {
        std::vector<float> all(1 << 16);
        for (unsigned bits = 0; bits < all.size(); bits++) {
            all[bits] = converted<T>(static_cast<uint16_t>(bits));
        }
        return all;
    }();
    return all[bits];
}

template <class T>
uint16_t rounded(float x) {
    if constexpr (std::is_same_v<T, bf16>) {
        uint32_t wide;
        std::memcpy(&wide, &x, 4);
        if (std::isnan(x)) {
            return static_cast<uint16_t>(wide >> 16 | 64);
        }
        return static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    } else {
        const _Float16 narrow = static_cast<_Float16>(x);
        uint16_t bits;
        std::memcpy(&bits, &narrow, 2);
        return bits;
    }
}

template <class T>
unsigned pack(float low, float high) {
    return rounded<T>(low) | static_cast<unsigned>(rounded<T>(high)) << 16;
}

template <class T>
float to_f32(T x) {
    return element<T>(x.bits);
}

template <class T>
T from_f32(float x) {
    return T{rounded<T>(x)};
}

inline uint16_t half_of(unsigned pair, unsigned which) {
    return static_cast<uint16_t>(pair >> 16 * which);
}

template <class T>
unsigned add_pairs(unsigned a, unsigned b) {
    auto sum = [&](unsigned which) { return element<T>(half_of(a, which)) + element<T>(half_of(b, which)); };
    return pack<T>(sum(0), sum(1));
}

template <class T>
unsigned multiply_pairs(unsigned a, unsigned b) {
    auto product = [&](unsigned which) { return element<T>(half_of(a, which)) * element<T>(half_of(b, which)); };
    return pack<T>(product(0), product(1));
}

// Four e4m3: eight numbers to each power of two, steps of 2^-9 below 2^-6, and one that is none.
inline void widen(unsigned (&to)[2], unsigned from) {
    auto widened = [&](unsigned at) {
        const unsigned bits = from >> 8 * at & 0xff, exponent = bits >> 3 & 15, fraction = bits & 7;
        float x = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, static_cast<int>(exponent) - 10);
        if ((bits & 0x7f) == 0x7f) {
            x = NAN;
        }
        return static_cast<unsigned>(rounded<f16>(bits & 0x80 ? -x : x));
    };
    to[0] = widened(0) | widened(1) << 16;
    to[1] = widened(2) | widened(3) << 16;
}

// The nearest e4m3, ties to even, at most 448 in size; 0x7f for what is no number.
inline unsigned char narrowed(float x) {
    if (std::isnan(x)) {
        return 0x7f;
    }
    const float size = std::fmin(std::fabs(x), 448.0f);
    // Steps of 2^-9 below 2^-6, of an eighth of the power of two from there on.
    const int power = size < std::ldexp(1.0f, -6) ? -6 : std::ilogb(size);
    const int steps = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - power)));
    // A carry into the next power of two is one into the exponent.
    return (std::signbit(x) ? 0x80 : 0) | (8 * (power + 6) + steps);
}

inline unsigned short convert_e4m3x2(float low, float high) {
    return narrowed(low) | narrowed(high) << 8;
}

inline unsigned pack_finite(float low, float high) {
    auto finite = [](float x) { return std::isnan(x) ? x : std::fmax(std::fmin(x, 65504.0f), -65504.0f); };
    return pack<f16>(finite(low), finite(high));
}

inline float exp2_fast(float x) {
    return std::exp2(x);
}

inline float weight_of(float score, float base, float rate) {
    return std::exp2((score - base) * rate);
}

inline float reciprocal_fast(float x) {
    return 1.0f / x;
}

inline float log2_fast(float x) {
    return std::log2(x);
}

// Lanes among themselves.

template <class V>
struct Exchange {
    V value;
    unsigned from;
    V result;
};

template <class V>
V exchange(V value, unsigned from) {
    static_assert(sizeof(V) == 4 || sizeof(V) == 8, "a register, or two");
    Exchange<V> mine = {value, from % WARP, value};
    together("shfl", mine, [](Exchange<V>** all) {
        for (unsigned l = 0; l < WARP; l++) {
            all[l]->result = all[all[l]->from]->value;
        }
    });
    return mine.result;
}

template <class Op>
unsigned over_lanes(const char* what, unsigned value, Op op) {
    Exchange<unsigned> mine = {value, 0, 0};
    together(what, mine, [op](Exchange<unsigned>** all) {
        unsigned result = all[0]->value;
        for (unsigned l = 1; l < WARP; l++) {
            result = op(result, all[l]->value);
        }
        for (unsigned l = 0; l < WARP; l++) {
            all[l]->result = result;
        }
    });
    return mine.result;
}

// Matrices.

struct Matrices {
    unsigned* to;
    unsigned from;
};

inline void load_any_matrices(unsigned* to, unsigned from, bool transposed) {
    Matrices mine = {to, from};
    if (from % 16 != 0) {
        stop("a matrix whose rows are not aligned");
    }
    at(from);
    together(transposed ? "load_matrices_transposed" : "load_matrices", mine, [transposed](Matrices** all) {
        auto element = [&](unsigned matrix, unsigned row, unsigned column) {
            uint16_t bits;
            std::memcpy(&bits, at(all[matrix * 8 + row]->from) + column * 2, 2);
            return static_cast<unsigned>(bits);
        };
        for (unsigned l = 0; l < WARP; l++) {
            const unsigned row = l / 4, column = l % 4 * 2;
            for (unsigned m = 0; m < 4; m++) {
                all[l]->to[m] = transposed ? element(m, column, row) | element(m, column + 1, row) << 16
                                           : element(m, row, column) | element(m, row, column + 1) << 16;
            }
        }
    });
}

inline void load_matrices(unsigned (&to)[4], unsigned from) {
    load_any_matrices(to, from, false);
}

inline void load_matrices_transposed(unsigned (&to)[4], unsigned from) {
    load_any_matrices(to, from, true);
}

struct Transposed {
    unsigned to;
    const unsigned* from;
};

inline void store_matrices_transposed(unsigned to, const unsigned (&from)[4]) {
    Transposed mine = {to, from};
    if (to % 16 != 0) {
        stop("a matrix whose rows are not aligned");
    }
    at(to);
    together("store_matrices_transposed", mine, [](Transposed** all) {
        for (unsigned l = 0; l < WARP; l++) {
            const unsigned row = l / 4, column = l % 4 * 2;
            for (unsigned m = 0; m < 4; m++) {
                for (unsigned i = 0; i < 2; i++) {
                    const uint16_t bits = half_of(all[l]->from[m], i);
                    std::memcpy(at(all[m * 8 + column + i]->to) + row * 2, &bits, 2);
                }
            }
        }
    });
}

inline unsigned transpose(unsigned x) {
    Exchange<unsigned> mine = {x, 0, 0};
    together("transpose", mine, [](Exchange<unsigned>** all) {
        auto element = [&](unsigned row, unsigned column) { return half_of(all[row * 4 + column / 2]->value, column % 2); };
        for (unsigned l = 0; l < WARP; l++) {
            const unsigned row = l / 4, column = l % 4 * 2;
            all[l]->result = element(column, row) | static_cast<unsigned>(element(column + 1, row)) << 16;
        }
    });
    return mine.result;
}

// Row `row` of a 16 x 16 operand in registers.
template <class T>
float left(const unsigned* const* a, unsigned row, unsigned k) {
    const unsigned register_ = row / 8 + k / 8 * 2;
    return element<T>(half_of(a[row % 8 * 4 + k % 8 / 2][register_], k % 2));
}

struct Multiply {
    float* sum;
    const unsigned* a;
    unsigned b[2];
};

template <class T>
void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    Multiply mine = {sum, a, {b0, b1}};
    together("multiply", mine, [](Multiply** all) {
        const unsigned* a[WARP];
        for (unsigned l = 0; l < WARP; l++) {
            a[l] = all[l]->a;
        }
        for (unsigned row = 0; row < 16; row++) {
            for (unsigned column = 0; column < 8; column++) {
                float product = 0.0f;
                for (unsigned k = 0; k < 16; k++) {
                    const unsigned b = all[column * 4 + k % 8 / 2]->b[k / 8];
                    product += left<T>(a, row, k) * element<T>(half_of(b, k % 2));
                }
                all[row % 8 * 4 + column / 2]->sum[row / 8 * 2 + column % 2] += product;
            }
        }
    });
}

// Products of a warpgroup, of which each warp computes its 16 rows by itself.

struct WideMultiply {
    float (*sum)[4];
    const unsigned* a;
};

// 128-byte swizzle: bits 4-6 of an address by its bits 7-9.
inline uint16_t swizzled(const Block& block, unsigned address) {
    uint16_t bits;
    std::memcpy(&bits, block.shared + (address ^ (address >> 7 & 7) << 4), 2);
    return bits;
}

inline void issue(Product product) {
    Warp& all = warp();
    if (all.groups.empty()) {
        all.groups.emplace_back();
    }
    if (late_products) {
        all.groups.back().push_back(std::move(product));
    } else {
        product();
    }
}

inline unsigned begin_of(uint64_t descriptor) {
    if (descriptor >> 62 != 1) {
        stop("a descriptor of another layout than 128-byte swizzle");
    }
    return (descriptor & 0x3fff) * 16;
}

inline unsigned atoms_apart(uint64_t descriptor) {
    return (descriptor >> 32 & 0x3fff) * 16;
}

// sum [16 x 8 N] (+)= a [16 x 16] b [16 x 8 N]. Element (k, n) of b lies `of(k, n)` bytes behind the descriptor's
// address. `shared`: null, or the descriptor of a [64 x 16] in shared memory, of which the warp's rows are multiplied.
template <class T, unsigned N, class Of>
void issue_wide(const char* what, float (*sum)[4], const unsigned* a, uint64_t shared, uint64_t descriptor, bool more, Of of) {
    WideMultiply mine = {sum, a};
    together(what, mine, [=](WideMultiply** all) {
        const unsigned begin = begin_of(descriptor), left_begin = shared ? begin_of(shared) : 0;
        const unsigned first_row = current->thread / WARP % 4 * 16;
        std::vector<WideMultiply> lanes(WARP);
        for (unsigned l = 0; l < WARP; l++) {
            lanes[l] = *all[l];
        }
        const Block* block = current->block;
        issue([=] {
            const unsigned* a[WARP];
            for (unsigned l = 0; l < WARP; l++) {
                a[l] = lanes[l].a;
            }
            float left_of[16][16];
            for (unsigned row = 0; row < 16; row++) {
                for (unsigned k = 0; k < 16; k++) {
                    const unsigned at = first_row + row;
                    left_of[row][k] = shared ? element<T>(swizzled(*block, left_begin + at / 8 * atoms_apart(shared) + at % 8 * 128 + k * 2)) : left<T>(a, row, k);
                }
            }
            for (unsigned column = 0; column < 8 * N; column++) {
                float right[16];
                for (unsigned k = 0; k < 16; k++) {
                    right[k] = element<T>(swizzled(*block, begin + of(k, column)));
                }
                for (unsigned row = 0; row < 16; row++) {
                    float product = 0.0f;
                    for (unsigned k = 0; k < 16; k++) {
                        product += left_of[row][k] * right[k];
                    }
                    float& to = lanes[row % 8 * 4 + column % 8 / 2].sum[column / 8][row / 8 * 2 + column % 2];
                    to = more ? to + product : product;
                }
            }
        });
    });
}

template <class T>
void multiply_keys(float (&sum)[8][4], const unsigned (&q)[4], unsigned long long k, bool more) {
    const unsigned apart = atoms_apart(k);
    issue_wide<T, 8>("multiply_keys", sum, q, 0, k, more, [apart](unsigned at, unsigned row) { return row / 8 * apart + row % 8 * 128 + at * 2; });
}

template <class T>
void multiply_shared(float (&sum)[8][4], unsigned long long q, unsigned long long k, bool more) {
    const unsigned apart = atoms_apart(k);
    issue_wide<T, 8>("multiply_shared", sum, nullptr, q, k, more, [apart](unsigned at, unsigned row) { return row / 8 * apart + row % 8 * 128 + at * 2; });
}

template <class T, unsigned N>
void multiply_codes(float (&sum)[N / 8][4], const unsigned (&w)[4], unsigned long long inputs, bool more) {
    const unsigned apart = atoms_apart(inputs);
    issue_wide<T, N / 8>("multiply_codes", sum, w, 0, inputs, more, [apart](unsigned at, unsigned row) { return row / 8 * apart + row % 8 * 128 + at * 2; });
}

template <class T, unsigned N>
void multiply_values(float (&sum)[N][4], const unsigned (&p)[4], unsigned long long v) {
    const unsigned apart = atoms_apart(v), panels_apart = (v >> 16 & 0x3fff) * 16;
    issue_wide<T, N>("multiply_values", sum, p, 0, v, true, [=](unsigned row, unsigned at) {
        return at / 64 * panels_apart + row / 8 * apart + row % 8 * 128 + at % 64 * 2;
    });
}

// sum [16 x N] += weights [16 x 16] inputs [N x 16]^T of this warp, all in panels.
template <class T, unsigned N>
void multiply_panels(float (&sum)[N / 8][4], unsigned long long weights, unsigned long long inputs) {
    WideMultiply mine = {sum, nullptr};
    together("multiply_panels", mine, [=](WideMultiply** all) {
        if (weights >> 62 != 1 || inputs >> 62 != 1) {
            stop("a descriptor of another layout than 128-byte swizzle");
        }
        std::vector<WideMultiply> lanes(WARP);
        for (unsigned l = 0; l < WARP; l++) {
            lanes[l] = *all[l];
        }
        const Block* block = current->block;
        const unsigned first = current->thread / WARP % 4 * 16;
        issue([=] {
            auto row_of = [&](uint64_t descriptor, unsigned row, float (&to)[16]) {
                const unsigned at = (descriptor & 0x3fff) * 16 + row / 8 * atoms_apart(descriptor) + row % 8 * 128;
                for (unsigned k = 0; k < 16; k++) {
                    to[k] = element<T>(swizzled(*block, at + k * 2));
                }
            };
            float left_of[16][16], right[16];
            for (unsigned row = 0; row < 16; row++) {
                row_of(weights, first + row, left_of[row]);
            }
            for (unsigned column = 0; column < N; column++) {
                row_of(inputs, column, right);
                for (unsigned row = 0; row < 16; row++) {
                    float product = 0.0f;
                    for (unsigned k = 0; k < 16; k++) {
                        product += left_of[row][k] * right[k];
                    }
                    lanes[row % 8 * 4 + column % 8 / 2].sum[column / 8][row / 8 * 2 + column % 2] += product;
                }
            }
        });
    });
}

inline float of_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const float size = (bits & 0x7f) == 0x7f ? NAN : exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return bits & 0x80 ? -size : size;
}

// sum [16 x N] (+)= w [16 x 32] x [N x 32]^T of this warp, all in panels of e4m3.
template <unsigned N>
void multiply_fp8(float (&sum)[N / 8][4], unsigned long long w, unsigned long long x, bool more) {
    WideMultiply mine = {sum, nullptr};
    together("multiply_fp8", mine, [=](WideMultiply** all) {
        if (w >> 62 != 1 || x >> 62 != 1) {
            stop("a descriptor of another layout than 128-byte swizzle");
        }
        std::vector<WideMultiply> lanes(WARP);
        for (unsigned l = 0; l < WARP; l++) {
            lanes[l] = *all[l];
        }
        const Block* block = current->block;
        const unsigned first = current->thread / WARP % 4 * 16;
        issue([=] {
            auto row_of = [&](uint64_t descriptor, unsigned row, float (&to)[32]) {
                const unsigned at = (descriptor & 0x3fff) * 16 + row / 8 * atoms_apart(descriptor) + row % 8 * 128;
                for (unsigned k = 0; k < 32; k++) {
                    to[k] = of_e4m3(static_cast<uint8_t>(swizzled(*block, at + k)));
                }
            };
            float left_of[16][32], right[32];
            for (unsigned row = 0; row < 16; row++) {
                row_of(w, first + row, left_of[row]);
            }
            for (unsigned column = 0; column < N; column++) {
                row_of(x, column, right);
                for (unsigned row = 0; row < 16; row++) {
                    float product = 0.0f;
                    for (unsigned k = 0; k < 32; k++) {
                        product += left_of[row][k] * right[k];
                    }
                    float& to = lanes[row % 8 * 4 + column % 8 / 2].sum[column / 8][row / 8 * 2 + column % 2];
                    to = more ? to + product : product;
                }
            }
        });
    });
}

inline void products_issued() {
    int none = 0;
    together("products_issued", none, [](int**) { warp().groups.emplace_back(); });
}

template <int NEWER>
void wait_products() {
    if (late_products) {
        pause();
    }
    int none = 0;
    together("wait_products", none, [](int**) {
        Warp& all = warp();
        while (all.groups.size() > NEWER + 1) {
            for (Product& product : all.groups.front()) {
                product();
            }
            all.groups.pop_front();
        }
    });
}

inline void fence_proxies() {}
inline void begin_products() {}
template <int N>
void settled(float (&)[N][4]) {}
inline void decoded(unsigned (&)[4]) {}
inline unsigned masked_over(unsigned word, unsigned mask, unsigned base) {
    return (word & mask) | base;
}
template <unsigned COUNT>
void more_registers() {}
template <unsigned COUNT>
void fewer_registers() {}
inline void prefetch(const void*) {}
inline unsigned recomputed(unsigned x) {
    return x;
}

// What lies there, as whatever is asked for.
struct Loaded {
    const void* from;

    template <class V>
    operator V() const {
        V value;
        std::memcpy(&value, from, sizeof value);
        return value;
    }
};

inline Loaded load_state(const void* from) {
    return {from};
}

inline Loaded load_written(const void* from) {
    return {from};
}

inline Loaded load_extent(const void* from) {
    return {from};
}

// Before a look at what others write: whoever looks again at the same lets all others run first.
inline void look(const void* from) {
    if (current->looked == from) {
        pause();
    } else {
        current->looked = from;
        looks++;
    }
}

inline unsigned load_acquire(const unsigned* from) {
    look(from);
    return *from;
}

// What passes between GPUs.

inline void store_release(unsigned* to, unsigned value) {
    *to = value;
}

inline void fence_for_all() {}

struct LinesOfLane {
    unsigned long long* at;
    unsigned long long low, high;
};

constexpr unsigned LANES_OF_LINE = 8;

struct StoredLine {
    LinesOfLane mine;
    LinesOfLane line[LANES_OF_LINE];  // of the last lane of each
};

// What the lanes of a warp store arrives line by line, each at once, and sometimes late: by its last lane. What they load
// was there at once.
template <class P>
void store_lines(P* to, unsigned long long low, unsigned long long high) {
    StoredLine stored = {{to->words, low, high}, {}};
    together("store_lines", stored, [](StoredLine** all) {
        for (unsigned l = 0; l < WARP; l++) {
            all[l / LANES_OF_LINE * LANES_OF_LINE + LANES_OF_LINE - 1]->line[l % LANES_OF_LINE] = all[l]->mine;
        }
    });
    if (lane() % LANES_OF_LINE != LANES_OF_LINE - 1) {
        return;
    }
    if (dice() % 2 == 0) {
        pause();
    }
    for (const LinesOfLane& part : stored.line) {
        part.at[0] = part.low;
        part.at[1] = part.high;
    }
}

template <class P>
void load_lines(const P* from, unsigned long long& low, unsigned long long& high) {
    look(from);
    LinesOfLane mine = {const_cast<unsigned long long*>(from->words), 0, 0};
    together("load_lines", mine, [](LinesOfLane** all) {
        for (unsigned l = 0; l < WARP; l++) {
            all[l]->low = all[l]->at[0];
            all[l]->high = all[l]->at[1];
        }
    });
    low = mine.low;
    high = mine.high;
}

// Runs a kernel; what went wrong, or nothing.

inline void run_fiber() {
    body();
    if (!current->copies.empty()) {
        stop("a thread ends before its copies");
    }
    if (--current->block->running == 0 && !current->block->bulks.empty()) {
        stop("a block ends before what the copy engine brings");
    }
    current->ended = true;
    leave();
}

inline void resume(Fiber* fiber) {
    current = fiber;
    if (_setjmp(scheduler) != 0) {
        return;
    }
    if (fiber->begun) {
        _longjmp(fiber->at, 1);
    }
    fiber->begun = true;
    setcontext(&fiber->context);
}

// Copies that nobody has waited for yet arrive sometime.
inline bool do_some_copies() {
    std::vector<Fiber*> have;
    for (auto& fiber : fibers) {
        if (!fiber->copies.empty()) {
            have.push_back(fiber.get());
        }
    }
    std::vector<Block*> tell;
    for (auto& block : blocks) {
        if (!block->bulks.empty()) {
            tell.push_back(block.get());
        }
    }
    if (have.empty() && tell.empty()) {
        return false;
    }
    for (unsigned i = 0; i < 64; i++) {
        const size_t which = dice() % (have.size() + tell.size());
        if (which < have.size()) {
            if (!have[which]->copies.empty()) {
                do_copy(*have[which]);
            }
        } else if (Block& block = *tell[which - have.size()]; !block.bulks.empty()) {
            do_bulk(block, dice() % block.bulks.size());
        }
    }
    return true;
}

inline void make_blocks(unsigned threads, size_t dynamic_bytes) {
    for (unsigned index = 0; index < grid * launches; index++) {
        auto block = std::make_unique<Block>();
        block->index = {index % grid, 0, 0};
        block->launch = index / grid;
        block->threads = block->running = threads;
        block->warps.resize(threads / WARP);
        block->shared = static_cast<unsigned char*>(std::aligned_alloc(1024, SHARED_BYTES));
        // Nobody may rely on what lies there.
        std::memset(block->shared, 0xff, SHARED_BYTES);
        block->dynamic = 16;
        block->used = block->dynamic + dynamic_bytes;
        for (unsigned thread = 0; thread < threads; thread++) {
            auto fiber = std::make_unique<Fiber>();
            fiber->block = block.get();
            fiber->thread = thread;
            fiber->stack = static_cast<unsigned char*>(mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            getcontext(&fiber->context);
            fiber->context.uc_stack.ss_sp = fiber->stack;
            fiber->context.uc_stack.ss_size = STACK_BYTES;
            fiber->context.uc_link = nullptr;
            makecontext(&fiber->context, run_fiber, 0);
            ready.push_back(fiber.get());
            fibers.push_back(std::move(fiber));
        }
        blocks.push_back(std::move(block));
    }
}

inline std::string describe_waiting() {
    std::map<std::string, unsigned> waiting;
    for (auto& fiber : fibers) {
        if (!fiber->ended) {
            waiting[fiber->waits]++;
        }
    }
    std::string all = "nobody can go on:";
    for (auto& [what, count] : waiting) {
        all += " " + std::to_string(count) + " threads at " + what + ";";
    }
    return all;
}

// Late copies and products are done when somebody waits for them, in an order that `seed` decides; others at once.
inline const char* run(unsigned blocks_, unsigned threads, size_t dynamic_bytes, bool copies_late, bool products_late, unsigned seed, std::function<void()> kernel) {
    grid = blocks_;
    late_copies = copies_late;
    late_products = products_late;
    dice.seed(seed);
    fault.clear();
    body = std::move(kernel);
    make_blocks(threads, dynamic_bytes);
    size_t polled = ~size_t{0}, turns = 0, looked = 0;
    while (fault.empty()) {
        if (ready.empty()) {
            if (do_some_copies()) {
                continue;
            }
            // What nobody else will change is looked at once more, and then never.
            if (polling.empty() || (turns == polled && looks == looked)) {
                break;
            }
            polled = turns + polling.size();
            looked = looks;
            wake(polling);
        }
        if (++turns % 64 == 0 && late_copies) {
            // Somebody else comes first.
            std::swap(ready[0], ready[dice() % ready.size()]);
        }
        Fiber* next = ready.front();
        ready.pop_front();
        resume(next);
    }
    for (auto& fiber : fibers) {
        if (fault.empty() && !fiber->ended) {
            fault = describe_waiting();
        }
        munmap(fiber->stack, STACK_BYTES);
    }
    for (auto& block : blocks) {
        std::free(block->shared);
    }
    fibers.clear();
    blocks.clear();
    clusters.clear();
    ready.clear();
    polling.clear();
    return fault.empty() ? nullptr : fault.c_str();
}

}  // namespace emulated

// CUDA's own words.

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

#define threadIdx (emulated::Dim{emulated::current->thread, 0, 0})
#define blockIdx (emulated::current->block->index)
#define blockDim (emulated::Dim{emulated::current->block->threads, 1, 1})
#define gridDim (emulated::Dim{emulated::grid, 1, 1})

inline void __syncthreads() {
    emulated::meet(0, emulated::current->block->threads);
}

inline void __syncwarp() {
    int none = 0;
    emulated::together("__syncwarp", none, [](int**) {});
}

// Every thread of a block contributes a word behind the first barrier, and reads the result before the second.
inline bool __syncthreads_or(bool value) {
    auto& any = emulated::shared_variable<unsigned[1]>("__syncthreads_or")[0];
    __syncthreads();
    any = 0;
    __syncthreads();
    any |= value ? 1 : 0;
    __syncthreads();
    return any != 0;
}

inline float __fadd_rn(float a, float b) {
    return a + b;
}

inline float __fsub_rn(float a, float b) {
    return a - b;
}

inline float __fmul_rn(float a, float b) {
    return a * b;
}

inline float __fdiv_rn(float a, float b) {
    return a / b;
}

inline void __threadfence() {}

inline float __expf(float x) {
    return std::exp(x);
}

inline float __fdividef(float a, float b) {
    return a / b;
}

template <class V>
V __shfl_sync(unsigned, V value, unsigned from) {
    return emulated::exchange(value, from);
}

template <class V>
V __shfl_xor_sync(unsigned, V value, unsigned with) {
    return emulated::exchange(value, emulated::lane() ^ with);
}

inline bool __any_sync(unsigned, bool value) {
    return emulated::over_lanes("any", value, [](unsigned a, unsigned b) { return a | b; }) != 0;
}

inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

inline unsigned __reduce_min_sync(unsigned, unsigned value) {
    return emulated::over_lanes("reduce_min", value, [](unsigned a, unsigned b) { return a < b ? a : b; });
}

inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    return emulated::over_lanes("reduce_max", value, [](unsigned a, unsigned b) { return a > b ? a : b; });
}

inline unsigned atomicAdd(unsigned* to, unsigned value) {
    const unsigned before = *to;
    *to += value;
    return before;
}

inline size_t __cvta_generic_to_shared(const void* pointer) {
    return emulated::address_of(pointer);
}

inline float __int_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline float __uint_as_float(unsigned bits) {
    return __int_as_float(bits);
}

inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

// Four of the eight bytes of `a` and `b`, named by the lowest hexadecimal digits of `which`.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
    const uint64_t both = a | static_cast<uint64_t>(b) << 32;
    unsigned chosen = 0;
    for (unsigned byte = 0; byte < 4; byte++) {
        chosen |= static_cast<unsigned>(both >> 8 * (which >> 4 * byte & 7) & 0xff) << 8 * byte;
    }
    return chosen;
}

inline unsigned min(unsigned a, unsigned b) {
    return a < b ? a : b;
}

inline unsigned max(unsigned a, unsigned b) {
    return a > b ? a : b;
}
