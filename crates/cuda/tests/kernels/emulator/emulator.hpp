// What CUDA kernels find in place of a GPU when they run on the CPU, thread by thread: a function for every instruction
// that the kernels of `kernels/` wrap in one. `emulator.cpp` runs the threads and holds all that does not depend on a
// kernel; it is compiled once, this with every kernel: so this includes next to nothing.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

// The functions of <math.h> that kernels call.
extern "C" {
double ceil(double) noexcept;
double exp(double) noexcept;
double fmax(double, double) noexcept;
double fmin(double, double) noexcept;
double log(double) noexcept;
float expf(float) noexcept;
float exp2f(float) noexcept;
float fabsf(float) noexcept;
float fmaf(float, float, float) noexcept;
float fmaxf(float, float) noexcept;
float fminf(float, float) noexcept;
float log1pf(float) noexcept;
float log2f(float) noexcept;
float sqrtf(float) noexcept;
float tanhf(float) noexcept;
}

namespace emulated {

struct Dim {
    unsigned x, y, z;
};

constexpr unsigned WARP = 32;
constexpr unsigned SHARED_BYTES = 227 << 10;

// A CUDA thread, as kernels see it.
struct Thread {
    unsigned number;  // in its block
    unsigned block_threads, grid;
    Dim block;
    unsigned char* shared;
    unsigned dynamic;  // where the block's dynamic shared memory begins in `shared`
};

// The one that runs.
extern __thread Thread* current;

inline unsigned lane() {
    return current->number % WARP;
}

// Ends the launch with this fault.
[[noreturn]] void stop(const char* why);

// Shared memory. An address is an offset in it.

inline unsigned char* at(unsigned address) {
    if (address + 16 > SHARED_BYTES) {
        stop("an address behind the end of shared memory");
    }
    return current->shared + address;
}

inline unsigned address_of(const void* pointer) {
    const size_t address = static_cast<const unsigned char*>(pointer) - current->shared;
    if (address >= SHARED_BYTES) {
        stop("not a pointer into shared memory");
    }
    return static_cast<unsigned>(address);
}

// Where the block's own variable of that name lies.
void* shared_place(const char* name, size_t bytes);

template <class V>
V& shared_variable(const char* name) {
    return *static_cast<V*>(shared_place(name, sizeof(V)));
}

inline unsigned char* dynamic_shared() {
    return current->shared + current->dynamic;
}

template <unsigned N>
void load_words(unsigned (&to)[N], unsigned from) {
    if (from % sizeof to != 0) {
        stop("shared memory is read where it is not aligned");
    }
    memcpy(to, at(from), sizeof to);
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
    memcpy(at(to), words, sizeof words);
}

// Barriers.
void init_barrier(unsigned barrier, unsigned arrivals);
void arrive(unsigned barrier, unsigned arrivals = 1);
void expect_bytes(unsigned barrier, unsigned bytes);
void arrive_expecting(unsigned barrier, unsigned bytes);
void wait_barrier(unsigned barrier, unsigned parity);
void meet(unsigned id, unsigned threads);

// Any lane would do.
inline bool is_elected() {
    return current->number % 32 == 31;
}

// Clusters: `size` neighbouring blocks.
void meet_cluster(unsigned size);
float4 load_of_peer(unsigned address, unsigned rank, unsigned size);
void arrive_at_peer(unsigned barrier, unsigned rank, unsigned size);

inline void meet_cluster_again(unsigned size) {
    meet_cluster(size);
}

// Kernels are run one after another.
inline void begin_next_kernel() {}
inline void wait_for_kernels_before() {}

// Copies.
void copy_16(unsigned to, const void* from, bool real);
void copy_4(unsigned to, const void* from);
void arrive_with_copies(unsigned barrier);
void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier);
void copy_box_of(unsigned to, const uint64_t* map, unsigned x, unsigned y, unsigned barrier, unsigned size);
void copies_issued();
void wait_copies_but(unsigned newer);

// A tensor map's words are, in this order: address, elements of a row, rows, bytes between rows, elements of a box's
// row, rows of a box, bytes of an element, and whether boxes are swizzled.
template <class Map>
void copy_box(unsigned to, const Map& map, unsigned x, unsigned y, unsigned barrier) {
    copy_box_of(to, reinterpret_cast<const uint64_t*>(map.words), x, y, barrier, 1);
}

