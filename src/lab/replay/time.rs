//! What tells the time of a run: the clock of a simulated device, which moves when the device is given work, or this machine's.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::backend::Backend;
use crate::backend::sim::Clock;

/// From a step's begin to its end, since time began.
pub type Span = Range<Duration>;

/// The time that requests arrive by and steps are recorded by.
pub trait Timekeeper {
    /// Time begins: what arrives at once has been submitted.
    fn start(&mut self);
    /// Since then; nothing before.
    fn now(&self) -> Duration;
    /// Sleeps until `then`, unless it is past.
    fn wait_until(&mut self, then: Duration);
    /// Notes that the engine's turn that began at `began` is over; where it `submitted` a step, `spans` gets one more. The last
    /// one's end is right once the turn after it is over.
    fn note_turn(&mut self, began: Duration, submitted: bool, spans: &mut Vec<Span>);
}

/// A simulated device's.
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

/// This machine's clock, beside an engine whose steps run ahead: a turn submits a step, then collects the one before it.
#[derive(Debug)]
pub struct WallClock {
    began: Option<Instant>,
    /// Whether a step is computed after the turn that submits it, rather than in that turn.
    apart: bool,
    in_flight: bool,
}

impl WallClock {
    /// One for engines on `B`.
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
            // The device went from that step to the next as soon as it was collected.
            let before = spans.last_mut().expect("what is in flight was submitted");
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
