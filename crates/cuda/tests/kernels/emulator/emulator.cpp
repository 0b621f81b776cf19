// Runs CUDA kernels on the CPU, thread by thread, to find out whether they compute what they should: where no GPU is at
// hand, and in schedules that a GPU would show once in a million. Every CUDA thread is a fiber; what warps, warpgroups
// and blocks do together happens when all of them have come. Asynchronous copies and products are done at once, or as
// late as the kernel's own waits allow, so that a missing wait is seen. It knows the instructions that the kernels of
// `kernels/` wrap in functions, and nothing of time. `emulator.hpp` is what kernels see of it. Threads of the operating
// system launch kernels beside each other: each has a machine of its own.
//
// What it cannot see: missing fences between memory proxies, orders of memory that a GPU relaxes, and bank conflicts.
#include "emulator.hpp"

#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

namespace emulated {

namespace {

constexpr size_t STACK_BYTES = 256 << 10;

struct Fiber;

// Something that fibers wait for, in the order in which they came.
struct Queue {
    Fiber* first = nullptr;
    Fiber* last = nullptr;
    size_t size = 0;
};

// A copy of 4 or 16 bytes, or, where `arrives` is set, an arrival at `barrier` once the copies before it are done.
struct Copy {
    unsigned to, bytes;
    const void* from;
    bool real;
    bool arrives;
    unsigned barrier;
};

// What the copy engine was told to bring, in any order; a barrier's phase waits for its bytes.
struct Bulk {
    unsigned to;
    unsigned bytes;
    unsigned barrier;
    const void* from;   // of neighbouring bytes; null: a box
    uint64_t words[8];  // of the box's tensor map
    unsigned x, y;
};

struct WideLane {
    float (*sum)[4];
    const unsigned* left;
};

// A product that was issued and may not be computed yet. Lanes are known by where their registers lie.
struct Product {
    Operands operands;
    WideLane lanes[WARP];
    const unsigned char* shared;
    unsigned first_row;
    unsigned groups;
    bool more;
};

struct Warp {
    void* args[WARP];
    unsigned arrived = 0;
    const char* what = nullptr;
    Queue waiting;
    std::deque<std::vector<Product>> issued;  // the newest group is not committed
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

struct Named {
    const char* name;
    unsigned place;
};

struct Block {
    unsigned launch;  // of those that run beside each other
    unsigned index, threads, running;
    std::vector<Warp> warps;
    Meeting meetings[16];
    std::map<unsigned, Phases> phases;  // by address
    std::vector<Bulk> bulks;            // that are not done
    unsigned char* shared;
    size_t used;
    std::vector<Named> named;  // __shared__ variables
};

struct Fiber {
    Thread seen;  // first: what kernels see is the fiber itself
    Block* block;
    unsigned char* stack;
    Fiber* behind;  // in the queue in which it waits
    jmp_buf at;
    bool ended;
    std::deque<Copy> copies;
    std::deque<size_t> groups;  // copies in each committed group that is not done, oldest first
    size_t ungrouped;
    const char* waits;
    const void* looked;  // at last, where others write
};

// The fibers that can go on, in the order in which they do.
struct Ready {
    std::vector<Fiber*> ring;  // a power of two, more than there are fibers
    size_t first = 0, size = 0;

    Fiber*& at(size_t place) {
        return ring[(first + place) & (ring.size() - 1)];
    }

    void push(Fiber* fiber) {
        at(size++) = fiber;
    }

    Fiber* pop() {
        Fiber* fiber = at(0);
        first++;
        size--;
        return fiber;
    }
};

// The most turns for which held warps go on like others once they may: a launch would take long if they never did.
constexpr size_t MOST_FREE_TURNS = 2048;

// What one thread of the operating system runs kernels with.
struct Machine {
    Launch launch;
    void (*kernel)(void** args);
    void*** args;
    jmp_buf scheduler;
    Ready ready;
    Queue held;        // could go on, but are of held warps
    size_t free_turn;  // up to this turn held warps go on like others
    Queue polling;     // look again and again at what others write
    std::vector<std::unique_ptr<Fiber>> fibers;
    size_t fibers_of_launch;
    std::vector<std::unique_ptr<Block>> blocks;
    std::map<unsigned, Meeting> clusters;  // by their first block
    size_t looks;                          // at something else than before
    size_t turns, polled, looked;          // turns: how often fibers went on
    std::mt19937 dice;
    std::string fault;
    std::vector<unsigned char*> shared;  // of blocks, kept