template <class Map>
void copy_box_to_cluster(unsigned to, const Map& map, unsigned x, unsigned y, unsigned barrier, unsigned size) {
    copy_box_of(to, reinterpret_cast<const uint64_t*>(map.words), x, y, barrier, size);
}

template <class Map>
void fetch_map(const Map&) {}

template <int NEWER>
void wait_copies() {
    wait_copies_but(NEWER);
}

// Elements.
extern const float* const HALVES;  // of all bits
uint16_t half_of(float x);

template <class T>
constexpr bool IS_BF16 = false;
template <>
constexpr bool IS_BF16<bf16> = true;

template <class T>
float element(uint16_t bits) {
    if constexpr (IS_BF16<T>) {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float x;
        memcpy(&x, &wide, 4);
        return x;
    } else {
        return HALVES[bits];
    }
}

template <class T>
uint16_t rounded(float x) {
    if constexpr (IS_BF16<T>) {
        uint32_t wide;
        memcpy(&wide, &x, 4);
        if (x != x) {
            return static_cast<uint16_t>(wide >> 16 | 64);
        }
        return static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    } else {
        return half_of(x);
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

inline uint16_t part_of(unsigned pair, unsigned which) {
    return static_cast<uint16_t>(pair >> 16 * which);
}

template <class T>
unsigned add_pairs(unsigned a, unsigned b) {
    auto sum = [&](unsigned which) { return element<T>(part_of(a, which)) + element<T>(part_of(b, which)); };
    return pack<T>(sum(0), sum(1));
}

template <class T>
unsigned multiply_pairs(unsigned a, unsigned b) {
    auto product = [&](unsigned which) { return element<T>(part_of(a, which)) * element<T>(part_of(b, which)); };
    return pack<T>(product(0), product(1));
}

void widen(unsigned (&to)[2], unsigned from);
unsigned short convert_e4m3x2(float low, float high);

inline unsigned pack_finite(float low, float high) {
    auto finite = [](float x) { return x != x ? x : fmaxf(fminf(x, 65504.0f), -65504.0f); };
    return pack<f16>(finite(low), finite(high));
}

inline float exp2_fast(float x) {
    return exp2f(x);
}

inline float weight_of(float score, float base, float rate) {
    return exp2f((score - base) * rate);
}

inline float reciprocal_fast(float x) {
    return 1.0f / x;
}

inline float log2_fast(float x) {
    return log2f(x);
}

// Lanes among themselves.
unsigned exchange_word(unsigned value, unsigned from);
uint64_t exchange_words(uint64_t value, unsigned from);
unsigned any_of_lanes(unsigned value);
unsigned min_of_lanes(unsigned value);
unsigned max_of_lanes(unsigned value);
void meet_lanes();

template <class V>
V exchange(V value, unsigned from) {
    static_assert(sizeof(V) == 4 || sizeof(V) == 8, "a register, or two");
    V result;
    if constexpr (sizeof(V) == 4) {
        unsigned word;
        memcpy(&word, &value, 4);
        word = exchange_word(word, from);
        memcpy(&result, &word, 4);
    } else {
        uint64_t words;
        memcpy(&words, &value, 8);
        words = exchange_words(words, from);
        memcpy(&result, &words, 8);
    }
    return result;
}

// Matrices.
void load_matrices(unsigned (&to)[4], unsigned from);
void load_matrices_transposed(unsigned (&to)[4], unsigned from);
void store_matrices(unsigned to, const unsigned (&from)[4]);
void store_matrices_transposed(unsigned to, const unsigned (&from)[4]);
unsigned transpose(unsigned x);

enum class Elements { F16, BF16, E4M3 };

template <class T>
constexpr Elements ELEMENTS = IS_BF16<T> ? Elements::BF16 : Elements::F16;

// sum [16 x 8] += a [16 x 16] b [16 x 8]
void multiply_16(Elements elements, float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <class T>
void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    multiply_16(ELEMENTS<T>, sum, a, b0, b1);
}

// Products of a warpgroup, of which each warp computes its 16 rows by itself: sum [16 x 8 groups] (+)= a b, each with
// 32 bytes of inputs.
struct Operands {
    Elements elements;
    const unsigned* left_registers;  // a; null: it lies in shared memory
    uint64_t left;                   // the descriptor of a [64 x 16] there
    uint64_t right;                  // that of b
    bool across;                     // b's columns are behind each other in its rows; otherwise its rows in its columns
};

void multiply_wide(const char* what, const Operands& operands, float (*sum)[4], unsigned groups, bool more);

template <class T>
void multiply_keys(float (&sum)[8][4], const unsigned (&q)[4], unsigned long long k, bool more) {
    multiply_wide("multiply_keys", {ELEMENTS<T>, q, 0, k, false}, sum, 8, more);
}

template <class T>
void multiply_shared(float (&sum)[8][4], unsigned long long q, unsigned long long k, bool more) {
    multiply_wide("multiply_shared", {ELEMENTS<T>, nullptr, q, k, false}, sum, 8, more);
}

template <class T, unsigned N>
void multiply_codes(float (&sum)[N / 8][4], const unsigned (&w)[4], unsigned long long inputs, bool more) {
    multiply_wide("multiply_codes", {ELEMENTS<T>, w, 0, inputs, false}, sum, N / 8, more);
}

template <class T, unsigned N>
void multiply_values(float (&sum)[N][4], const unsigned (&p)[4], unsigned long long v) {
    multiply_wide("multiply_values", {ELEMENTS<T>, p, 0, v, true}, sum, N, true);
}

template <class T, unsigned N>
void multiply_values_shared(float (&sum)[N][4], unsigned long long p, unsigned long long v) {
    multiply_wide("multiply_values_shared", {ELEMENTS<T>, nullptr, p, v, true}, sum, N, true);
}

// sum [16 x N] += weights [16 x 16] inputs [N x 16]^T of this warp, all in panels.
template <class T, unsigned N>
void multiply_panels(float (&sum)[N / 8][4], unsigned long long weights, unsigned long long inputs) {
    multiply_wide("multiply_panels", {ELEMENTS<T>, nullptr, weights, inputs, false}, sum, N / 8, true);
}

// sum [16 x N] (+)= w [16 x 32] x [N x 32]^T of this warp, all in panels of e4m3.
template <unsigned N>
void multiply_fp8(float (&sum)[N / 8][4], unsigned long long w, unsigned long long x, bool more) {
    multiply_wide("multiply_fp8", {Elements::E4M3, nullptr, w, x, false}, sum, N / 8, more);
}

void products_issued();
void wait_products_but(unsigned newer);

template <int NEWER>
void wait_products() {
    wait_products_but(NEWER);
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
        memcpy(&value, from, sizeof value);
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
void look(const void* from);

inline unsigned load_acquire(const unsigned* from) {
    look(from);
    return *from;
}

// What passes between GPUs.

inline void store_release(unsigned* to, unsigned value) {
    *to = value;
}

inline void fence_for_all() {}

void store_line(unsigned long long* to, unsigned long long low, unsigned long long high);
void load_line(const unsigned long long* from, unsigned long long& low, unsigned long long& high);

template <class P>
void store_lines(P* to, unsigned long long low, unsigned long long high) {
    store_line(to->words, low, high);
}

template <class P>
void load_lines(const P* from, unsigned long long& low, unsigned long long& high) {
    load_line(from->words, low, high);
}

// A launch.

struct Launch {
    unsigned grid, threads;
    unsigned first, row;  // the place of the first block in a grid of two dimensions, of which others are in its row
    size_t dynamic_bytes;
    unsigned beside;  // kernels that run beside each other, as on several GPUs, each with `grid` blocks
    unsigned copies_late, products_late;
    unsigned seed;  // decides in which order late work is done
    unsigned held_warp;  // of each block: goes on for some turns whenever no other can; a number of no warp: none
};

// Runs a kernel, `beside` times with the arguments of each; what went wrong, or null.
const char* run(const Launch& launch, void (*kernel)(void** args), void*** args);

template <unsigned... I>
struct Places {};

template <unsigned N, unsigned... I>
struct PlacesOf : PlacesOf<N - 1, N - 1, I...> {};

template <unsigned... I>
struct PlacesOf<0, I...> {
    using All = Places<I...>;
};

template <class... A, unsigned... I>
void call(void (*kernel)(A...), void** args, Places<I...>) {
    kernel(*static_cast<A*>(args[I])...);
}

template <class... A>
void call(void (*kernel)(A...), void** args) {
    call(kernel, args, typename PlacesOf<sizeof...(A)>::All());
}

}  // namespace emulated
