// A kernel that begins before the one in front of it in the stream has ended (programmatic dependent launch, Hopper).
#pragma once

// Lets the next kernel's blocks begin where this one's leave room.
__device__ __forceinline__ void begin_next_kernel() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Blocks until all kernels in front have ended and what they wrote is visible.
__device__ __forceinline__ void wait_for_kernels_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