    ~Machine() {
        for (auto& fiber : fibers) {
            munmap(fiber->stack, STACK_BYTES);
        }
        for (unsigned char* memory : shared) {
            std::free(memory);
        }
    }
};

__thread Machine* machine = nullptr;

Fiber& self() {
    return *reinterpret_cast<Fiber*>(current);
}

Warp& warp() {
    return self().block->warps[current->number / WARP];
}

void join(Queue& queue, Fiber* fiber) {
    fiber->behind = nullptr;
    (queue.last ? queue.last->behind : queue.first) = fiber;
    queue.last = fiber;
    queue.size++;
}

void let_go_on(Fiber* fiber) {
    Machine& all = *machine;
    if (fiber->seen.number / WARP == all.launch.held_warp && all.turns >= all.free_turn) {
        join(all.held, fiber);
    } else {
        all.ready.push(fiber);
    }
}

void wake(Queue& queue) {
    Fiber* fiber = queue.first;
    queue = Queue();
    while (fiber != nullptr) {
        Fiber* next = fiber->behind;
        let_go_on(fiber);
        fiber = next;
    }
}

bool do_some_copies();

// Whose turn it is; null where the launch has ended, or nobody can go on.
Fiber* next_fiber() {
    Machine& all = *machine;
    while (all.fault.empty()) {
        if (all.ready.size == 0) {
            if (do_some_copies()) {
                continue;
            }
            // What nobody else will change is looked at once more, and then never.
            if (all.polling.size == 0 || (all.turns == all.polled && all.looks == all.looked)) {
                if (all.held.size == 0) {
                    break;
                }
                // Often few: a warp is held again wherever it waits for its own lanes.
                all.free_turn = all.turns + (MOST_FREE_TURNS >> all.dice() % 12);
                wake(all.held);
                continue;
            }
            all.polled = all.turns + all.polling.size;
            all.looked = all.looks;
            wake(all.polling);
            continue;
        }
        if (++all.turns % 64 == 0 && all.launch.copies_late) {
            // Somebody else comes first.
            std::swap(all.ready.at(0), all.ready.at(all.dice() % all.ready.size));
        }
        return all.ready.pop();
    }
    return nullptr;
}

// Goes on with whoever's turn it is.
[[noreturn]] void leave() {
    Fiber* next = next_fiber();
    if (next == nullptr) {
        _longjmp(machine->scheduler, 1);
    }
    current = &next->seen;
    _longjmp(next->at, 1);
}

__attribute__((noinline)) void suspend() {
    if (_setjmp(self().at) == 0) {
        leave();
    }
}

void wait(Queue& queue, const char* what) {
    self().waits = what;
    join(queue, &self());
    suspend();
}

// Lets all others run first, as far as they can go.
void pause() {
    wait(machine->polling, "pause");
}

[[noreturn]] void stop_with(const std::string& why) {
    if (machine->fault.empty()) {
        char where[96];
        std::snprintf(where, sizeof where, " (block %u, thread %u)", current->block.x, current->number);
        machine->fault = why + where;
    }
    leave();
}

// `op` is called once all lanes of the warp are here, with the arguments of each.
template <class Args, class Op>
void together(const char* what, Args& args, Op op) {
    Warp& all = warp();
    if (all.arrived > 0 && all.what != what && std::strcmp(all.what, what) != 0) {
        stop_with(std::string("lanes of a warp are at ") + all.what + " and at " + what);
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

}  // namespace

__thread Thread* current = nullptr;

void stop(const char* why) {
    stop_with(why);
}

// Shared memory.

void* shared_place(const char* name, size_t bytes) {
    Block& block = *self().block;
    for (const Named& named : block.named) {
        if (named.name == name || std::strcmp(named.name, name) == 0) {
            return block.shared + named.place;
        }
    }
    const size_t here = (block.used + 15) / 16 * 16;
    block.used = here + bytes;
    if (block.used > SHARED_BYTES) {
        stop("shared memory is too small");
    }
    block.named.push_back({name, static_cast<unsigned>(here)});
    return block.shared + here;
}

// Barriers.

namespace {

void end_phase_if_complete(Phases& phases) {
    if (phases.pending == 0 && phases.bytes == 0) {
        phases.pending = phases.expected;
        phases.parity ^= 1;
        wake(phases.waiting);
    }
}

void complete(Phases& phases, unsigned arrivals = 1) {
    // Whoever is to blame: copies arrive outside of threads too.
    if (phases.pending < arrivals && machine->fault.empty()) {
        machine->fault = "more arrivals than a phase has";
    }
    phases.pending -= arrivals;
    end_phase_if_complete(phases);
}

Phases& phases_at(Block& block, unsigned barrier) {
    auto found = block.phases.find(barrier);
    if (found == block.phases.end()) {
        stop("a barrier that nobody has initialised");
    }
    return found->second;
}

Phases& phases_at(unsigned barrier) {
    return phases_at(*self().block, barrier);
}

void meet_at(Meeting& meeting, unsigned threads, const char* what) {
    if (++meeting.arrived == threads) {
        meeting.arrived = 0;
        wake(meeting.waiting);
    } else {
        wait(meeting.waiting, what);
    }
}

unsigned cluster_begin(unsigned size) {
    return current->block.x / size * size;
}

Block& peer_of(unsigned rank, unsigned size) {
    Block& peer = *machine->blocks.at(cluster_begin(size) + rank);
    if (rank >= size || peer.running == 0) {
        stop("a peer that is not there");
    }
    return peer;
}

}  // namespace

void init_barrier(unsigned barrier, unsigned arrivals) {
    Phases& phases = self().block->phases[barrier];
    phases.expected = phases.pending = arrivals;
    phases.parity = 0;
}

void arrive(unsigned barrier, unsigned arrivals) {
    complete(phases_at(barrier), arrivals);
}

void expect_bytes(unsigned barrier, unsigned bytes) {
    phases_at(barrier).bytes += bytes;
}

void arrive_expecting(unsigned barrier, unsigned bytes) {
    expect_bytes(barrier, bytes);
    complete(phases_at(barrier), WARP);
}

void wait_barrier(unsigned barrier, unsigned parity) {
    Phases& phases = phases_at(barrier);
    while (phases.parity == parity) {
        wait(phases.waiting, "wait_barrier");
    }
}

void meet(unsigned id, unsigned threads) {
    meet_at(self().block->meetings[id], threads, "meet");
}

void meet_cluster(unsigned size) {
    meet_at(machine->clusters[cluster_begin(size)], size * current->block_threads, "meet_cluster");
}

float4 load_of_peer(unsigned address, unsigned rank, unsigned size) {
    const Block& peer = peer_of(rank, size);
    if (address % 16 != 0) {
        stop("shared memory of a peer that is not aligned");
    }
    at(address);
    float4 numbers;
    std::memcpy(&numbers, peer.shared + address, sizeof numbers);
    return numbers;
}

void arrive_at_peer(unsigned barrier, unsigned rank, unsigned size) {
    complete(phases_at(peer_of(rank, size), barrier));
}

// Copies.

namespace {

void do_copy(Block& block, const Copy& copy) {
    if (copy.arrives) {
        complete(block.phases.at(copy.barrier));
    } else if (copy.real) {
        std::memcpy(block.shared + copy.to, copy.from, copy.bytes);
    } else {
        std::memset(block.shared + copy.to, 0, copy.bytes);
    }
}

void do_oldest_copy(Fiber& fiber) {
    const Copy copy = fiber.copies.front();
    fiber.copies.pop_front();
    do_copy(*fiber.block, copy);
}

void enqueue(const Copy& copy) {
    if (machine->launch.copies_late) {
        self().copies.push_back(copy);
    } else {
        do_copy(*self().block, copy);
    }
}

void copy_box_now(const Bulk& bulk, unsigned char* shared) {
    const uint64_t* words = bulk.words;
    const uint64_t address = words[0], width = words[1], rows = words[2], apart = words[3], box = words[4];
    const uint64_t box_rows = words[5], size = words[6], swizzled = words[7], row_bytes = box * size;
    for (uint64_t row = 0; row < box_rows; row++) {
        for (uint64_t byte = 0; byte < row_bytes; byte++) {
            const uint64_t column = bulk.x + byte / size;
            const bool real = bulk.y + row < rows && column < width;
            // Boxes are swizzled by where their rows lie.
            const uint64_t place = swizzled ? (byte / 16 ^ (bulk.to / 128 + row) % 8) * 16 + byte % 16 : byte;
            const uint64_t from = address + (bulk.y + row) * apart + column * size + byte % size;
            shared[bulk.to + row * row_bytes + place] = real ? *reinterpret_cast<const unsigned char*>(from) : 0;
        }
    }
}

void do_bulk(Block& block, size_t which) {
    const Bulk bulk = block.bulks[which];
    block.bulks.erase(block.bulks.begin() + static_cast<long>(which));
    if (bulk.from != nullptr) {
        std::memcpy(block.shared + bulk.to, bulk.from, bulk.bytes);
    } else {
        copy_box_now(bulk, block.shared);
    }
    Phases& phases = block.phases.at(bulk.barrier);
    phases.bytes -= bulk.bytes;
    end_phase_if_complete(phases);
}

void enqueue_bulk(Block& block, const Bulk& bulk) {
    phases_at(block, bulk.barrier);
    block.bulks.push_back(bulk);
    if (!machine->launch.copies_late) {
        do_bulk(block, block.bulks.size() - 1);
    }
}

// Copies that nobody has waited for yet arrive sometime.
bool do_some_copies() {
    std::vector<Fiber*> have;
    for (size_t i = 0; i < machine->fibers_of_launch; i++) {
        if (!machine->fibers[i]->copies.empty()) {
            have.push_back(machine->fibers[i].get());
        }
    }
    std::vector<Block*> tell;
    for (auto& block : machine->blocks) {
        if (!block->bulks.empty()) {
            tell.push_back(block.get());
        }
    }
    if (have.empty() && tell.empty()) {
        return false;
    }
    for (unsigned i = 0; i < 64; i++) {
        const size_t which = machine->dice() % (have.size() + tell.size());
        if (which < have.size()) {
            if (!have[which]->copies.empty()) {
                do_oldest_copy(*have[which]);
            }
        } else if (Block& block = *tell[which - have.size()]; !block.bulks.empty()) {
            do_bulk(block, machine->dice() % block.bulks.size());
        }
    }
    return true;
}

}  // namespace

void copy_16(unsigned to, const void* from, bool real) {
    if (to % 16 != 0 || (real && reinterpret_cast<size_t>(from) % 16 != 0)) {
        stop("a copy of 16 bytes that is not aligned");
    }
    at(to);
    enqueue({to, 16, from, real, false, 0});
    self().ungrouped++;
}

void copy_4(unsigned to, const void* from) {
    if (to % 4 != 0 || reinterpret_cast<size_t>(from) % 4 != 0) {
        stop("a copy of 4 bytes that is not aligned");
    }
    at(to / 16 * 16);
    enqueue({to, 4, from, true, false, 0});
    self().ungrouped++;
}

void arrive_with_copies(unsigned barrier) {
    phases_at(barrier);
    enqueue({0, 0, nullptr, false, true, barrier});
    self().ungrouped++;
}

void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<size_t>(from) % 16 != 0) {
        stop("a copy of the copy engine that is not aligned");
    }
    at(to + bytes - 16);
    enqueue_bulk(*self().block, {to, bytes, barrier, from, {}, 0, 0});
}

void copy_box_of(unsigned to, const uint64_t* map, unsigned x, unsigned y, unsigned barrier, unsigned size) {
    Bulk bulk = {to, 0, barrier, nullptr, {}, x, y};
    std::memcpy(bulk.words, map, sizeof bulk.words);
    const uint64_t address = map[0], apart = map[3], box = map[4], box_rows = map[5], swizzled = map[7];
    const uint64_t row_bytes = box * map[6];
    // Swizzled boxes repeat by 8 rows of 128 bytes.
    const bool is_aligned = to % (swizzled ? 1024 : 128) == 0 && (address | apart | row_bytes) % 16 == 0;
    if (!is_aligned || (swizzled && row_bytes != 128) || box > 256 || box_rows > 256) {
        stop("a box that the copy engine does not take");
    }
    bulk.bytes = static_cast<unsigned>(row_bytes * box_rows);
    at(to + bulk.bytes - 16);
    for (unsigned rank = 0; rank < size; rank++) {
        enqueue_bulk(size == 1 ? *self().block : peer_of(rank, size), bulk);
    }
}

void copies_issued() {
    self().groups.push_back(self().ungrouped);
    self().ungrouped = 0;
}

void wait_copies_but(unsigned newer_groups) {
    Fiber& fiber = self();
    size_t newer = fiber.ungrouped;
    for (size_t group = 0; group < fiber.groups.size() && group < newer_groups; group++) {
        newer += fiber.groups[fiber.groups.size() - 1 - group];
    }
    while (fiber.copies.size() > newer) {
        do_oldest_copy(fiber);
    }
    while (fiber.groups.size() > newer_groups) {
        fiber.groups.pop_front();
    }
}

// Elements.

namespace {

float of_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if ((bits & 0x7f) == 0x7f) {
        size = NAN;
    }
    return bits & 0x80 ? -size : size;
}

// The numbers of all bits: conversions take most of the time otherwise.
struct Tables {
    float halves[1 << 16];
    float e4m3[1 << 8];

