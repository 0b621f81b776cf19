//! When streams write: chunks of all streams at common moments, the rarer the more streams there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Moments at which streams write their chunks, all at once.
pub struct Ticks {
    first: Instant,
    interval: Duration,
    /// Added to the interval for each stream that is open.
    interval_per_stream: Duration,
    /// Most streams that have something to write: the branches that run at once.
    most: usize,
    pub open: AtomicUsize,
}

/// What a chunk costs a core: the server's and the system's part, and that of a client on the same machine.
const CHUNK_COST: Duration = Duration::from_micros(40);
/// The share of the cores that chunks may take from the model's threads: one in so many.
const CHUNK_SHARE: u32 = 50;

impl Ticks {
    /// `interval`: the shortest. `cores`: those that compute the model and write chunks; `None`: a device computes it.
    pub fn new(interval: Duration, cores: Option<u32>, most: usize) -> Ticks {
        let interval_per_stream = cores.map_or(Duration::ZERO, |cores| CHUNK_COST * CHUNK_SHARE / cores);
        Ticks { first: Instant::now(), interval, interval_per_stream, most, open: AtomicUsize::new(0) }
    }

    /// The first one after `moment`; the moment itself if they follow each other without a pause.
    pub fn after(&self, moment: Instant) -> Instant {
        if self.interval.is_zero() {
            return moment;
        }
        // A multiple of the shortest interval, so that those of few streams and of many coincide.
        let streams = u32::try_from(self.open.load(Ordering::Relaxed).min(self.most)).unwrap_or(u32::MAX);
        let wanted = self.interval_per_stream.saturating_mul(streams).as_nanos();
        let interval = self.interval.as_nanos() * wanted.div_ceil(self.interval.as_nanos()).max(1);
        let since_tick = moment.saturating_duration_since(self.first).as_nanos() % interval;
        moment + Duration::from_nanos(u64::try_from(interval - since_tick).expect("intervals are below a century"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn streams_write_at_common_ticks_that_are_rarer_the_more_there_are() {
        let ticks = Ticks::new(30 * MS, Some(2), 100);
        let at = |after: Duration| ticks.after(ticks.first + after) - ticks.first;
        assert_eq!([0, 1, 29, 30, 100].map(|ms| at(ms * MS)), [30, 30, 30, 60, 120].map(|ms| ms * MS));
        // 60 ms are wanted for 60 streams, and 100 for any number from 100 on: so 120.
        ticks.open.store(60, Ordering::Relaxed);
        assert_eq!([0, 59, 61].map(|ms| at(ms * MS)), [60, 60, 120].map(|ms| ms * MS));
        ticks.open.store(10_000, Ordering::Relaxed);
        assert_eq!([0, 119, 121].map(|ms| at(ms * MS)), [120, 120, 240].map(|ms| ms * MS));
        let beside_a_device = Ticks::new(30 * MS, None, 100);
        beside_a_device.open.store(100, Ordering::Relaxed);
        assert_eq!(beside_a_device.after(beside_a_device.first), beside_a_device.first + 30 * MS);
        let at_once = Ticks::new(Duration::ZERO, Some(2), 100);
        assert_eq!(at_once.after(at_once.first), at_once.first);
    }
}
