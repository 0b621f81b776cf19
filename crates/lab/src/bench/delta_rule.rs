//! `bench delta-rule`: times the gated delta-rule layers of a model's shape, in decode steps by the number of branches,
//! each with a state of its own, and in steps of prompts that continue states, beside the physical lower bound. Several
//! layers are timed in turn, so that states are read from memory as in a step.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use serde::Serialize;

use super::floor::FloorArgs;
use super::tables::{median, print, rounded};
use super::workload_file::read_jobs;
use offshoot_args::whole;
use offshoot_args::words::{DTYPES, STATE_DTYPES, one_of};
use offshoot_backend::{
    ActivationDtype, DeltaHeads, Dtype, GateFunction, GatedNorm, HeadLayout, KvShape, LayerState, NormOrder, Rates,
    StateDtype, StateKind, StateRule, StateShape, StepBatch, Timed, Uniform, WeightFormat,
};
use offshoot_cases::case;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{LayerIx, StateId};
use offshoot_core::out;
use offshoot_kv::StateRun;
use offshoot_launch::{DeviceBackend, OnDevice};
use offshoot_model::config::kinds;

// The options of `bench delta-rule`.
#[derive(Clone, Debug, Args)]
pub struct DeltaRuleOptions {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Shape of a model: qwen3.5-9b, or one of the file's
    #[arg(long, value_name = "NAME", default_value = "qwen3.5-9b")]
    pub shape: String,
    /// Shapes, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Branches of decode steps
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = whole::<usize>(1..),
        default_value = "1,16,64,256,1024"
    )]
    pub branches: Vec<usize>,
    /// Steps with prompts: sequences and the tokens of each
    #[arg(long, value_name = "NxT", value_delimiter = ',', default_value = "1x2048,8x256,64x32")]
    pub prompts: Vec<Prompts>,
    /// Dtype of activations
    #[arg(long, value_parser = one_of(DTYPES), default_value = "bf16")]
    pub dtype: Dtype,
    /// Storage format of states
    #[arg(long, value_parser = one_of(STATE_DTYPES), default_value = "f32", value_name = "DTYPE")]
    pub state_dtype: StateDtype,
    #[command(flatten)]
    pub floor: FloorArgs,
    /// Use the deterministic mode
    #[arg(long)]
    pub deterministic: bool,
}

/// So many sequences of so many tokens each: `8x256`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prompts {
    pub sequences: usize,
    pub tokens: usize,
}

impl FromStr for Prompts {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('x').map(|(sequences, tokens)| (sequences.parse(), tokens.parse()));
        match parts {
            Some((Ok(sequences), Ok(tokens))) if sequences > 0 && tokens > 0 && sequences <= MOST / tokens => {
                Ok(Self { sequences, tokens })
            }
            _ => {
                Err(Error::value("value", format!("SEQUENCESxTOKENS, as 8x256, of at most {MOST} tokens in all"), text))
            }
        }
    }
}

/// More rows than any step has.
const MOST: usize = 1 << 16;

/// Layers that are timed in turn, if their states fit in 1/`FREE_PART` of the free memory; of so many timings the
/// median counts.
const LAYERS: usize = 4;
const FREE_PART: usize = 4;
const TIMES: usize = 20;

/// Tokens of a chunk of the matrix form whose operations the lower bound of prompts counts.
const CHUNK: f64 = 64.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    CausalConv,
    StateUpdate,
    GatedNorm,
    /// All of them; the lower bound of its bytes counts states alone.
    Layer,
}

impl Op {
    const ALL: [Self; 4] = [Self::CausalConv, Self::StateUpdate, Self::GatedNorm, Self::Layer];

    fn name(self) -> &'static str {
        match self {
            Op::CausalConv => "causal_conv",
            Op::StateUpdate => "state_update",
            Op::GatedNorm => "gated_norm",
            Op::Layer => "layer",
        }
    }

    fn has(self, other: Op) -> bool {
        self == Op::Layer || self == other
    }
}

/// One op of one layer in one step.
#[derive(Debug, Serialize)]
struct MeasuredOp<'a> {
    shape: &'a str,
    op: Op,
    /// Layers of the model with these heads.
    count: usize,
    sequences: usize,
    tokens: usize,
    deterministic: bool,
    state_dtype: StateDtype,
    us: f64,
    floor_us: f64,
    ratio: f64,
}

impl fmt::Display for MeasuredOp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, sequences, tokens, us, floor_us, ratio, .. } = self;
        write!(f, "{:<15} {sequences:>9} {tokens:>7} {us:>10.1} {floor_us:>10.1} {ratio:>6.2}", op.name())
    }
}

