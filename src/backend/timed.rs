//! Backends whose steps can be timed, and the rates that such times are held against. On the CPU by the wall clock,
//! with caches as the runs before left them; on a GPU by its own clock, with nothing in its cache.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Backend, Dtype, StepShape};
use crate::error::Result;

/// What a device can do at most.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rates {
    pub bytes_per_s: f64,
    /// Multiplications and additions of operands of one dtype.
    pub flops_per_s: f64,
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} GFLOP/s, {:.1} GB/s", self.flops_per_s / 1e9, self.bytes_per_s / 1e9)
    }
}

pub trait Timed: Backend {
    /// Microseconds of each of `times` runs of `ops` on the step that is loaded.
    fn time(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        times: usize,
        ops: impl FnMut(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<Vec<f64>>;

    /// Microseconds of one of `calls` calls behind one another, for each of `times` rounds. `call` is told its number
    /// in the round.
    fn time_calls(&mut self, calls: usize, times: usize, call: impl FnMut(&mut Self, usize)) -> Result<Vec<f64>>;

    /// From now on linear layers go by the algorithm that the backend's library recommends, or by the fastest that is
    /// found in this time by measuring anew. False where there is only one.
    fn choose_products(&mut self, measuring: Option<Duration>) -> bool;

    /// Measures for a second or so, products of `dtype`.
    fn rates(&mut self, dtype: Dtype) -> Result<Rates>;

    /// Leaves out attention from now on, where the backend can: what remains is the ceiling that no attention can pass.
    fn without_attention(&mut self) -> bool;
}
