//! A GPU's steps by its own clock, and its rates.

use std::time::Duration;

use rayon::prelude::*;

use super::Cuda;
use super::chooser::Choosing;
use crate::backend::{
    Backend, Dtype, HeadLayout, Holds, RandomWeight, Rates, RowToken, StepBatch, StepShape, Timed, Uniform,
};
use crate::error::Result;
use crate::ids::TokenId;

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
