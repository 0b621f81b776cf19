// Merges what attention found over the positions of each member of a group, MEMBERS neighbouring ranks that divide the
// keys and values of a key head:
//   m = max m_i,  out = sum_i 2^(m_i - m) o_i / sum_i 2^(m_i - m) l_i,  over the members in their order.
// First a member combines its own partial states, a row's list in its order, with the sink, if it is given any (the
// first member alone is), as one more state without a value. Half the blocks do so for the heads of the other members,
// and write the state of each row and head into the memory of the one that owns the head; half do so for the member's
// own heads, and merge what has come. All ranks tell each other what is written, also those of other groups, since the
// next exchange uses the memory of all again.
//
// Shapes: out ELEMENT [R, heads * VALUE_DIM], of the member's heads = q_heads / MEMBERS; partial states, of q_heads
// heads, as in attention/plan.cuh, in lists of a row that may be empty (all are of padded rows, which become 0), with
// PERMUTED as the kernels for Hopper order them; sinks f32 [q_heads] or null; memory as in exchange.cuh. Of units
// (row * heads + head) first, .. first + count are merged: q_heads * VALUE_DIM / MEMBERS floats a row, and two a unit,
// go to each other member.
// Grid: the same on every rank; blocks of 512 threads, a warp for each unit. Blocks wait only for blocks of a lower
// number on other ranks.
// Limit: bandwidth, the bytes of the partial states; of few rows, the link's latency.
// Definition: `Ranked::tree_attention_of_members`; on the CPU, `merge_members` of crates/cpu/src/fabric.rs.
//
// Defines: ELEMENT, VALUE_DIM, RANKS (2, 4 or 8), MEMBERS (2, 4 or 8, at most RANKS), PERMUTED (0 or 1).
#include "attention/states.cuh"
#include "ranks/exchange.cuh"

// A member's state of a unit in the memory of an exchange of `count` units: o [count][VALUE_DIM], then Extent [count].
struct UnitState {
    float* o;
    Extent* extent;
};

__device__ __forceinline__ UnitState unit_state(float* floats, unsigned count, unsigned unit) {
    return {floats + unit * VALUE_DIM, reinterpret_cast<Extent*>(floats + count * VALUE_DIM) + unit};
}

// One state more.
__device__ __forceinline__ void fold(State& sum, const State& part) {
    const float top = fmaxf(sum.m, part.m);
    const float before = weight(sum.m, finite_max(top)), factor = weight(part.m, finite_max(top));
    sum.m = top;
    sum.l = sum.l * before + part.l * factor;
#pragma unroll
    for (unsigned v = 0; v < VECTORS; v++) {
#pragma unroll
        for (unsigned e = 0; e < VECTOR; e++) {
            sum.o[v].x[e] = sum.o[v].x[e] * before + part.o[v].x[e] * factor;
        }
    }
}

__device__ __forceinline__ void send(const UnitState& to, const State& state) {
    if (threadIdx.x % 32 == 0) {
        *to.extent = {state.m, state.l};
    }
#pragma unroll
    for (unsigned v = 0; v < VECTORS; v++) {
        if (column(v) < VALUE_DIM) {
            *reinterpret_cast<Vector<float>*>(to.o + column(v)) = state.o[v];
        }
    }
}

__device__ __forceinline__ State receive(const UnitState& from) {
    State state = {from.extent->m, from.extent->l, {}};
#pragma unroll
    for (unsigned v = 0; v < VECTORS; v++) {
        state.o[v] = load_state(from.o + min(column(v), VALUE_DIM - VECTOR));
    }
    return state;
}

extern "C" __global__ void __launch_bounds__(512, 1)
    merge_members(ELEMENT* out, unsigned* words, float* partials, const float* sinks, unsigned q_heads,
                  unsigned long long first, unsigned count, unsigned chunk, const RankMemory* ranks, unsigned* last,
                  const unsigned* aborted, unsigned rank, unsigned most_lines, unsigned most_floats) {
    if (count == 0) {
        return;
    }
    // All tiles are done: reset the tickets for the next layer.
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        words[WIDE_TICKET] = 0;
        words[NARROW_TICKET] = 0;
    }
    const Exchange at = {ranks, last, aborted, rank, most_lines, most_floats};
    const unsigned number = number_of(at), chunks = (count + chunk - 1) / chunk;
    const unsigned blocks = gridDim.x / 2, block = blockIdx.x % blocks, warp = threadIdx.x / 32,
                   warps = blockDim.x / 32;
    const unsigned member = rank % MEMBERS, group = rank - member, heads = q_heads / MEMBERS;
    const Partials parts = partials_at(partials, words, q_heads, VALUE_DIM);
    // This member's state of a unit of `owner`.
    auto own_state = [&](unsigned unit, unsigned owner) {
        const unsigned row = (first + unit) / heads, head = owner * heads + (first + unit) % heads;
        const unsigned* list = words + words[MERGE_AT] + row;
        State sum = combine(parts, words + words[STATES_AT], list[0], list[1], q_heads, head);
        if (sinks) {
            fold(sum, {sink_of(sinks, head), 1.0f, {}});
        }
        return sum;
    };
    for (unsigned c = block; c < chunks; c += blocks) {
        const unsigned begin = c * chunk, end = min(begin + chunk, count);
        if (blockIdx.x < blocks) {
            for (unsigned i = begin * (MEMBERS - 1) + warp; i < end * (MEMBERS - 1); i += warps) {
                const unsigned unit = i / (MEMBERS - 1), owner = (member + 1 + i % (MEMBERS - 1)) % MEMBERS;
                send(unit_state(floats_of(at, number, rank, group + owner), count, unit), own_state(unit, owner));
            }
            tell(at, number, c);
        } else {
            hear(at, number, c);
            for (unsigned unit = begin + warp; unit < end; unit += warps) {
                State sum = {NO_SCORE, 0.0f, {}};
#pragma unroll 1
                for (unsigned from = 0; from < MEMBERS; from++) {
                    fold(sum, from == member
                                  ? own_state(unit, member)
                                  : receive(unit_state(floats_of(at, number, group + from, rank), count, unit)));
                }
                const float factor = normaliser(sum.l);
                ELEMENT* to = out + (first + unit) * VALUE_DIM;
#pragma unroll
                for (unsigned v = 0; v < VECTORS; v++) {
#pragma unroll
                    for (unsigned e = 0; e < VECTOR; e++) {
                        const unsigned place = column(v) + e;
                        if (place < VALUE_DIM) {
                            to[PERMUTED ? state_column(place) : place] = from_f32<ELEMENT>(sum.o[v].x[e] * factor);
                        }
                    }
                }
            }
        }
    }
    end_exchange(at, number);
}
