//! A clock that goes slower on a loaded machine: where more tasks are ready to run than there are cores, a second
//! counts by the share of it that a task could have had. Limits of wall-clock time are measured by it, so that they end
//! what hangs and not what waits for a processor.

use std::fs;
use std::sync::OnceLock;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// How often the load is read.
const SAMPLE: Duration = Duration::from_millis(20);

/// Time since its start, as far as this machine had a processor for another task.
#[derive(Debug)]
pub(super) struct FairClock {
    elapsed: Duration,
    seen: Instant,
    sampled: Instant,
    /// Tasks that want a core, for each core; at least 1, which is also what is assumed until the first look.
    pressure: f64,
}

impl FairClock {
    pub fn start() -> FairClock {
        let now = Instant::now();
        FairClock { elapsed: Duration::ZERO, seen: now, sampled: now, pressure: 1.0 }
    }

    /// Call it at least every [`FairClock::STEP`]: the load is taken as even since the last call. If this process was
    /// stopped for longer, only two steps count.
    pub fn elapsed(&mut self) -> Duration {
        self.elapsed_at(Instant::now())
    }

    fn elapsed_at(&mut self, now: Instant) -> Duration {
        self.elapsed += (now - self.seen).min(2 * FairClock::STEP).div_f64(self.pressure);
        self.seen = now;
        if now - self.sampled >= SAMPLE {
            self.sampled = now;
            self.pressure = pressure();
        }
        self.elapsed
    }

    pub const STEP: Duration = Duration::from_millis(100);

    /// Lets the time since the last call of [`FairClock::elapsed`] not count.
    pub fn resume(&mut self) {
        self.resume_at(Instant::now());
    }

    fn resume_at(&mut self, now: Instant) {
        self.seen = now;
    }
}

/// A limit on a [`FairClock`].
#[derive(Debug)]
pub(super) struct Deadline {
    clock: FairClock,
    limit: Duration,
}

impl Deadline {
    pub fn after(limit: Duration) -> Deadline {
        Deadline { clock: FairClock::start(), limit }
    }

    /// How long to wait before asking again; `None` if the time is over.
    pub fn wait(&mut self) -> Option<Duration> {
        let left = self.limit.saturating_sub(self.clock.elapsed());
        (!left.is_zero()).then(|| left.min(FairClock::STEP))
    }

    /// Lets the time since the last [`Deadline::wait`] not count.
    pub fn resume(&mut self) {
        self.clock.resume();
    }
}

fn pressure() -> f64 {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = *CORES.get_or_init(|| available_parallelism().map_or(1, usize::from));
    fs::read_to_string("/proc/loadavg").ok().and_then(|text| pressure_in(&text, cores)).unwrap_or(1.0)
}

/// The pressure in a text like `0.2 0.3 0.2 3/141 9876`: 3 of 141 tasks are ready to run.
fn pressure_in(loadavg: &str, cores: usize) -> Option<f64> {
    let (ready, _) = loadavg.split_whitespace().nth(3)?.split_once('/')?;
    // One of them is the task that asks.
    let others = ready.parse::<u32>().ok()?.saturating_sub(1);
    Some((f64::from(others) / cores as f64).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_machine_slows_the_clock() {
        let text = |ready: u32| format!("0.20 0.18 0.12 {ready}/141 9876\n");
        assert_eq!(pressure_in(&text(1), 2), Some(1.0));
        assert_eq!(pressure_in(&text(3), 2), Some(1.0), "a core for each");
        assert_eq!(pressure_in(&text(21), 2), Some(10.0));
        assert_eq!(pressure_in("no numbers", 2), None);
        let start = Instant::now();
        let loaded = || FairClock { elapsed: Duration::ZERO, seen: start, sampled: start, pressure: 10.0 };
        assert_eq!(loaded().elapsed_at(start + FairClock::STEP), FairClock::STEP / 10);
        let later = start + Duration::from_secs(10);
        assert_eq!(loaded().elapsed_at(later), FairClock::STEP / 5, "this process did not run");
        let mut others = loaded();
        others.resume_at(later);
        assert_eq!(others.elapsed_at(later + FairClock::STEP), FairClock::STEP / 10);
    }

    #[test]
    fn a_deadline_passes_once_its_time_is_over() {
        assert_eq!(Deadline::after(Duration::ZERO).wait(), None);
        let mut long = Deadline::after(Duration::from_secs(3600));
        assert_eq!(long.wait(), Some(FairClock::STEP));
        long.clock.elapsed = Duration::from_secs(3600);
        assert_eq!(long.wait(), None);
    }
}
