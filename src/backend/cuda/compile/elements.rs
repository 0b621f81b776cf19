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

/// The kernels of tree attention for Hopper. They read swizzled pages ([`PageLayout`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopperKernel {
    /// `tree_attention_wgmma`: heads of 64, 80, 96 or 128.
    Wgmma,
    /// `tree_attention_large`: heads of 256 or 512.
    Large,
}

impl HopperKernel {
    /// The one for a model with weights of `element`, if there is one.
    pub fn of(element: Dtype, head_dim: usize) -> Option<Self> {
        match head_dim {
            _ if element == Dtype::F32 => None,
            64 | 80 | 96 | 128 => Some(HopperKernel::Wgmma),
            256 | 512 => Some(HopperKernel::Large),
            _ => None,
        }
    }

    /// Whether it reads pages of fp8 with heads of that size.
    fn reads_fp8(self, head_dim: usize) -> bool {
        self == HopperKernel::Wgmma && matches!(head_dim, 64 | 128)
    }
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
            KvDtype::Fp8 if facts.major == 9 && Self::is_fp8_read(dtype, head_dim) => KvElement::Fp8,
            KvDtype::Fp8 => KvElement::Rounded,
        }
    }

    /// Whether a Hopper kernel reads fp8 in a model with weights of `dtype`.
    pub fn is_fp8_read(dtype: Dtype, head_dim: usize) -> bool {
        HopperKernel::of(dtype, head_dim).is_some_and(|kernel| kernel.reads_fp8(head_dim))
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
    /// The 16-byte chunks of each 128 bytes permuted by the slot, and rows of more than 256 bytes in panels of 128, as the
    /// kernels for Hopper need them in shared memory; they read no other layout.
    Swizzled,
}

impl PageLayout {
    /// On devices of compute capability `major`, in a model with weights of `dtype`.
    pub fn of(major: u32, dtype: Dtype, head_dim: usize) -> Self {
        if major == 9 && HopperKernel::of(dtype, head_dim).is_some() { PageLayout::Swizzled } else { PageLayout::Plain }
    }
}
