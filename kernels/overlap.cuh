// A kernel that begins before the one in front of it in the stream has ended (programmatic dependent launch). GPUs
// before Hopper have no such thing: there it begins behind it.
#pragma once

// Lets the next kernel's blocks begin where this one's leave room.
__device__ __forceinline__ void begin_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Blocks until all kernels in front have ended and what they wrote is visible.
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
