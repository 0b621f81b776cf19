//! The selective scan of Mamba-1 layers, token by token: the clear loops of `backend::states`, compiled for every
//! instruction set. Channels do not depend on each other and are cut into blocks, of which threads take some each; sums
//! over a channel's states have one order, so they are the same bits however steps divide a sequence.

use super::rows::{for_each_isa, for_rows};
use super::state_update::{UpdateScratch, softplus, stored};
use super::states::LayerStates;
use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::{ScanRule, StateKind, scan_block};
use offshoot_kv::StateRun;

/// What a scan reads of a row in one block of channels.
struct ScanToken<'a> {
    x: &'a [f32],
    /// Behind their bias and softplus.
    steps: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    /// `[state, channels]` of the layer, from the block's first channel on.
    rate: &'a [f32],
    channels: usize,
}

/// The states and outputs of a layer; see `backend::states`.
#[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
pub fn selective_scan(
    cores: &Cores,
    scratch: &mut UpdateScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    steps: &CpuBuffer,
    [b, c]: [&CpuBuffer; 2],
    rule: ScanRule<'_, Vec<f32>>,
    states: &mut LayerStates,
    runs: &[StateRun],
) {
    let StateKind::Scan { channels, state } = states.layer().kind else { panic!("selective_scan: {}", states.layer()) };
    let rows = out.rows;
    for (buffer, width) in [(&*out, channels), (x, channels), (steps, channels), (b, state), (c, state)] {
        assert_eq!((buffer.rows, buffer.width), (rows, width), "selective_scan: shapes");
    }
    let ScanRule { rate, dt, skip } = rule;
    let lengths = [rate, dt, skip].map(Vec::len);
    assert_eq!(lengths, [state * channels, channels, channels], "selective_scan: lengths");
    let mut behind = CpuBuffer::new(rows, channels);
    for_rows(&cores.team, &mut behind, |r, to| {
        to.iter_mut().zip(steps.row(r)).zip(dt).for_each(|((to, step), dt)| *to = softplus(step + dt));
    });
    let block = scan_block(channels);
    scratch.by_matrix(cores, out, states, |number, matrices, outputs| {
        let (first, rounds, mut unkept) = (number * block, matrices.rounds(), Vec::new());
        for run in runs {
            matrices.advance(cores.isa, run, state * block, &mut unkept, |matrix| {
                for (place, r) in run.rows.clone().map(|row| row as usize).enumerate() {
                    let of_block = |row: &'_ CpuBuffer| first..row.width.min(first + block);
                    let token = ScanToken {
                        x: &x.row(r)[of_block(x)],
                        steps: &behind.row(r)[of_block(&behind)],
                        b: b.row(r),
                        c: c.row(r),
                        rate: &rate[first..],
                        channels,
                    };
                    let out = &mut outputs[r * block..][..block];
                    match run.is_in && place == 0 {
                        true => read(cores.isa, matrix, &token, out),
                        false => scan(cores.isa, matrix, &token, out, rounds),
                    }
                    for ((out, x), skip) in out.iter_mut().zip(token.x).zip(&skip[first..]) {
                        *out += skip * x;
                    }
                }
            });
        }
    });
}

for_each_isa! {
    /// Changes the states by the token, and reads them. `rounds`: they are rounded to bf16 before.
    fn scan[exp](matrix: &mut [f32], token: &ScanToken<'_>, out: &mut [f32], rounds: bool) {
        let &ScanToken { x, steps, b, c, rate, channels } = token;
        out.fill(0.0);
        let rates = rate.chunks(channels);
        for (((states, rate), b), c) in matrix.chunks_exact_mut(out.len()).zip(rates).zip(b).zip(c) {
            let inputs = steps.iter().zip(x).zip(rate);
            for ((state, out), ((step, x), rate)) in states.iter_mut().zip(&mut *out).zip(inputs) {
                let next = *state * exp(step * rate) + step * x * b;
                *state = if rounds { stored::<true>(next) } else { next };
                *out += *state * c;
            }
        }
    }

    /// The output of states that have the token already.
    fn read(matrix: &[f32], token: &ScanToken<'_>, out: &mut [f32]) {
        out.fill(0.0);
        for (states, c) in matrix.chunks_exact(out.len()).zip(token.c) {
            states.iter().zip(&mut *out).for_each(|(state, out)| *out += *state * c);
        }
    }
}
