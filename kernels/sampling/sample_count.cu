// Updates the token counts of requests with penalties by one step. Adds the token that was unseen to its list entry, or
// appends it; then marks the token that the request itself sampled in the previous step as unseen, since request r of
// an advanced step continues request r. Launched before the kernels of `sample` when a step is advanced, not when it is
// loaded.
//
//   seen(r) += newest_of[r].token if unseen(r),  unseen(r) = r
//
// Shapes: newest_of [requests], as `sample_edit` left it in the previous step; all_counted [requests, MOST_COUNTED].
// Grid: one block of one warp per request.
// Limit: latency. A binary search among the tokens seen when the requests were loaded, then one pass over those counted
// since.
// Definition: `StepBatch::count_unseen` and `StepBatch::advance` of crates/backend/src/step.rs.
#include "sampling/edit.cuh"

__device__ __forceinline__ void count(Request& request, const Edits& edits, u32 token) {
    u32 low = 0;
    for (u32 high = edits.seen_count; low < high;) {
        u32 middle = (low + high) / 2;
        if (edits.seens[middle].token < token) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low < edits.seen_count && edits.seens[low].token == token) {
        if (lane() == 0) {
            edits.seens[low].sampled += 1;
        }
        return;
    }
    bool found = false;
    for (u32 i = lane(); i < edits.counted_count; i += WARP) {
        if (edits.counted[i].token == token) {
            edits.counted[i].sampled += 1;
            found = true;
        }
    }
    if (!__any_sync(ALL_LANES, found) && lane() == 0) {
        edits.counted[edits.counted_count] = {token, 1, 0, 0.0f};
        request.counted = edits.counted_count + 1;
    }
}

extern "C" __global__ void __launch_bounds__(WARP)
    sample_count(Header* header, const Newest* __restrict__ newest_of, Seen* all_counted) {
    u32 index = blockIdx.x;
    Request& request = reinterpret_cast<Request*>(header + 1)[index];
    if (!has_penalties(request)) {
        return;
    }
    u32 unseen = request.unseen;
    Edits edits(header, all_counted, index);
    // All lanes must have read `unseen` before one lane overwrites it below.
    __syncwarp();
    if (unseen != NONE) {
        count(request, edits, newest_of[index].token);
    }
    if (lane() == 0) {
        request.unseen = index;
    }
}
