// A word that goes from rank 0 to rank 1 and back, `turns` times: the least time in which two GPUs can answer each
// other, beside which exchanges are measured.
//
// Grid: one thread on each of ranks 0 and 1; memory as in exchange.cuh. Words begin at `begin`, which grows from call
// to call by `turns`.
// Limit: the link's latency.
// Definition: nothing is computed; `bench allreduce` prints its time.
//
// Defines: RANKS (2, 4 or 8).
#include "ranks/exchange.cuh"

extern "C" __global__ void round_trip(unsigned begin, unsigned turns, const RankMemory* ranks, unsigned* last,
                                      const unsigned* aborted, unsigned rank, unsigned most_lines,
                                      unsigned most_floats) {
    const Exchange at = {ranks, last, aborted, rank, most_lines, most_floats};
    for (unsigned turn = 1; turn <= turns; turn++) {
        if (rank == 0) {
            store_release(ranks[1].bell, begin + turn);
        }
        wait_for_number(at, ranks[rank].bell, begin + turn);
        if (rank == 1) {
            store_release(ranks[0].bell, begin + turn);
        }
    }
}