/// Prints each result as soon as it is known.
impl OnDevice for &DeltaRuleOptions {
    type Output = ();

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<()> {
        let options = self;
        let (config, _) = read_jobs(options.file.as_deref(), &options.shape, &[])?;
        let rates = options.floor.rates(&mut backend, options.dtype, WeightFormat::Dense(options.dtype))?;
        if options.deterministic {
            backend.set_batch_invariant();
        }
        let all = kinds(config.states().filter(|layer| matches!(layer.kind, StateKind::Delta(_))));
        if all.is_empty() {
            return Err(Error::value("--shape", "a shape with gated delta-rule layers", options.shape.clone()));
        }
        if !options.json {
            out::line(format_args!("{}: {rates}", backend.describe()))?;
        }
        for layer in all {
            let count = config.states().filter(|other| *other == layer).count();
            if !options.json {
                out::line(format_args!("{count} layers of {layer}; times are of one"))?;
                out::line(format_args!(
                    "{:<15} {:>9} {:>7} {:>10} {:>10} {:>6}",
                    "op", "sequences", "tokens", "us", "floor us", "ratio"
                ))?;
            }
            let decode = options.branches.iter().map(|&sequences| Prompts { sequences, tokens: 1 });
            for prompts in decode.chain(options.prompts.iter().copied()) {
                for (op, us) in measure(&mut backend, options, layer, prompts)? {
                    let floor = floor(op, layer, prompts, (options.dtype, options.state_dtype), rates);
                    let Prompts { sequences, tokens } = prompts;
                    let (deterministic, state_dtype) = (options.deterministic, options.state_dtype);
                    let (floor_us, ratio) = (rounded(floor, 2), rounded(us / floor, 2));
                    let (shape, us) = (options.shape.as_str(), rounded(us, 2));
                    let found = MeasuredOp {
                        shape,
                        op,
                        count,
                        sequences,
                        tokens,
                        deterministic,
                        state_dtype,
                        us,
                        floor_us,
                        ratio,
                    };
                    print(options.json, &found)?;
                }
            }
        }
        Ok(())
    }
}

/// Microseconds that no implementation can beat: to read and write each state once, and the activations, or for prompts
/// the products of the chunked form, per chunk C of a value head with keys of `k` and values of `v`: those of keys with
/// keys and queries, and of the inverse with keys, 3 C C k; of the inverse and of scores with values, 2 C C v; and of
/// the state with keys twice and queries, 3 C k v.
fn floor(op: Op, layer: LayerState, prompts: Prompts, (dtype, states): (Dtype, StateDtype), rates: Rates) -> f64 {
    let Prompts { sequences, tokens } = prompts;
    let rows = (sequences * tokens) as f64;
    let heads = delta_heads(layer);
    let [conv, values] = [layer.conv.width, heads.value_width()].map(|elements| elements as f64);
    let state = |bytes: usize| 2.0 * bytes as f64 * sequences as f64;
    let activations = |elements: f64| elements * dtype.bytes() as f64 * rows;
    let (k, v) = (heads.key_dim as f64, heads.value_dim as f64);
    let products = 2.0 * heads.value_heads as f64 * rows * (3.0 * CHUNK * k + 2.0 * CHUNK * v + 3.0 * k * v);
    let products = if tokens > 1 { products } else { 0.0 };
    let (bytes, flops) = match op {
        Op::CausalConv => (state(layer.tail_bytes()) + activations(2.0 * conv), 0.0),
        Op::StateUpdate => (state(layer.matrix_bytes(states)) + activations(conv + values), products),
        Op::GatedNorm => (activations(3.0 * values), 0.0),
        Op::Layer => (state(layer.state_bytes(states)), products),
    };
    1e6 * (bytes / rates.bytes_per_s).max(flops / rates.flops_per_s)
}

/// The heads of a layer with the gated delta rule, which are all that are timed.
fn delta_heads(layer: LayerState) -> DeltaHeads {
    match layer.kind {
        StateKind::Delta(heads) => heads,
        _ => unreachable!("layers of other kinds are left out"),
    }
}