    Tables() {
        for (unsigned bits = 0; bits < 1 << 16; bits++) {
            const uint16_t narrow = static_cast<uint16_t>(bits);
            _Float16 x;
            std::memcpy(&x, &narrow, 2);
            halves[bits] = static_cast<float>(x);
        }
        for (unsigned bits = 0; bits < 1 << 8; bits++) {
            e4m3[bits] = of_e4m3(static_cast<uint8_t>(bits));
        }
    }
};

const Tables tables;

// The nearest e4m3, ties to even, at most 448 in size; 0x7f for what is no number.
unsigned char narrowed(float x) {
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

}  // namespace

const float* const HALVES = tables.halves;

uint16_t half_of(float x) {
    const _Float16 narrow = static_cast<_Float16>(x);
    uint16_t bits;
    std::memcpy(&bits, &narrow, 2);
    return bits;
}

// Four e4m3: eight numbers to each power of two, steps of 2^-9 below 2^-6, and one that is none.
void widen(unsigned (&to)[2], unsigned from) {
    auto widened = [&](unsigned at) { return static_cast<unsigned>(half_of(tables.e4m3[from >> 8 * at & 0xff])); };
    to[0] = widened(0) | widened(1) << 16;
    to[1] = widened(2) | widened(3) << 16;
}

unsigned short convert_e4m3x2(float low, float high) {
    return narrowed(low) | narrowed(high) << 8;
}

// Lanes among themselves.

namespace {

template <class V>
struct Exchange {
    V value;
    unsigned from;
    V result;
};

template <class V>
V exchange_any(V value, unsigned from) {
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

}  // namespace

unsigned exchange_word(unsigned value, unsigned from) {
    return exchange_any(value, from);
}

uint64_t exchange_words(uint64_t value, unsigned from) {
    return exchange_any(value, from);
}

unsigned any_of_lanes(unsigned value) {
    return over_lanes("any", value, [](unsigned a, unsigned b) { return a | b; });
}

unsigned min_of_lanes(unsigned value) {
    return over_lanes("reduce_min", value, [](unsigned a, unsigned b) { return a < b ? a : b; });
}

unsigned max_of_lanes(unsigned value) {
    return over_lanes("reduce_max", value, [](unsigned a, unsigned b) { return a > b ? a : b; });
}

void meet_lanes() {
    int none = 0;
    together("__syncwarp", none, [](int**) {});
}

// Matrices.

namespace {

struct Matrices {
    unsigned* to;
    unsigned from;
};

void load_any_matrices(unsigned* to, unsigned from, bool transposed) {
    Matrices mine = {to, from};
    if (from % 16 != 0) {
        stop("a matrix whose rows are not aligned");
    }
    at(from);
    together(transposed ? "load_matrices_transposed" : "load_matrices", mine, [transposed](Matrices** all) {
        for (unsigned m = 0; m < 4; m++) {
            uint16_t elements[8][8];
            for (unsigned row = 0; row < 8; row++) {
                std::memcpy(elements[row], at(all[m * 8 + row]->from), 16);
            }
            for (unsigned l = 0; l < WARP; l++) {
                const unsigned row = l / 4, column = l % 4 * 2;
                const uint16_t low = transposed ? elements[column][row] : elements[row][column];
                const unsigned high = transposed ? elements[column + 1][row] : elements[row][column + 1];
                all[l]->to[m] = low | high << 16;
            }
        }
    });
}

struct Transposed {
    unsigned to;
    const unsigned* from;
};

}  // namespace

void load_matrices(unsigned (&to)[4], unsigned from) {
    load_any_matrices(to, from, false);
}

void load_matrices_transposed(unsigned (&to)[4], unsigned from) {
    load_any_matrices(to, from, true);
}

void store_matrices(unsigned to, const unsigned (&from)[4]) {
    Transposed mine = {to, from};
    if (to % 16 != 0) {
        stop("a matrix whose rows are not aligned");
    }
    at(to);
    together("store_matrices", mine, [](Transposed** all) {
        for (unsigned l = 0; l < WARP; l++) {
            for (unsigned m = 0; m < 4; m++) {
                std::memcpy(at(all[m * 8 + l / 4]->to) + l % 4 * 4, &all[l]->from[m], 4);
            }
        }
    });
}

void store_matrices_transposed(unsigned to, const unsigned (&from)[4]) {
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
                    const uint16_t bits = part_of(all[l]->from[m], i);
                    std::memcpy(at(all[m * 8 + column + i]->to) + row * 2, &bits, 2);
                }
            }
        }
    });
}

