//! `bench machine`, `bench gemm` and `bench attention` as tables or JSON lines: defines the shapes and prints the
//! results. The modules next to this one measure.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::backend::cpu::Cpu;
use crate::backend::{Backend, Dtype};
use crate::error::{Error, Result};
use crate::out;
use crate::plan::Planner;

use super::attention::{self, AttentionShape, AttentionTiming};
use super::gemm::{self, GemmRate, WeightShape};
use crate::backend::cpu::machine::MachineRates;

/// Linear layers of the 134M shape that decode steps are compared on: q k v, attention output, gate and up, down,
/// output layer.
const LAYERS: [(usize, usize); 5] = [(2304, 768), (768, 768), (4096, 768), (768, 2048), (32000, 768)];
const ROWS: [usize; 5] = [1, 8, 32, 128, 512];
/// Prompt lengths and samples of one decode step of attention, in the same model.
const PROMPTS: [usize; 3] = [512, 1024, 2048];
const SAMPLES: [usize; 4] = [1, 8, 32, 128];
const OWN_TOKENS: usize = 32;
const ATTENTION_TIME: Duration = Duration::from_millis(200);

pub fn machine(json: bool) -> Result<()> {
    let cpu = Cpu::open()?;
    let rates = MachineRates::measure(cpu.isa());
    match json {
        true => print_json(&rates),
        false => out::line(format_args!("{}: {rates}", cpu.describe())),
    }
}

pub fn gemm(json: bool) -> Result<()> {
    let cpu = Cpu::open()?;
    let rates = MachineRates::measure(cpu.isa());
    if !json {
        out::line(format_args!("{}: {rates}", cpu.describe()))?;
        out::line(format_args!(
            "{:<6} {:>8} {:>7} {:>5} {:>10} {:>8} {:>7}",
            "dtype", "outputs", "inputs", "rows", "us", "GFLOP/s", "share"
        ))?;
    }
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for (outputs, inputs) in LAYERS {
            for rate in gemm::measure(cpu.isa(), &rates, WeightShape { outputs, inputs, dtype }, &ROWS) {
                print(json, &rate)?;
            }
        }
    }
    Ok(())
}

pub fn attention(json: bool) -> Result<()> {
    let cpu = Cpu::open()?;
    let rates = MachineRates::measure(cpu.isa());
    if !json {
        out::line(format_args!("{}: {rates}", cpu.describe()))?;
        out::line(format_args!(
            "{:<9} {:>6} {:>8} {:>10} {:>10} {:>7}",
            "plan", "prompt", "samples", "us a layer", "floor us", "share"
        ))?;
    }
    for prompt in PROMPTS {
        for samples in SAMPLES {
            for planner in [Planner::Flat, Planner::Balanced] {
                let shape = AttentionShape {
                    prompt,
                    samples,
                    own_tokens: OWN_TOKENS,
                    q_heads: 12,
                    kv_heads: 12,
                    head_dim: 64,
                    dtype: Dtype::Bf16,
                    planner,
                    layers: 12,
                };
                print(json, &attention::time(cpu.isa(), &shape, &rates, ATTENTION_TIME)?)?;
            }
        }
    }
    Ok(())
}

pub(super) fn print(json: bool, row: &(impl fmt::Display + Serialize)) -> Result<()> {
    match json {
        true => print_json(row),
        false => out::line(row),
    }
}

/// `x` rounded to `decimals` decimals.
pub(super) fn rounded(x: f64, decimals: i32) -> f64 {
    let unit = 10f64.powi(decimals);
    (x * unit).round() / unit
}

/// Prints one JSON object per line.
pub(super) fn print_json(row: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(row).map_err(|error| Error::Internal(format!("a figure is not JSON: {error}")))?;
    out::line(line)
}

impl fmt::Display for GemmRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WeightShape { outputs, inputs, dtype } = self.shape;
        let dtype = format!("{dtype:?}").to_lowercase();
        let bound = format!("{:?}", self.bound).to_lowercase();
        write!(
            f,
            "{dtype:<6} {outputs:>8} {inputs:>7} {:>5} {:>10.1} {:>8.0} {:>5.0} % of {bound}",
            self.rows,
            self.microseconds,
            self.gflops,
            100.0 * self.share_of_bound
        )
    }
}

impl fmt::Display for AttentionTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionShape { prompt, samples, planner, .. } = self.shape;
        let floor = self.flops_floor_us.max(self.bytes_floor_us);
        write!(
            f,
            "{planner:<9} {prompt:>6} {samples:>8} {:>10.1} {floor:>10.1} {:>5.0} %",
            self.attention_us,
            100.0 * self.share_of_floor
        )
    }
}
