//! The turns that steps take: which page-locked copies a step may write, when it is done, and its draws on their way to the
//! host. A step that nobody collects, or that is loaded and never run, harms no other.

use std::collections::VecDeque;

use super::device::Device;
use super::event::Event;
use super::memory::Memory;
use super::sampling::ResultLayout;
use super::staged::{Staged, TURNS, Turn};
use crate::backend::Sampled;
use crate::error::Result;

pub struct Turns {
    now: Turn,
    /// Whether the step of this turn has begun and `done` does not mark its end yet.
    unmarked: bool,
    /// Reached when the step of a turn is done, its results included.
    done: [Event; TURNS],
    results: Staged,
    under_way: VecDeque<UnderWay>,
}

enum UnderWay {
    Running { turn: Turn, results: ResultLayout },
    Done(Vec<Sampled>),
}

impl Turns {
    /// With room for `bytes` of results.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        Ok(Self {
            now: Turn::default(),
            unmarked: false,
            done: [device.event()?, device.event()?],
            results: Staged::new(device, bytes)?,
            under_way: VecDeque::new(),
        })
    }

    pub fn now(&self) -> Turn {
        self.now
    }

    /// Where the sampler leaves the results of a step.
    pub fn results(&self) -> &Memory {
        self.results.memory()
    }

    /// Begins the next step: waits for the one before last, whose turn it takes. If nobody has collected that one's results,
    /// they are kept elsewhere.
    pub fn begin(&mut self) -> Result<()> {
        if std::mem::take(&mut self.unmarked) {
            // What was loaded and never run may still be on its way from this turn's copies.
            self.done[self.now.ix()].record()?;
        }
        let turn = self.now.next();
        self.done[turn.ix()].wait()?;
        self.settle(|other| other == turn)?;
        self.now = turn;
        self.unmarked = true;
        Ok(())
    }

    /// Makes room for `bytes` of results; says whether the device address changed.
    pub fn reserve(&mut self, device: &Device, bytes: usize) -> Result<bool> {
        if bytes > self.results.memory().bytes() {
            self.settle(|_| true)?;
        }
        self.results.reserve(device, bytes)
    }

    /// The step has been enqueued: its results, if it draws, follow.
    pub fn finish(&mut self, device: &Device, results: Option<&ResultLayout>) -> Result<()> {
        if let Some(results) = results {
            self.results.fetch(device, self.now, results.bytes())?;
        }
        self.done[self.now.ix()].record()?;
        self.unmarked = false;
        self.under_way.push_back(match results {
            Some(results) => UnderWay::Running { turn: self.now, results: results.clone() },
            None => UnderWay::Done(Vec::new()),
        });
        Ok(())
    }

    /// Waits for the oldest step under way. Panics where there is none.
    pub fn collect(&mut self) -> Result<Vec<Sampled>> {
        match self.under_way.pop_front().expect("a step is run before it is collected") {
            UnderWay::Done(drawn) => Ok(drawn),
            UnderWay::Running { turn, results } => self.take(turn, &results),
        }
    }

    /// Takes the results of steps under way of some turns, so that their memory can be used again or given up.
    fn settle(&mut self, of: impl Fn(Turn) -> bool) -> Result<()> {
        for ix in 0..self.under_way.len() {
            if let UnderWay::Running { turn, results } = &self.under_way[ix]
                && of(*turn)
            {
                self.under_way[ix] = UnderWay::Done(self.take(*turn, results)?);
            }
        }
        Ok(())
    }

    /// Waits for the step of `turn`.
    fn take(&self, turn: Turn, results: &ResultLayout) -> Result<Vec<Sampled>> {
        self.done[turn.ix()].wait()?;
        Ok(results.parse(self.results.bytes(turn)))
    }
}
