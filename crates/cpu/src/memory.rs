//! Host memory: how much is free, the cache line that buffers are made of, and prefetching one into a cache.

use std::fs;

use bytemuck::{Pod, Zeroable};

/// 64 bytes, aligned: buffers of lines let no vector load cross a cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct CacheLine(pub [f32; 16]);

/// Bytes still available to this process: of the machine, or of its control group (container) if that has less. Systems
/// other than Linux tell neither: there it is all of the machine's memory.
pub fn free_bytes() -> usize {
    /// What a control group uses and what it may use, by the second and the first version of control groups.
    const GROUPS: [[&str; 2]; 2] = [
        ["/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max"],
        ["/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"],
    ];
    let text = |path: &str| fs::read_to_string(path).ok();
    // A group without a limit has the word `max` there.
    let number = |path: &str| text(path)?.trim().parse::<usize>().ok();
    let all = physical_bytes();
    let group = GROUPS.iter().find_map(|[used, most]| {
        let used = number(used)?;
        Some(number(most).unwrap_or(all).min(all).saturating_sub(used))
    });
    let machine = text("/proc/meminfo").and_then(|facts| available(&facts));
    machine.unwrap_or(all).min(group.unwrap_or(all))
}

/// The bytes that `/proc/meminfo` says are available; it counts in KiB.
fn available(facts: &str) -> Option<usize> {
    let number = facts.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    number.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

/// Bytes of the machine's memory.
#[cfg(unix)]
fn physical_bytes() -> usize {
    // SAFETY: each call takes one number, touches no memory of this process and returns one number.
    let [pages, page] = [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    usize::try_from(pages).unwrap_or(usize::MAX).saturating_mul(usize::try_from(page).unwrap_or(1))
}

/// The least that a machine with a model in memory is taken to have.
#[cfg(not(unix))]
fn physical_bytes() -> usize {
    4 << 30
}

/// A cache of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLevel {
    First,
    Second,
}

/// Brings the line at `address` into a cache. The address need not be valid.
#[inline(always)]
pub fn prefetch_line(address: *const u8, into: CacheLevel) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match into {
            CacheLevel::First => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
            CacheLevel::Second => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, into);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_kib() {
        assert_eq!(available("MemTotal:  16 kB\nMemFree:  1 kB\nMemAvailable:    8 kB\n"), Some(8 << 10));
        assert_eq!(available("MemTotal:  16 kB\nMemFree:  1 kB\n"), None);
    }

    #[test]
    fn some_of_the_machines_memory_is_free() {
        let free = free_bytes();
        assert!((1..physical_bytes()).contains(&free), "{free} of {}", physical_bytes());
    }
}
