//! Backends whose steps can be timed, and the peak rates to compare times with. The CPU is timed by the wall clock,
//! with caches as earlier runs left them; a GPU by its own clock, with empty caches unless they are to be kept.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Backend, Dtype, StepShape, WeightFormat};
use offshoot_core::error::Result;

/// Peak rates of a device.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rates {
    pub bytes_per_s: f64,
    /// Multiplications and additions per second, with operands of one dtype.
    pub flops_per_s: f64,
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} GFLOP/s, {:.1} GB/s", self.flops_per_s / 1e9, self.bytes_per_s / 1e9)
    }
}

/// A backend whose steps can be timed.
pub trait Timed: Backend {
    /// Runs `ops` on the loaded step `times` times; returns the microseconds of each run.
    fn time(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        times: usize,
        ops: impl FnMut(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<Vec<f64>>;

    /// Times steps with caches as the run before left them, from now on.
    fn keep_caches(&mut self);

    /// Microseconds of each of `times` runs of a kernel that does nothing, timed as steps are; `None` where steps have
    /// no kernels.
    fn time_nothing(&mut self, times: usize) -> Result<Option<Vec<f64>>>;

    /// Microseconds per call, for each of `times` rounds of `calls` calls in a row. `call` gets its index in the round.
    fn time_calls(&mut self, calls: usize, times: usize, call: impl FnMut(&mut Self, usize)) -> Result<Vec<f64>>;

    /// Selects the algorithm of linear layers: the fastest found by measuring for this long, or with `None` the one
    /// that the backend's library recommends. Returns false if there is only one algorithm.
    fn choose_products(&mut self, measuring: Option<Duration>) -> bool;

    /// Measures peak rates, with products of activations of `dtype` and weights of this format; takes about a second.
    fn rates(&mut self, dtype: Dtype, weights: WeightFormat) -> Result<Rates>;

    /// Skips attention from now on, to measure the upper bound of what faster attention can gain. Returns whether the
    /// backend supports that.
    fn without_attention(&mut self) -> bool;
}
