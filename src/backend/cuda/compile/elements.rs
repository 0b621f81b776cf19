//! Values of the kernels' defines: names of element types, element types and row layouts of KV pages, the models for
//! which there is a Hopper kernel, and the tiles of experts' products. `units` lists which file is compiled with which values.

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

/// How a kernel cuts the products of experts into tiles, and what its launch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertTiles {
    pub kernel: ExpertKernel,
    /// The most places of a tile.
    pub cap: usize,
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Blocks per multiprocessor.
    pub blocks: u32,
}

/// A kernel that multiplies panels of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertKernel {
    /// `expert_linear_wgmma`, of Hopper.
    Wgmma,
    /// `expert_linear`, of any tensor cores.
    Mma,
}

impl ExpertTiles {
    /// Those of GPUs of compute capability `major`, rising.
    pub const fn of(major: u32) -> &'static [ExpertTiles] {
        if major == 9 { &Self::WGMMA } else { &Self::MMA }
    }

    /// Groups of 64 weights that a tile multiplies: more of them read inputs less often, but leave fewer tiles.
    const WGMMA: [Self; 2] = [Self::wgmma(64, 2, 9), Self::wgmma(192, 3, 4)];

    /// `groups` groups of 64 weights and `cap` inputs in each of `stages` stages, rows of 128 bytes; the ring is aligned to
    /// 1024. A warpgroup for each group, and one that copies.
    const fn wgmma(cap: usize, groups: usize, stages: usize) -> Self {
        let shared = stages * (groups * 64 + cap) * 128 + 1024;
        Self { kernel: ExpertKernel::Wgmma, cap, threads: 128 * (groups as u32 + 1), shared, blocks: 1 }
    }

    /// Three stages of 64 weights and 64 inputs, aligned to 128 bytes.
    const MMA: [Self; 1] =
        [Self { kernel: ExpertKernel::Mma, cap: 64, threads: 128, shared: 3 * (64 + 64) * 128 + 128, blocks: 2 }];

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self.kernel {
            ExpertKernel::Wgmma => "expert_linear_wgmma",
            ExpertKernel::Mma => "expert_linear",
        }
    }
}
