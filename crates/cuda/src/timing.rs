//! Times of steps and single ops by the device's clock: replays of a captured graph; before each replay of a step a
//! large write clears its data from the second-level cache, unless caches are to be kept. For benchmarks.

use std::time::Duration;

use rayon::prelude::*;

use super::Cuda;
use super::compile::unit::Unit;
use super::compile::units;
use super::driver::args::Args;
use super::driver::graph::Graph;
use super::driver::memory::Memory;
use super::gemm::chooser::AlgorithmPolicy;
use super::step::Step;
use offshoot_backend::{
    ActivationDtype, Backend, Dtype, HeadLayout, MatrixPart, OutputMode, QuantFormat, RandomWeight, Rates, Rounding,
    RowToken, StepBatch, StepShape, Timed, Uniform, WeightFormat,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;

/// Larger than the second-level cache of any GPU.
const FLUSHED_BYTES: usize = 256 << 20;

/// Bytes of the copy that measures bandwidth.
const COPIED_BYTES: usize = 1 << 30;

/// Runs of a step before it is timed: op by op, capture, some replays.
const WARM_UP: usize = 5;

impl Cuda {
    /// Bytes a second that a large copy reads and writes: the best of some.
    fn copy_rate(&mut self) -> Result<f64> {
        let device = &self.device;
        let (from, to): (Memory, Memory) = (device.alloc(COPIED_BYTES)?, device.alloc(COPIED_BYTES)?);
        let mut least = f64::INFINITY;
        for _ in 0..10 {
            let (before, after) = (device.event()?, device.event()?);
            least = least.min(before.us_until(&after, || device.copy(&to, 0, &from, 0..COPIED_BYTES))?);
        }
        Ok(2.0 * COPIED_BYTES as f64 / least * 1e6)
    }

    /// Microseconds of each of `times` replays.
    fn time_replays(&self, graph: &Graph, times: usize) -> Result<Vec<f64>> {
        let device = &self.device;
        let flushed = if self.keeps_caches { None } else { Some(device.alloc(FLUSHED_BYTES)?) };
        let mut marks = Vec::with_capacity(times);
        for _ in 0..times {
            let (before, after) = (device.event()?, device.event()?);
            if let Some(flushed) = &flushed {
                device.zero(flushed)?;
            }
            before.record()?;
            graph.launch()?;
            after.record()?;
            marks.push((before, after));
        }
        device.synchronise()?;
        marks.iter().map(|(before, after)| before.elapsed_us(after)).collect()
    }
}

/// Rows, outputs and inputs of the product that tells a GPU's rate.
const PRODUCT: usize = 8192;

impl Timed for Cuda {
    fn time(
        &mut self,
        step: &mut Step,
        shape: StepShape,
        times: usize,
        mut ops: impl FnMut(&mut Self, &mut Step) -> Result<()>,
    ) -> Result<Vec<f64>> {
        let mut runs = 0;
        // The last of them may have been the one that tries; it is captured after that.
        while runs < WARM_UP || (step.repeats() && step.graphs.graph(shape).is_none() && runs == WARM_UP) {
            self.run(step, shape, &mut ops)?;
            self.collect(step)?;
            runs += 1;
        }
        let device = self.device.clone();
        let captured = match step.repeats() {
            true => None,
            // No step but this one may replay its graph.
            false => Some(device.capture(|| self.without_tuning(|backend| ops(backend, step)))?),
        };
        let Some(graph) = captured.as_ref().or_else(|| step.graphs.graph(shape)) else {
            return Err(Error::Internal("a step that was run often has no graph".to_owned()));
        };
        self.time_replays(graph, times)
    }

    fn keep_caches(&mut self) {
        self.keeps_caches = true;
    }

    fn time_nothing(&mut self, times: usize) -> Result<Option<Vec<f64>>> {
        let device = self.device.clone();
        let nothing = device.function(&Unit::new(&units::NOTHING), "nothing")?;
        let launch = || {
            device.launch(&nothing, [device.facts().multiprocessors, 1, 1], 32, 0, &Args::new());
            Ok(())
        };
        launch()?;
        let graph = device.capture(launch)?;
        Ok(Some(self.time_replays(&graph, times)?))
    }

    fn time_calls(&mut self, calls: usize, times: usize, mut call: impl FnMut(&mut Self, usize)) -> Result<Vec<f64>> {
        // Op by op first: kernels are loaded, algorithms chosen.
        (0..calls).for_each(|number| call(self, number));
        let device = self.device.clone();
        self.forget_rounded();
        let graph = device.capture(|| {
            (0..calls).for_each(|number| call(self, number));
            Ok(())
        })?;
        let (before, after) = (device.event()?, device.event()?);
        graph.launch()?;
        let time = |_| Ok(before.us_until(&after, || graph.launch())? / calls as f64);
        (0..times).map(time).collect()
    }

    fn choose_products(&mut self, measuring: Option<Duration>) -> bool {
        let choosing = measuring.map_or(AlgorithmPolicy::First, |at_most| AlgorithmPolicy::FastestAnew { at_most });
        Cuda::choose_products(self, choosing);
        true
    }

    fn rates(&mut self, dtype: Dtype, weights: WeightFormat) -> Result<Rates> {
        // Weights whose activations are not rounded are multiplied as numbers of the activations' dtype.
        let weights = match weights {
            WeightFormat::Quantised(QuantFormat { rounding: Rounding::Exact, .. }) => WeightFormat::Dense(dtype),
            weights => weights,
        };
        let numbers = Uniform { stream: 1, centre: 0.0, reach: 1.0 };
        let random = RandomWeight::of(dtype, PRODUCT, PRODUCT, numbers);
        let weights = self.matrix(&[MatrixPart::random(random, weights)])?;
        let heads = HeadLayout::new(1, 1, 16);
        let mut step = self.step(&[heads], dtype, 1)?;
        let tokens = vec![RowToken::Known(TokenId(0)); PRODUCT];
        let shape = self.load(&mut step, StepBatch { tokens, ..StepBatch::default() })?;
        let mut x = self.buffer(PRODUCT, ActivationDtype::Operands(dtype))?;
        let mut out = self.buffer(PRODUCT, ActivationDtype::Operands(dtype))?;
        self.resize(&mut x, shape.rows)?;
        self.resize(&mut out, shape.rows)?;
        // Random numbers: zeros multiply faster.
        let drawn: Vec<f32> = (0..PRODUCT * PRODUCT).into_par_iter().map(|i| numbers.at(i)).collect();
        self.write(&mut x, PRODUCT, &drawn)?;
        let mut us = self.time(&mut step, shape, 10, |cuda, _| {
            cuda.linear(&mut out, &x, &weights, None, OutputMode::Replace);
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
