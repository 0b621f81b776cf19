//! The layouts of panels as kernels read them that widen weights to f32. The loads themselves are in `avx2` and
//! `avx512`.

use offshoot_backend::Dtype;

/// How much of a panel with weights of one dtype a kernel takes per iteration.
pub trait PanelWeights {
    const DTYPE: Dtype;
    /// Words of each row's activations, one input each: bf16 is stored in pairs of inputs.
    const WORDS: usize = if matches!(Self::DTYPE, Dtype::Bf16) { 2 } else { 1 };
    /// Bytes of the panel.
    const BYTES: usize = if matches!(Self::DTYPE, Dtype::F16) { 32 } else { 64 };
}

/// The kernels of an instruction set that widen weights `W`.
pub struct Widened<W>(W);

pub struct F32Weights;
pub struct F16Weights;
pub struct Bf16Weights;

impl PanelWeights for F32Weights {
    const DTYPE: Dtype = Dtype::F32;
}

impl PanelWeights for F16Weights {
    const DTYPE: Dtype = Dtype::F16;
}

impl PanelWeights for Bf16Weights {
    const DTYPE: Dtype = Dtype::Bf16;
}