unsigned transpose(unsigned x) {
    Exchange<unsigned> mine = {x, 0, 0};
    together("transpose", mine, [](Exchange<unsigned>** all) {
        auto element = [&](unsigned row, unsigned column) {
            return part_of(all[row * 4 + column / 2]->value, column % 2);
        };
        for (unsigned l = 0; l < WARP; l++) {
            const unsigned row = l / 4, column = l % 4 * 2;
            all[l]->result = element(column, row) | static_cast<unsigned>(element(column + 1, row)) << 16;
        }
    });
    return mine.result;
}

namespace {

// The inputs of 16 rows, or of 8 columns, one behind another: rows are computed beside each other.
constexpr unsigned MOST_INPUTS = 32;

typedef float Rows __attribute__((vector_size(64)));

struct Left {
    Rows of[MOST_INPUTS];

    float* at(unsigned input, unsigned row) { return reinterpret_cast<float*>(&of[input]) + row; }
};

struct Right {
    float of[8][MOST_INPUTS];
};

// Rows of an operand [16 x 16] in registers.
template <class T>
void take_registers(const unsigned* const* a, Left& left) {
    for (unsigned l = 0; l < WARP; l++) {
        for (unsigned register_ = 0; register_ < 4; register_++) {
            const unsigned row = l / 4 + register_ % 2 * 8, k = l % 4 * 2 + register_ / 2 * 8;
            left.of[k][row] = element<T>(part_of(a[l][register_], 0));
            left.of[k + 1][row] = element<T>(part_of(a[l][register_], 1));
        }
    }
}

// What elements are known by where they are computed with.
template <class T>
constexpr bool IS_E4M3 = false;
template <>
constexpr bool IS_E4M3<e4m3> = true;

// Adds the products of 8 columns to `sums`, or sets these to them: every sum in the order of its inputs. Four columns
// at a time fill the registers of AVX2 and hide the time of an addition.
template <unsigned INPUTS>
[[gnu::always_inline]] inline void add_products(
    const Left& left, const Right& right, float* const (&sums)[WARP], bool more) {
    constexpr unsigned BESIDE = 4;
    for (unsigned first = 0; first < 8; first += BESIDE) {
        Rows products[BESIDE] = {};
        for (unsigned k = 0; k < INPUTS; k++) {
            for (unsigned i = 0; i < BESIDE; i++) {
                products[i] += left.of[k] * right.of[first + i][k];
            }
        }
        for (unsigned i = 0; i < BESIDE; i++) {
            const unsigned column = first + i;
            for (unsigned row = 0; row < 16; row++) {
                float& to = sums[row % 8 * 4 + column / 2][row / 8 * 2 + column % 2];
                to = more ? to + products[i][row] : products[i][row];
            }
        }
    }
}

// Nearly half of all time is spent here: compiled for what the machine has, with the same results.
#define WITH_WIDE_REGISTERS __attribute__((target_clones("avx512f", "avx2", "default")))

WITH_WIDE_REGISTERS void multiply_columns_of_16(
    const Left& left, const Right& right, float* const (&sums)[WARP], bool more) {
    add_products<16>(left, right, sums, more);
}

WITH_WIDE_REGISTERS void multiply_columns_of_32(
    const Left& left, const Right& right, float* const (&sums)[WARP], bool more) {
    add_products<32>(left, right, sums, more);
}

struct Multiply {
    float* sum;
    const unsigned* a;
    unsigned b[2];
};

// 16 bytes of shared memory under 128-byte swizzle: bits 4-6 of an address by its bits 7-9.
const unsigned char* swizzled(const unsigned char* shared, unsigned address) {
    return shared + (address ^ (address >> 7 & 7) << 4);
}

unsigned begin_of(uint64_t descriptor) {
    if (descriptor >> 62 != 1) {
        stop("a descriptor of another layout than 128-byte swizzle");
    }
    return (descriptor & 0x3fff) * 16;
}

unsigned atoms_apart(uint64_t descriptor) {
    return (descriptor >> 32 & 0x3fff) * 16;
}

// The numbers of 16 bytes.
template <class T>
void take_numbers(const unsigned char* from, float* to, unsigned apart) {
    if constexpr (IS_E4M3<T>) {
        for (unsigned i = 0; i < 16; i++) {
            to[i * apart] = tables.e4m3[from[i]];
        }
    } else {
        uint16_t bits[8];
        std::memcpy(bits, from, 16);
        for (unsigned i = 0; i < 8; i++) {
            to[i * apart] = element<T>(bits[i]);
        }
    }
}

// Where row `row` of an operand whose inputs are behind each other begins.
unsigned row_at(uint64_t descriptor, unsigned row) {
    return (descriptor & 0x3fff) * 16 + row / 8 * atoms_apart(descriptor) + row % 8 * 128;
}

template <class T>
void compute_of(const Product& product) {
    const Operands& operands = product.operands;
    constexpr unsigned HALF = IS_E4M3<T> ? 16 : 8, INPUTS = 2 * HALF;
    // Codes of eight bits lie in shared memory, inputs behind each other.
    const bool in_registers = !IS_E4M3<T> && operands.left_registers != nullptr;
    const bool across = !IS_E4M3<T> && operands.across;
    Left left;
    if (in_registers) {
        const unsigned* a[WARP];
        for (unsigned l = 0; l < WARP; l++) {
            a[l] = product.lanes[l].left;
        }
        take_registers<T>(a, left);
    } else {
        for (unsigned row = 0; row < 16; row++) {
            const unsigned at = row_at(operands.left, product.first_row + row);
            take_numbers<T>(swizzled(product.shared, at), left.at(0, row), 16);
            take_numbers<T>(swizzled(product.shared, at + 16), left.at(HALF, row), 16);
        }
    }
    const uint64_t right_at = operands.right;
    const unsigned begin = begin_of(right_at), panels_apart = (right_at >> 16 & 0x3fff) * 16;
    for (unsigned group = 0; group < product.groups; group++) {
        Right right;
        if (across) {
            const unsigned column = group * 8, first = begin + column / 64 * panels_apart + column % 64 * 2;
            for (unsigned k = 0; k < INPUTS; k++) {
                const unsigned at = first + k / 8 * atoms_apart(right_at) + k % 8 * 128;
                take_numbers<T>(swizzled(product.shared, at), &right.of[0][k], MOST_INPUTS);
            }
        } else {
            for (unsigned column = 0; column < 8; column++) {
                const unsigned at = row_at(right_at, group * 8 + column);
                take_numbers<T>(swizzled(product.shared, at), right.of[column], 1);
                take_numbers<T>(swizzled(product.shared, at + 16), right.of[column] + HALF, 1);
            }
        }
        float* sums[WARP];
        for (unsigned l = 0; l < WARP; l++) {
            sums[l] = product.lanes[l].sum[group];
        }
        (INPUTS == 16 ? multiply_columns_of_16 : multiply_columns_of_32)(left, right, sums, product.more);
    }
}

void compute(const Product& product) {
    switch (product.operands.elements) {
        case Elements::F16:
            return compute_of<f16>(product);
        case Elements::BF16:
            return compute_of<bf16>(product);
        case Elements::E4M3:
            return compute_of<e4m3>(product);
    }
}

template <class T>
void multiply_of(Multiply** all) {
    const unsigned* a[WARP];
    float* sums[WARP];
    Left left;
    Right right;
    for (unsigned l = 0; l < WARP; l++) {
        a[l] = all[l]->a;
        sums[l] = all[l]->sum;
        for (unsigned i = 0; i < 4; i++) {
            right.of[l / 4][l % 4 * 2 + i / 2 * 8 + i % 2] = element<T>(part_of(all[l]->b[i / 2], i % 2));
        }
    }
    take_registers<T>(a, left);
    multiply_columns_of_16(left, right, sums, true);
}

}  // namespace

