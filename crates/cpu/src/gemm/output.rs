//! What becomes of a linear layer's sums: bias and residual.

use crate::Isa;
use crate::rows::for_each_isa;

/// Whether a linear layer replaces its output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    Replace,
    Add,
}

impl OutputMode {
    /// Replaces `out` by `y`, or adds `y` to it.
    #[inline(always)]
    pub fn put(self, out: &mut f32, y: f32) {
        match self {
            OutputMode::Replace => *out = y,
            OutputMode::Add => *out += y,
        }
    }
}

for_each_isa! {
    /// `out = sums (+ bias)` or `out += sums (+ bias)`.
    pub fn finish(out: &mut [f32], sums: &[f32], bias: Option<&[f32]>, mode: OutputMode) = finish_loop;
}

#[inline(always)]
fn finish_loop(out: &mut [f32], sums: &[f32], bias: Option<&[f32]>, mode: OutputMode) {
    match (bias, mode) {
        (None, OutputMode::Replace) => out.copy_from_slice(sums),
        (None, OutputMode::Add) => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
        (Some(bias), OutputMode::Replace) => {
            out.iter_mut().zip(sums).zip(bias).for_each(|((out, sum), b)| *out = sum + b)
        }
        (Some(bias), OutputMode::Add) => out.iter_mut().zip(sums).zip(bias).for_each(|((out, sum), b)| *out += sum + b),
    }
}
