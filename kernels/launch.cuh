// How a kernel follows the one before it in the stream. On Hopper it may be launched while that still runs
// (`Device::launch` asks for it), so that the time of a launch is hidden; before it touches memory it waits.
#pragma once

// The first statement of every kernel, for all of its threads: waits until the kernels before it have ended and their
// results can be read, then lets the next one be launched, whose threads wait in turn. No thread may return before it:
// a kernel that ended without waiting would let the next one overtake those before.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}