void multiply_16(Elements elements, float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    Multiply mine = {sum, a, {b0, b1}};
    together("multiply", mine, elements == Elements::BF16 ? multiply_of<bf16> : multiply_of<f16>);
}

void multiply_wide(const char* what, const Operands& operands, float (*sum)[4], unsigned groups, bool more) {
    WideLane mine = {sum, operands.left_registers};
    together(what, mine, [&](WideLane** all) {
        begin_of(operands.right);
        if (operands.left_registers == nullptr) {
            begin_of(operands.left);
        }
        Product product = {operands, {}, current->shared, current->number / WARP % 4 * 16, groups, more};
        for (unsigned l = 0; l < WARP; l++) {
            product.lanes[l] = *all[l];
        }
        if (!machine->launch.products_late) {
            return compute(product);
        }
        Warp& own = warp();
        if (own.issued.empty()) {
            own.issued.emplace_back();
        }
        own.issued.back().push_back(product);
    });
}

void products_issued() {
    int none = 0;
    together("products_issued", none, [](int**) { warp().issued.emplace_back(); });
}

void wait_products_but(unsigned newer) {
    if (machine->launch.products_late) {
        pause();
    }
    int none = 0;
    together("wait_products", none, [newer](int**) {
        Warp& all = warp();
        while (all.issued.size() > newer + 1) {
            for (const Product& product : all.issued.front()) {
                compute(product);
            }
            all.issued.pop_front();
        }
    });
}

