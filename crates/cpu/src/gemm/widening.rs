//! The layouts of panels as kernels read them that widen weights to f32. The loads themselves are in `avx2` and
//! `avx512`.

/// How much of a panel with weights of one dtype a kernel takes per iteration.
pub trait PanelWeights {
    /// Words of each row's activations, one input each.
    const WORDS: usize;
    /// Bytes of the panel.
    const BYTES: usize;
}

pub struct F32Weights;
pub struct F16Weights;
/// Stored in pairs of inputs.
pub struct Bf16Weights;

impl PanelWeights for F32Weights {
    const WORDS: usize = 1;
    const BYTES: usize = 64;
}

impl PanelWeights for F16Weights {
    const WORDS: usize = 1;
    const BYTES: usize = 32;
}

impl PanelWeights for Bf16Weights {
    const WORDS: usize = 2;
    const BYTES: usize = 64;
}
