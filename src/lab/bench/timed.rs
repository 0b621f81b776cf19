//! Backends whose steps can be timed, and the rates that such times are held against. On the CPU by the wall clock, with caches
//! as the runs before left them; on a GPU by its own clock, with nothing in its cache.

use std::fmt;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde::Serialize;

use super::machine::MachineRates;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::cuda::gemm::chooser::Choosing;
use crate::backend::{Backend, Dtype, HeadLayout, Holds, RandomWeight, RowToken, StepBatch, StepShape, Uniform};
use crate::error::Result;
use crate::ids::TokenId;

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

    /// Microseconds of one of `calls` calls behind one another, for each of `times` rounds. `call` is told its number in the
    /// round.
    fn time_calls(&mut self, calls: usize, times: usize, call: impl FnMut(&mut Self, usize)) -> Result<Vec<f64>>;

    /// From now on linear layers go by the algorithm that the backend's library recommends, or by the fastest that is found in
    /// this time by measuring anew. False where there is only one.
    fn choose_products(&mut self, measuring: Option<Duration>) -> bool;

    /// Measures for a second or so, products of `dtype`.
    fn rates(&mut self, dtype: Dtype) -> Result<Rates>;

    /// Leaves out attention from now on, where the backend can: what remains is the ceiling that no attention can pass.
    fn without_attention(&mut self) -> bool;
}

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

    fn rates(&mut self, dtype: Dtype) -> Result<Rates> {
        let machine = MachineRates::measure(self.isa());
        Ok(Rates { bytes_per_s: machine.read_gb_per_s * 1e9, flops_per_s: machine.gflops(dtype) * 1e9 })
    }

    fn without_attention(&mut self) -> bool {
        false
    }
}

/// Rows, outputs and inputs of the product that tells a GPU's rate.
const PRODUCT: usize = 8192;

impl Timed for Cuda {
    fn time(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        times: usize,
        ops: impl FnMut(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<Vec<f64>> {
        Cuda::time(self, step, shape, times, ops)
    }

    fn time_calls(&mut self, calls: usize, times: usize, call: impl FnMut(&mut Self, usize)) -> Result<Vec<f64>> {
        Cuda::time_calls(self, calls, times, call)
    }

    fn choose_products(&mut self, measuring: Option<Duration>) -> bool {
        let choosing = measuring.map_or(Choosing::First, |at_most| Choosing::FastestAnew { at_most });
        Cuda::choose_products(self, choosing);
        true
    }

    fn rates(&mut self, dtype: Dtype) -> Result<Rates> {
        let numbers = Uniform { stream: 1, centre: 0.0, reach: 1.0 };
        let weights = self.random_matrix(&[RandomWeight { dtype, rows: PRODUCT, cols: PRODUCT, numbers }])?;
        let heads = HeadLayout { q_heads: 1, kv_heads: 1, head_dim: 16 };
        let mut step = self.step(heads, dtype, 1)?;
        let tokens = vec![RowToken::Known(TokenId(0)); PRODUCT];
        let shape = self.load(&mut step, StepBatch { tokens, ..StepBatch::default() })?;
        let mut x = self.buffer(PRODUCT, Holds::Operands(dtype))?;
        let mut out = self.buffer(PRODUCT, Holds::Operands(dtype))?;
        self.resize(&mut x, shape.rows)?;
        self.resize(&mut out, shape.rows)?;
        // Numbers, for zeros are multiplied faster.
        let drawn: Vec<f32> = (0..PRODUCT * PRODUCT).into_par_iter().map(|i| numbers.at(i)).collect();
        self.write(&mut x, PRODUCT, &drawn)?;
        let mut us = Cuda::time(self, &mut step, shape, 10, |cuda, _| {
            cuda.linear(&mut out, &x, &weights, None);
            Ok(())
        })?;
        us.sort_by(f64::total_cmp);
        let flops_per_s = 2.0 * (PRODUCT as f64).powi(3) / us[us.len() / 2] * 1e6;
        Ok(Rates { bytes_per_s: self.copy_rate()?, flops_per_s })
    }

    fn without_attention(&mut self) -> bool {
        self.skip_attention();
        true
    }
}