// What others write.

void look(const void* from) {
    if (self().looked == from) {
        pause();
    } else {
        self().looked = from;
        machine->looks++;
    }
}

namespace {

struct LinesOfLane {
    unsigned long long* at;
    unsigned long long low, high;
};

constexpr unsigned LANES_OF_LINE = 8;

struct StoredLine {
    LinesOfLane mine;
    LinesOfLane line[LANES_OF_LINE];  // of the last lane of each
};

}  // namespace

// What the lanes of a warp store arrives line by line, each at once, and sometimes late: by its last lane. What they
// load was there at once.
void store_line(unsigned long long* to, unsigned long long low, unsigned long long high) {
    StoredLine stored = {{to, low, high}, {}};
    together("store_lines", stored, [](StoredLine** all) {
        for (unsigned l = 0; l < WARP; l++) {
            all[l / LANES_OF_LINE * LANES_OF_LINE + LANES_OF_LINE - 1]->line[l % LANES_OF_LINE] = all[l]->mine;
        }
    });
    if (lane() % LANES_OF_LINE != LANES_OF_LINE - 1) {
        return;
    }
    if (machine->dice() % 2 == 0) {
        pause();
    }
    for (const LinesOfLane& part : stored.line) {
        part.at[0] = part.low;
        part.at[1] = part.high;
    }
}

