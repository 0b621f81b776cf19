//! The clock of a run: a simulated device's clock, which advances when the device gets work, or this machine's wall
//! clock.

use std::ops::Range;
use std::time::{Duration, Instant};

use offshoot_backend::Backend;
use offshoot_sim::Clock;

/// Begin and end of a step, since the start of the clock.
pub type Span = Range<Duration>;

/// The clock for arrivals of requests and records of steps.
pub trait Timekeeper {
    /// Starts the clock; called once the requests that arrive at time 0 are submitted.
    fn start(&mut self);
    /// Time since the start; zero before.
    fn now(&self) -> Duration;
    /// Sleeps until `then`, unless it is past.
    fn wait_until(&mut self, then: Duration);
    /// Records the end of the engine's turn that began at `began`. If the turn `submitted` a step, a span is added to
    /// `spans`; its end is final once the next turn is over.
    fn note_turn(&mut self, began: Duration, submitted: bool, spans: &mut Vec<Span>);
}

/// The clock of a simulated device.
impl Timekeeper for Clock {
    fn start(&mut self) {}

    fn now(&self) -> Duration {
        Clock::now(self)
    }

    fn wait_until(&mut self, then: Duration) {
        Clock::wait_until(self, then);
    }

    fn note_turn(&mut self, _: Duration, submitted: bool, spans: &mut Vec<Span>) {
        let step = self.last_step().filter(|_| submitted);
        spans.extend(step.map(|step| step.begin..step.end));
    }
}

/// The wall clock, for an engine with run-ahead: a turn submits a step, then collects the previous one.
#[derive(Debug)]
pub struct WallClock {
    began: Option<Instant>,
    /// Whether a step is computed asynchronously, after the turn that submits it.
    apart: bool,
    in_flight: bool,
}

impl WallClock {
    /// A clock for engines on backend `B`.
    pub fn beside<B: Backend>() -> Self {
        Self { began: None, apart: B::IS_ASYNC, in_flight: false }
    }
}

impl Timekeeper for WallClock {
    fn start(&mut self) {
        self.began = Some(Instant::now());
    }

    fn now(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |began| began.elapsed())
    }

    fn wait_until(&mut self, then: Duration) {
        std::thread::sleep(then.saturating_sub(self.now()));
    }

    fn note_turn(&mut self, began: Duration, submitted: bool, spans: &mut Vec<Span>) {
        let now = self.now();
        let mut begin = began;
        if std::mem::take(&mut self.in_flight) {
            // The device started the next step as soon as that one was done.
            let before = spans.last_mut().expect("a step in flight was submitted");
            before.end = now;
            begin = now;
        }
        if submitted {
            spans.push(begin..now);
            self.in_flight = self.apart;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(apart: bool) -> WallClock {
        WallClock { began: Some(Instant::now()), apart, in_flight: false }
    }

    #[test]
    fn a_step_that_runs_ahead_ends_with_the_turn_that_collects_it() {
        let (mut clock, mut spans) = (clock(true), Vec::new());
        for submitted in [true, true, false, true, false] {
            let began = clock.now();
            std::thread::sleep(Duration::from_millis(2));
            clock.note_turn(began, submitted, &mut spans);
        }
        let [first, second, third] = &spans[..] else { panic!("{spans:?}") };
        assert!(first.end == second.start && second.end < third.start, "{spans:?}");
        assert!(spans.iter().all(|span| span.start < span.end), "{spans:?}");
    }

    #[test]
    fn a_step_that_the_host_computes_lasts_its_own_turn() {
        let (mut clock, mut spans) = (clock(false), Vec::new());
        for submitted in [true, true, false] {
            let began = clock.now();
            std::thread::sleep(Duration::from_millis(2));
            clock.note_turn(began, submitted, &mut spans);
        }
        let [first, second] = &spans[..] else { panic!("{spans:?}") };
        assert!(first.end <= second.start && first.start < first.end && second.start < second.end, "{spans:?}");
    }
}
