//! Times linear layers by number of rows, compared with the limiting rate: arithmetic for many rows, reading the
//! weights for few. Calls alternate between copies of the weights, so that no cache holds them between calls.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::backend::cpu::gemm::{CpuMatrix, GemmScratch, OutputMode, linear};
use crate::backend::cpu::machine::MachineRates;
use crate::backend::cpu::{Cores, CpuBuffer, Isa};
use crate::backend::{Dtype, WeightView};

/// A linear layer `[outputs, inputs]`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WeightShape {
    pub outputs: usize,
    pub inputs: usize,
    pub dtype: Dtype,
}

impl WeightShape {
    fn weight_bytes(&self) -> usize {
        self.outputs * self.inputs * self.dtype.bytes()
    }

    fn operations(&self, rows: usize) -> f64 {
        2.0 * rows as f64 * self.outputs as f64 * self.inputs as f64
    }
}

/// One measured layer.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GemmRate {
    pub shape: WeightShape,
    pub rows: usize,
    /// Median time of a call.
    pub microseconds: f64,
    pub gflops: f64,
    /// Weights read each second.
    pub weights_gb_per_s: f64,
    /// Lower bound of the time at the machine's rates, divided by the measured time: 1 is perfect.
    pub share_of_bound: f64,
    pub bound: Bound,
}

/// What limits a layer on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    Arithmetic,
    Memory,
}

/// Total size of the copies of the weights, in bytes.
const WEIGHT_BYTES: usize = 512 << 20;
/// A measurement makes at least this many calls and takes at least this long.
const CALLS: usize = 15;
const TIME: Duration = Duration::from_millis(250);

/// Measures one layer at each number of rows.
pub fn measure(isa: Isa, rates: &MachineRates, shape: WeightShape, rows: &[usize]) -> Vec<GemmRate> {
    let copies = WEIGHT_BYTES.div_ceil(shape.weight_bytes().max(1)).min(256);
    let bytes = pattern(shape);
    let view = WeightView { dtype: shape.dtype, rows: shape.outputs, cols: shape.inputs, bytes: &bytes };
    let cores = Cores::new(isa);
    let copies: Vec<CpuMatrix> = (0..copies).map(|_| CpuMatrix::pack(isa, &[view])).collect();
    rows.iter().map(|&rows| measure_rows(&cores, rates, shape, &copies, rows)).collect()
}

fn measure_rows(
    cores: &Cores,
    rates: &MachineRates,
    shape: WeightShape,
    copies: &[CpuMatrix],
    rows: usize,
) -> GemmRate {
    let mut x = CpuBuffer::new(rows, shape.inputs);
    x.data.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 17) as f32 / 8.0 - 1.0);
    let mut out = CpuBuffer::new(rows, shape.outputs);
    let mut scratch = GemmScratch::default();
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < CALLS || start.elapsed() < TIME {
        let copy = &copies[times.len() % copies.len()];
        let call = Instant::now();
        linear(cores, &mut scratch, &mut out, &x, copy, None, OutputMode::Replace);
        times.push(call.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let seconds = times[times.len() / 2];
    let (arithmetic, memory) = least_seconds(rates, shape, rows);
    GemmRate {
        shape,
        rows,
        microseconds: seconds * 1e6,
        gflops: shape.operations(rows) / seconds * 1e-9,
        weights_gb_per_s: shape.weight_bytes() as f64 / seconds * 1e-9,
        share_of_bound: arithmetic.max(memory) / seconds,
        bound: if arithmetic >= memory { Bound::Arithmetic } else { Bound::Memory },
    }
}

/// Seconds of arithmetic and of reading the weights at the machine's rates.
fn least_seconds(rates: &MachineRates, shape: WeightShape, rows: usize) -> (f64, f64) {
    let gflops = if shape.dtype == Dtype::Bf16 { rates.bf16_gflops() } else { rates.f32_gflops };
    (shape.operations(rows) / gflops * 1e-9, shape.weight_bytes() as f64 / rates.read_gb_per_s * 1e-9)
}

/// Small weights of either sign.
fn pattern(shape: WeightShape) -> Vec<u8> {
    let value = |i: usize| (i % 31) as f32 / 256.0 - 0.06;
    let elements = 0..shape.outputs * shape.inputs;
    match shape.dtype {
        Dtype::F32 => elements.flat_map(|i| value(i).to_le_bytes()).collect(),
        Dtype::F16 => elements.flat_map(|i| half::f16::from_f32(value(i)).to_le_bytes()).collect(),
        Dtype::Bf16 => elements.flat_map(|i| half::bf16::from_f32(value(i)).to_le_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_within_its_bound_by_what_timing_noise_allows() {
        let rates = MachineRates::measure(Isa::fastest());
        let shape = WeightShape { outputs: 300, inputs: 130, dtype: Dtype::Bf16 };
        let rows = [1, 20];
        let measured = measure(Isa::fastest(), &rates, shape, &rows);
        assert_eq!(measured.iter().map(|m| m.rows).collect::<Vec<_>>(), rows);
        assert!(measured.iter().all(|m| m.gflops > 0.0 && m.share_of_bound > 0.0));
    }
}
