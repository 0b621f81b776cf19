//! Values of the kernels' defines: names of element types, element types and row layouts of KV pages, and the models
//! for which there is a Hopper kernel. `units` lists which file is compiled with which values.

use crate::backend::cuda::discovery::probe::DeviceFacts;
use crate::backend::{Dtype, KvDtype};

/// The kernels' name of an element type.
pub fn element_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "f32",
        Dtype::F16 => "f16",
        Dtype::Bf16 => "bf16",
    }
}

/// Whether a model with weights of `element` uses the Hopper kernel `tree_attention_wgmma`, which reads swizzled pages
/// ([`PageLayout`]), also of fp8.
pub fn has_wgmma(element: Dtype, head_dim: usize) -> bool {
    element != Dtype::F32 && matches!(head_dim, 64 | 128)
}

/// Element type of KV pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvElement {
    /// The weights' dtype.
    Plain,
    /// The weights' dtype, rounded to e4m3: for kernels that cannot read e4m3.
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

/// Row layout of a page (kernels/kv_page.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageLayout {
    /// Elements in order.
    Plain,
    /// The 16-byte chunks of each 128 bytes permuted by the slot, as tree_attention_wgmma needs them in shared memory;
    /// it reads no other layout.
    Swizzled,
}

impl PageLayout {
    /// On devices of compute capability `major`, in a model with weights of `dtype`.
    pub fn of(major: u32, dtype: Dtype, head_dim: usize) -> Self {
        if major == 9 && has_wgmma(dtype, head_dim) { PageLayout::Swizzled } else { PageLayout::Plain }
    }
}