void load_line(const unsigned long long* from, unsigned long long& low, unsigned long long& high) {
    look(from);
    LinesOfLane mine = {const_cast<unsigned long long*>(from), 0, 0};
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

namespace {

// A fiber runs one thread of each launch.
[[noreturn]] void run_fiber() {
    while (true) {
        Fiber& fiber = self();
        machine->kernel(machine->args[fiber.block->launch]);
        if (!fiber.copies.empty()) {
            stop("a thread ends before its copies");
        }
        if (--fiber.block->running == 0 && !fiber.block->bulks.empty()) {
            stop("a block ends before what the copy engine brings");
        }
        fiber.ended = true;
        suspend();
    }
}

std::unique_ptr<Fiber> new_fiber() {
    auto fiber = std::make_unique<Fiber>();
    const int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS;
    fiber->stack = static_cast<unsigned char*>(mmap(nullptr, STACK_BYTES, access, kind, -1, 0));
    if (fiber->stack == MAP_FAILED) {
        std::perror("a stack for a thread of a kernel");
        std::abort();
    }
    return fiber;
}

// Enters `run_fiber` on the fiber's stack, and comes back when its place is known.
void begin(Fiber& fiber, size_t number) {
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack;
    // Their frames would lie in the same lines of the caches otherwise.
    context.uc_stack.ss_size = STACK_BYTES - number % 32 * 128;
    context.uc_link = nullptr;
    makecontext(
        &context, +[] {
            if (_setjmp(self().at) == 0) {
                _longjmp(machine->scheduler, 1);
            }
            run_fiber();
        },
        0);
    current = &fiber.seen;
    if (_setjmp(machine->scheduler) == 0) {
        setcontext(&context);
    }
}

unsigned char* shared_memory(size_t number) {
    while (machine->shared.size() <= number) {
        machine->shared.push_back(static_cast<unsigned char*>(std::aligned_alloc(1024, SHARED_BYTES)));
    }
    return machine->shared[number];
}

void make_blocks() {
    const Launch& launch = machine->launch;
    const size_t count = size_t{launch.grid} * launch.beside * launch.threads;
    size_t power = 64;
    while (power <= count) {
        power *= 2;
    }
    machine->ready = Ready();
    machine->ready.ring.resize(power);
    machine->held = Queue();
    machine->fibers_of_launch = 0;
    for (unsigned number = 0; number < launch.grid * launch.beside; number++) {
        auto block = std::make_unique<Block>();
        block->index = number % launch.grid;
        block->launch = number / launch.grid;
        block->threads = block->running = launch.threads;
        block->warps.resize(launch.threads / WARP);
        block->shared = shared_memory(number);
        // Nobody may rely on what lies there.
        std::memset(block->shared, 0xff, SHARED_BYTES);
        const unsigned dynamic = 16;
        block->used = dynamic + launch.dynamic_bytes;
        for (unsigned thread = 0; thread < launch.threads; thread++) {
            const size_t place = machine->fibers_of_launch++;
            if (place == machine->fibers.size()) {
                machine->fibers.push_back(new_fiber());
                begin(*machine->fibers.back(), place);
            }
            Fiber& fiber = *machine->fibers[place];
            fiber.seen = {thread, launch.threads, launch.grid, {launch.first + block->index, launch.row, 0},
                          block->shared, dynamic};
            fiber.block = block.get();
            fiber.ended = false;
            fiber.copies.clear();
            fiber.groups.clear();
            fiber.ungrouped = 0;
            fiber.waits = "";
            fiber.looked = nullptr;
            let_go_on(&fiber);
        }
        machine->blocks.push_back(std::move(block));
    }
}

std::string describe_waiting() {
    std::map<std::string, unsigned> waiting;
    for (size_t i = 0; i < machine->fibers_of_launch; i++) {
        if (!machine->fibers[i]->ended) {
            waiting[machine->fibers[i]->waits]++;
        }
    }
    std::string all = "nobody can go on:";
    for (auto& [what, count] : waiting) {
        all += " " + std::to_string(count) + " threads at " + what + ";";
    }
    return all;
}

bool have_all_ended() {
    for (size_t i = 0; i < machine->fibers_of_launch; i++) {
        if (!machine->fibers[i]->ended) {
            return false;
        }
    }
    return true;
}

}  // namespace

// Late copies and products are done when somebody waits for them, in an order that the seed decides; others at once.
const char* run(const Launch& launch, void (*kernel)(void** args), void*** args) {
    thread_local std::unique_ptr<Machine> own;
    if (own == nullptr || !own->fault.empty()) {
        // Fibers of a launch with a fault stand anywhere.
        own = std::make_unique<Machine>();
    }
    machine = own.get();
    machine->launch = launch;
    machine->kernel = kernel;
    machine->args = args;
    machine->turns = machine->free_turn = machine->looks = machine->looked = 0;
    machine->polled = ~size_t{0};
    machine->dice.seed(launch.seed);
    machine->fault.clear();
    make_blocks();
    if (_setjmp(machine->scheduler) == 0) {
        leave();
    }
    if (machine->fault.empty() && !have_all_ended()) {
        machine->fault = describe_waiting();
    }
    machine->blocks.clear();
    machine->clusters.clear();
    machine->polling = Queue();
    return machine->fault.empty() ? nullptr : machine->fault.c_str();
}

}  // namespace emulated
