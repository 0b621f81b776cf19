//! The CPU time of a thread, which others that run beside it do not lengthen.

use std::time::Duration;

/// CPU time that this thread has taken so far. Systems other than Unix do not tell it: there it is zero.
pub fn of_thread() -> Duration {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes one timespec, which outlives the call; every kernel has this clock.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
    #[cfg(not(unix))]
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_takes_time() {
        let before = of_thread();
        let mut sum = 0_u64;
        while of_thread() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(of_thread() > before);
    }
}
