//! The convolutions of recurrent layers over the last inputs of each channel: clear loops, and loops for every
//! instruction set, which have one order and so compute the same bits however steps divide a sequence. `states` holds
//! the inputs that the next step reads.

use super::rows::{for_each_isa, for_rows};
use super::states::LayerStates;
use super::{Cores, CpuBuffer, Isa, exp};
use offshoot_backend::{ConvShape, MOST_CONV_TOKENS};
use offshoot_kv::StateRun;

/// Memory of a convolution; nothing lasts from one to the next.
#[derive(Default)]
pub struct ConvScratch {
    /// The inputs before each run that its convolution reads, `[runs][tokens][width]`.
    tails: Vec<f32>,
    /// The run of each row, and the row's place in it.
    places: Vec<(usize, usize)>,
}

/// The inputs of one row, the oldest first and its own the last, as many as the convolution reads.
type RowInputs<'a> = [&'a [f32]; MOST_CONV_TOKENS];

/// `out[r][c] = silu(bias[c] + sum over k of weight[c][k] * x[r - tokens + 1 + k][c])`, where the rows before a run's
/// first are those of the state that it continues.
#[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
pub fn causal_conv(
    cores: &Cores,
    scratch: &mut ConvScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    weight: &[f32],
    bias: Option<&[f32]>,
    states: &mut LayerStates,
    runs: &[StateRun],
) {
    let ConvShape { width, tokens } = states.layer().conv;
    assert_eq!((out.rows, out.width), (x.rows, width), "causal_conv: shape of the output");
    assert_eq!((x.width, weight.len()), (width, tokens * width), "causal_conv: width of the input and the weights");
    assert!(bias.is_none_or(|bias| bias.len() == width), "causal_conv: length of the bias");
    scratch.begin(x, states, runs);
    for_rows(&cores.team, out, |r, out| conv_row(cores.isa, out, &scratch.inputs(x, tokens, r), weight, bias));
}

/// `out[r] = C[r] * conv(B * x)[r]` for `bcx` `[R, 3 * width]`: B, C and x, with the convolution of [`causal_conv`]
/// without its silu.
#[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
pub fn gated_conv(
    cores: &Cores,
    scratch: &mut ConvScratch,
    out: &mut CpuBuffer,
    bcx: &CpuBuffer,
    weight: &[f32],
    bias: Option<&[f32]>,
    states: &mut LayerStates,
    runs: &[StateRun],
) {
    let ConvShape { width, tokens } = states.layer().conv;
    assert_eq!((out.rows, out.width), (bcx.rows, width), "gated_conv: shape of the output");
    assert_eq!(
        (bcx.width, weight.len()),
        (3 * width, tokens * width),
        "gated_conv: width of the input and the weights"
    );
    assert!(bias.is_none_or(|bias| bias.len() == width), "gated_conv: length of the bias");
    let mut products = CpuBuffer::new(bcx.rows, width);
    for_rows(&cores.team, &mut products, |r, to| {
        let (b, x) = (&bcx.row(r)[..width], &bcx.row(r)[2 * width..]);
        to.iter_mut().zip(b).zip(x).for_each(|((to, b), x)| *to = b * x);
    });
    scratch.begin(&products, states, runs);
    for_rows(&cores.team, out, |r, out| {
        let gate = &bcx.row(r)[width..2 * width];
        gated_row(cores.isa, out, &scratch.inputs(&products, tokens, r), weight, bias, gate);
    });
}

