// Moves registers between the warpgroups of a block on Hopper: COUNT per thread, a multiple of 8. Called by all threads
// of a warpgroup.
#pragma once

template <unsigned COUNT>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <unsigned COUNT>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
