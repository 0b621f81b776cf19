//! How much memory this program can still take.

/// Bytes: of the machine, and of its control group (a container) where that has less.
pub fn free_bytes() -> usize {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let group = system.cgroup_limits().map_or(u64::MAX, |limits| limits.free_memory);
    usize::try_from(system.available_memory().min(group)).unwrap_or(usize::MAX)
}
