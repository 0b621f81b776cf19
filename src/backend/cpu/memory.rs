//! Host memory: how much is free, and the cache line that buffers are made of.

use bytemuck::{Pod, Zeroable};

/// 64 bytes, aligned: buffers of lines let no vector load cross a cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct CacheLine(pub [f32; 16]);

/// Bytes still available to this process: of the machine, or of its control group (container) if that has less.
pub fn free_bytes() -> usize {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let group = system.cgroup_limits().map_or(u64::MAX, |limits| limits.free_memory);
    usize::try_from(system.available_memory().min(group)).unwrap_or(usize::MAX)
}
