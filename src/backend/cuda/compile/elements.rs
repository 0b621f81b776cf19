//! What the defines of kernels take as values: names of element types, what the elements of KV pages are, how their
//! rows lie, and for which models there is a kernel of Hopper's own. Which file is compiled with which of them is
//! listed in `units`.

use crate::backend::cuda::discovery::probe::DeviceFacts;
use crate::backend::{Dtype, KvDtype};

/// What kernels call an element type.
pub fn element_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "f32",
        Dtype::F16 => "f16",
        Dtype::Bf16 => "bf16",
    }
}

/// Whether Hopper has a kernel of its own for a model with weights of `element`, `tree_attention_wgmma`: it reads
/// swizzled pages ([`PageLayout`]), also of fp8.
pub fn has_wgmma(element: Dtype, head_dim: usize) -> bool {
    element != Dtype::F32 && matches!(head_dim, 64 | 128)
}

/// What the elements of pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvElement {
    /// Of the weights' dtype.
    Plain,
    /// The same, rounded to e4m3: nothing here reads less.
    Rounded,
    /// e4m3, a byte each.
    Fp8,
}

impl KvElement {
    /// On such a device, in a model with weights of `dtype`.
    pub fn of(kv: KvDtype, facts: &DeviceFacts, dtype: Dtype, head_dim: usize) -> Self {
        match kv {
            KvDtype::Model => KvElement::Plain,
            KvDtype::Fp8 if PageLayout::of(facts.major, dtype, head_dim) == PageLayout::Swizzled => KvElement::Fp8,
            KvDtype::Fp8 => KvElement::Rounded,
        }
    }

    pub fn element_bytes(self, dtype: Dtype) -> usize {
        match self {
            KvElement::Plain | KvElement::Rounded => dtype.bytes(),
            KvElement::Fp8 => 1,
        }
    }
}

/// How the rows of a page lie (kernels/kv_page.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageLayout {
    /// One element after the other.
    Plain,
    /// With the 16-byte chunks of 128 bytes in an order that the slot decides: as tree_attention_wgmma wants them in
    /// shared memory, which reads no others.
    Swizzled,
}

impl PageLayout {
    /// On devices of compute capability `major`, in a model with weights of `dtype`.
    pub fn of(major: u32, dtype: Dtype, head_dim: usize) -> Self {
        if major == 9 && has_wgmma(dtype, head_dim) { PageLayout::Swizzled } else { PageLayout::Plain }
    }
}
