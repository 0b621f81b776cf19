// Keeps the experts of each row in the row's slot of a page.
//
// Shapes: kept [page][page_bytes], PAGE_TOKENS slots of `slot_bytes` each; expert_of u16 [R, chosen]; slots u32 [R],
// the words of `own_slot`: NO_SLOT for a padded row, which is skipped as those of other members than `member` of
// `members` are. The ids of this layer begin at byte `first` of a slot, `id_bytes` (1 or 2) each.
// Grid: one thread per choice.
// Limit: latency.
// Definition: `Backend::keep_routes`; on the CPU, `keep_routes` of crates/cpu/src/kv.rs.
#include "kv_page.cuh"

extern "C" __global__ void route_keep(unsigned char* __restrict__ kept, const unsigned short* __restrict__ expert_of,
                                      const unsigned* __restrict__ slots, unsigned choices, unsigned chosen,
                                      unsigned first, unsigned id_bytes, unsigned slot_bytes, unsigned page_bytes,
                                      unsigned member, unsigned members) {
    const unsigned choice = blockIdx.x * blockDim.x + threadIdx.x;
    if (choice >= choices) {
        return;
    }
    const unsigned slot = own_slot(slots[choice / chosen], member, members);
    if (slot == NO_SLOT) {
        return;
    }
    const unsigned in_page = slot % PAGE_TOKENS * slot_bytes + first + choice % chosen * id_bytes;
    unsigned char* id = kept + static_cast<unsigned long long>(slot / PAGE_TOKENS) * page_bytes + in_page;
    id[0] = expert_of[choice] & 0xff;
    if (id_bytes == 2) {
        id[1] = expert_of[choice] >> 8;
    }
}
