//! Timing of the CPU's steps by the wall clock, and its peak rates.

use std::time::{Duration, Instant};

use super::Cpu;
use super::machine::MachineRates;
use offshoot_backend::{Backend, Dtype, Rates, StepShape, Timed, WeightFormat};
use offshoot_core::error::Result;

impl Timed for Cpu {
    fn time(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        times: usize,
        mut ops: impl FnMut(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<Vec<f64>> {
        let mut one = || {
            let begun = Instant::now();
            self.run(step, shape, &mut ops)?;
            let us = begun.elapsed().as_secs_f64() * 1e6;
            self.collect(step)?;
            Ok(us)
        };
        one()?;
        (0..times).map(|_| one()).collect()
    }

    fn keep_caches(&mut self) {}

    fn time_nothing(&mut self, _: usize) -> Result<Option<Vec<f64>>> {
        Ok(None)
    }

    fn time_calls(&mut self, calls: usize, times: usize, mut call: impl FnMut(&mut Self, usize)) -> Result<Vec<f64>> {
        let mut round = || {
            let begun = Instant::now();
            (0..calls).for_each(|number| call(self, number));
            begun.elapsed().as_secs_f64() * 1e6 / calls as f64
        };
        round();
        Ok((0..times).map(|_| round()).collect())
    }

    fn choose_products(&mut self, _: Option<Duration>) -> bool {
        false
    }

    /// The rates of dense products, whatever the weights.
    fn rates(&mut self, dtype: Dtype, _: WeightFormat) -> Result<Rates> {
        let machine = MachineRates::measure(self.isa());
        Ok(Rates { bytes_per_s: machine.read_gb_per_s * 1e9, flops_per_s: machine.gflops(dtype) * 1e9 })
    }

    fn without_attention(&mut self) -> bool {
        false
    }
}