/// Microseconds of each op in one layer.
fn measure<B: Timed>(
    backend: &mut B,
    options: &DeltaRuleOptions,
    layer: LayerState,
    prompts: Prompts,
) -> Result<Vec<(Op, f64)>> {
    let Prompts { sequences, tokens } = prompts;
    let (rows, dtype) = (sequences * tokens, options.dtype);
    let heads = delta_heads(layer);
    let layer_bytes = sequences * layer.state_bytes(options.state_dtype);
    let layers = (backend.free_bytes()? / FREE_PART / layer_bytes).clamp(1, LAYERS);
    let any = HeadLayout::new(1, 1, 64);
    let states = StateShape { layers: vec![layer; layers], slots: sequences, dtype: options.state_dtype };
    let mut kv = backend.kv(&KvShape { states, ..KvShape::uniform(1, any, dtype, 1) })?;
    let mut vector = |stream: u64, len: usize, value: &dyn Fn(f32) -> f32| {
        case::vector(backend, &drawn(stream, len).into_iter().map(value).collect::<Vec<f32>>())
    };
    let conv = vector(1, layer.tail(), &|x| x)?;
    let rate = vector(2, heads.value_heads, &|a_log| -(a_log - 2.0).exp())?;
    let dt = vector(3, heads.value_heads, &|x| x)?;
    let weight = vector(4, heads.value_dim, &|x| 1.0 + x)?;

    let mut step = backend.step(&[any], dtype, 32)?;
    let run = |is_first: bool, number: usize| {
        let (first, slot) = ((number * tokens) as u32, Some(StateId(number as u32)));
        StateRun { rows: first..first + tokens as u32, from: slot.filter(|_| !is_first), is_in: false, to: slot }
    };
    let batch = |is_first: bool| StepBatch {
        state_runs: (0..sequences).map(|number| run(is_first, number)).collect(),
        ..case::rows_at(&vec![0; rows])
    };
    let shape = backend.load(&mut step, batch(true))?;
    let operands = ActivationDtype::Operands(dtype);
    let mut filled = |stream: u64, width: usize, holds: ActivationDtype| {
        case::buffer(backend, holds, shape.rows, width, &drawn(stream, shape.rows * width))
    };
    let x = filled(5, layer.conv.width, operands)?;
    let ba = filled(6, 2 * heads.value_heads, ActivationDtype::Sums)?;
    let gate = filled(7, heads.value_width(), operands)?;
    let mut mixed = filled(8, layer.conv.width, operands)?;
    let mut out = filled(9, heads.value_width(), operands)?;
    let (gate_by, order) = (GateFunction::Silu, NormOrder::NormFirst);
    let norm = GatedNorm { width: heads.value_dim, eps: 1e-6, gate: gate_by, order };
    let mut ops = |backend: &mut B, step: &B::Step, op: Op| {
        for layer in (0..layers).map(LayerIx::new) {
            if op.has(Op::CausalConv) {
                backend.causal_conv(&mut mixed, &x, &conv, None, &mut kv, layer, step);
            }
            if op.has(Op::StateUpdate) {
                let rule = StateRule::Delta { rate: &rate, dt: &dt };
                backend.state_update(&mut out, &mixed, &ba, rule, &mut kv, layer, step);
            }
            if op.has(Op::GatedNorm) {
                backend.gated_norm(&mut out, &gate, Some(&weight), norm);
            }
        }
        Ok(())
    };
    // Writes every state before one is read.
    backend.run_once(&mut step, shape, |backend, step| ops(backend, step, Op::Layer))?;
    backend.collect(&mut step)?;
    let mut all = Vec::new();
    for op in Op::ALL {
        // Each op has a step of its own: a graph is known by its step and shape.
        let mut step = backend.step(&[any], dtype, 32)?;
        let shape = backend.load(&mut step, batch(false))?;
        let us = backend.time(&mut step, shape, TIMES, |backend, step| ops(backend, step, op))?;
        all.push((op, median(us) / layers as f64));
    }
    Ok(all)
}

/// Numbers in [-1, 1).
fn drawn(stream: u64, len: usize) -> Vec<f32> {
    let numbers = Uniform { stream: stream << 50, centre: 0.0, reach: 1.0 };
    (0..len).map(|i| numbers.at(i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_decode_steps_is_the_time_of_their_states() {
        let heads = DeltaHeads { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128 };
        let layer = LayerState::delta(heads, 4);
        let rates = Rates { bytes_per_s: 4e12, flops_per_s: 8e14 };
        let state = 4 * (32 * 128 * 128 + 4 * 8192);
        let decode = Prompts { sequences: 256, tokens: 1 };
        let floor = |op, prompts, states| super::floor(op, layer, prompts, (Dtype::Bf16, states), rates);
        let us = floor(Op::Layer, decode, StateDtype::F32);
        assert!((us - 2.0 * 256.0 * f64::from(state) / 4e6).abs() < 1e-9, "{us}");
        let matrices = f64::from(32 * 128 * 128);
        let saved = us - floor(Op::Layer, decode, StateDtype::Bf16);
        assert!((saved - 2.0 * 256.0 * 2.0 * matrices / 4e6).abs() < 1e-9, "{saved}");
        // 64 x 128 x 5 and 128 x 128 x 3 multiplications and additions a token and head, which take longer than its
        // bytes.
        let prompts = Prompts { sequences: 2, tokens: 4096 };
        let us = floor(Op::StateUpdate, prompts, StateDtype::F32);
        assert!((us - 2.0 * 8192.0 * 32.0 * 90112.0 / 8e8).abs() < 1e-9, "{us}");
    }

    #[test]
    fn prompts_are_read_from_sequences_and_tokens() {
        assert_eq!("8x256".parse::<Prompts>().unwrap(), Prompts { sequences: 8, tokens: 256 });
        for wrong in ["8", "x8", "0x8", "8x0", "65537x1", "8x256x2", "-1x2"] {
            assert!(wrong.parse::<Prompts>().is_err(), "{wrong}");
        }
    }
}
