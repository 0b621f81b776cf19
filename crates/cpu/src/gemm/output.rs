//! What becomes of a linear layer's sums: bias and residual.

use crate::Isa;
use crate::rows::for_each_isa;
use offshoot_backend::OutputMode;

for_each_isa! {
    /// `out = sums (+ bias)` or `out += sums (+ bias)`.
    pub fn finish(out: &mut [f32], sums: &[f32], bias: Option<&[f32]>, mode: OutputMode) {
        match (bias, mode) {
            (None, OutputMode::Replace) => out.copy_from_slice(sums),
            (None, OutputMode::Add) => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
            (Some(bias), OutputMode::Replace) => {
                out.iter_mut().zip(sums).zip(bias).for_each(|((out, sum), b)| *out = sum + b)
            }
            (Some(bias), OutputMode::Add) => {
                out.iter_mut().zip(sums).zip(bias).for_each(|((out, sum), b)| *out += sum + b)
            }
        }
    }
}
