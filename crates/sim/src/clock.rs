//! Virtual time of host and device. Callers of the engine see the host's time; the device is busy until it has computed
//! all submitted steps. Times are whole nanoseconds, so that sums are exact.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A virtual clock. Clones share the same time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<Mutex<Times>>);

#[derive(Debug, Default)]
struct Times {
    now: Duration,
    /// When the device has computed all submitted steps.
    device_free: Duration,
    steps: u64,
    last: Option<StepTime>,
}

/// When the device computed a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// Counted from 1.
    pub number: u64,
    pub begin: Duration,
    pub end: Duration,
}

impl Clock {
    /// The host's time since the start.
    pub fn now(&self) -> Duration {
        self.with(|times| times.now)
    }

    /// Advances the host's time to `then`, unless it is later already.
    pub fn wait_until(&self, then: Duration) {
        self.with(|times| times.now = times.now.max(then));
    }

    /// The step submitted last.
    pub fn last_step(&self) -> Option<StepTime> {
        self.with(|times| times.last)
    }

    /// The host spends `host_ns` to prepare a step; the device then computes it in `device_ns`, as soon as it is free.
    pub(super) fn submit(&self, host_ns: f64, device_ns: f64) -> StepTime {
        self.with(|times| {
            times.now += whole(host_ns);
            times.steps += 1;
            let begin = times.now.max(times.device_free);
            let step = StepTime { number: times.steps, begin, end: begin + whole(device_ns) };
            times.device_free = step.end;
            times.last = Some(step);
            step
        })
    }

    /// The device goes on with the step that was submitted last for `device_ns`, as soon as it is free. Returns when it
    /// has computed that step. Panics before the first step.
    pub(super) fn go_on(&self, device_ns: f64) -> StepTime {
        self.with(|times| {
            times.device_free = times.now.max(times.device_free) + whole(device_ns);
            let step = times.last.as_mut().expect("a step is submitted before the device goes on with it");
            step.end = times.device_free;
            *step
        })
    }

    /// The host waits for the device, and then for a copy that takes `ns`.
    pub(super) fn transfer(&self, ns: f64) {
        self.with(|times| {
            times.now = times.now.max(times.device_free) + whole(ns);
            times.device_free = times.now;
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut Times) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn whole(ns: f64) -> Duration {
    Duration::from_nanos(ns.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ns(n: u64) -> Duration {
        Duration::from_nanos(n)
    }

    #[test]
    fn the_host_prepares_a_step_while_the_device_computes_the_one_before() {
        let clock = Clock::default();
        let first = clock.submit(10.0, 100.0);
        let second = clock.submit(10.0, 100.0);
        assert_eq!((first.begin, first.end), (ns(10), ns(110)));
        assert_eq!((second.begin, second.end), (ns(110), ns(210)));
        assert_eq!(clock.now(), ns(20), "the host has not waited for them");
        clock.wait_until(second.end);
        clock.wait_until(first.end);
        assert_eq!(clock.now(), ns(210), "time never goes back");
        clock.transfer(5.0);
        let third = clock.submit(0.0, 1.0);
        assert_eq!((third.begin, third.end), (ns(215), ns(216)));
        clock.wait_until(ns(220));
        assert_eq!(clock.go_on(3.0), StepTime { end: ns(223), ..third }, "the device has waited for the host");
        assert_eq!(clock.last_step().map(|step| (step.number, step.end)), Some((3, ns(223))));
    }
}