impl ConvScratch {
    /// Keeps the inputs that come before each run, then writes those that it leaves to its state.
    fn begin(&mut self, x: &CpuBuffer, states: &mut LayerStates, runs: &[StateRun]) {
        let ConvShape { width, tokens } = states.layer().conv;
        let Self { tails, places } = self;
        tails.resize(runs.len() * tokens * width, 0.0);
        places.resize(x.rows, (0, 0));
        for (number, (run, tail)) in runs.iter().zip(tails.chunks_exact_mut(tokens * width)).enumerate() {
            match run.from {
                Some(from) => tail.copy_from_slice(states.tail(from)),
                None => tail.fill(0.0),
            }
            if run.is_in {
                // The last of the inputs is the first row's own.
                tail.copy_within(0..(tokens - 1) * width, width);
            }
            for (place, row) in run.rows.clone().enumerate() {
                places[row as usize] = (number, place);
            }
            let Some(to) = run.to else { continue };
            // The last inputs of the run, and before them those of the tail.
            let rows = run.rows.len();
            let kept = states.tail_mut(to);
            for (k, kept) in kept.chunks_exact_mut(width).enumerate() {
                match (rows + k).checked_sub(tokens) {
                    Some(row) => kept.copy_from_slice(x.row(run.rows.start as usize + row)),
                    None => kept.copy_from_slice(&tail[(rows + k) * width..][..width]),
                }
            }
        }
    }

    /// The inputs of row `r`; those behind the last are empty.
    fn inputs<'a>(&'a self, x: &'a CpuBuffer, tokens: usize, r: usize) -> RowInputs<'a> {
        let (run, place) = self.places[r];
        let tail = &self.tails[run * tokens * x.width..][..tokens * x.width];
        std::array::from_fn(|k| match (place + k + 1).checked_sub(tokens) {
            _ if k >= tokens => &[][..],
            Some(before) => x.row(r - place + before),
            None => &tail[(place + k + 1) * x.width..][..x.width],
        })
    }
}

for_each_isa! {
    fn conv_row(out: &mut [f32], inputs: &RowInputs<'_>, weight: &[f32], bias: Option<&[f32]>)
        = conv_clear or conv_fast;
}

for_each_isa! {
    fn gated_row(out: &mut [f32], inputs: &RowInputs<'_>, weight: &[f32], bias: Option<&[f32]>, gate: &[f32]) {
        sums(out, inputs, weight);
        if let Some(bias) = bias {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
        out.iter_mut().zip(gate).for_each(|(out, gate)| *out *= gate);
    }
}

fn conv_clear(out: &mut [f32], inputs: &RowInputs<'_>, weight: &[f32], bias: Option<&[f32]>) {
    let tokens = weight.len() / out.len();
    for (c, out) in out.iter_mut().enumerate() {
        let sum: f32 = (0..tokens).map(|k| weight[c * tokens + k] * inputs[k][c]).sum();
        let x = bias.map_or(sum, |bias| sum + bias[c]);
        *out = x / (1.0 + (-x).exp());
    }
}

#[inline(always)]
fn conv_fast(out: &mut [f32], inputs: &RowInputs<'_>, weight: &[f32], bias: Option<&[f32]>) {
    sums(out, inputs, weight);
    match bias {
        Some(bias) => {
            for (out, bias) in out.iter_mut().zip(bias) {
                let x = *out + bias;
                *out = x / (1.0 + exp::exp(-x));
            }
        }
        None => out.iter_mut().for_each(|x| *x /= 1.0 + exp::exp(-*x)),
    }
}

/// `out[c] = sum over k of weight[c][k] * inputs[k][c]`
#[inline(always)]
fn sums(out: &mut [f32], inputs: &RowInputs<'_>, weight: &[f32]) {
    match weight.len() / out.len().max(1) {
        1 => sums_of::<1>(out, inputs, weight),
        2 => sums_of::<2>(out, inputs, weight),
        3 => sums_of::<3>(out, inputs, weight),
        4 => sums_of::<4>(out, inputs, weight),
        5 => sums_of::<5>(out, inputs, weight),
        6 => sums_of::<6>(out, inputs, weight),
        7 => sums_of::<7>(out, inputs, weight),
        _ => sums_of::<8>(out, inputs, weight),
    }
}

#[inline(always)]
fn sums_of<const TOKENS: usize>(out: &mut [f32], inputs: &RowInputs<'_>, weight: &[f32]) {
    let inputs: [&[f32]; TOKENS] = std::array::from_fn(|k| &inputs[k][..out.len()]);
    let (weight, _) = weight.as_chunks::<TOKENS>();
    for (c, (out, weight)) in out.iter_mut().zip(weight).enumerate() {
        let mut x = 0.0;
        for k in 0..TOKENS {
            x += weight[k] * inputs[k][c];
        }
        *out = x;
    }
}
