//! Values of the defines of kernels/four_bit: which 4-bit formats there are kernels for, how their panels lie in
//! memory, and how products of experts, and those of GPUs before Hopper, are cut into tiles. Layers on Hopper:
//! `four_bit_layers`.

use offshoot_backend::quantised::NVFP4_GROUP;
use offshoot_backend::{CodeFormat, QuantFormat, WeightFormat};

/// What the codes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FourBitCodes {
    /// Integers less a zero point, a scale in f32.
    Int4,
    /// e2m1. In groups of 32 with powers of two as scales (MXFP4); in groups of 16 with e4m3 scales and a factor of
    /// each output (NVFP4).
    Fp4,
}

/// A 4-bit format as the kernels read it (kernels/four_bit/panels.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FourBit {
    pub codes: FourBitCodes,
    /// Inputs that share a scale in a panel: 16, 32, 64 or 128.
    pub group: usize,
}

impl FourBit {
    pub const ALL: [Self; 5] = [
        Self { codes: FourBitCodes::Int4, group: 32 },
        Self { codes: FourBitCodes::Int4, group: 64 },
        Self { codes: FourBitCodes::Int4, group: 128 },
        Self { codes: FourBitCodes::Fp4, group: 32 },
        Self { codes: FourBitCodes::Fp4, group: NVFP4_GROUP as usize },
    ];

    /// Inputs and outputs of a panel.
    pub const INPUTS: usize = 128;
    pub const OUTPUTS: usize = 64;

    /// The one that holds matrices of `format`.
    pub fn of(format: QuantFormat) -> Option<Self> {
        let group = format.four_bit_group()?;
        let codes = if format.codes == CodeFormat::Fp4 { FourBitCodes::Fp4 } else { FourBitCodes::Int4 };
        Some(Self { codes, group })
    }

    /// The one that holds matrices of these weights, if kernels/four_bit multiplies them.
    pub fn of_weights(format: WeightFormat) -> Option<Self> {
        match format {
            WeightFormat::Quantised(format) => Self::of(format),
            WeightFormat::Dense(_) | WeightFormat::Blocks(_) => None,
        }
    }

    /// Groups of a panel.
    pub const fn groups(self) -> usize {
        Self::INPUTS / self.group
    }

    /// Where the scales of a panel are.
    pub const SCALES_AT: usize = Self::INPUTS * Self::OUTPUTS / 2;

    pub const fn scale_bytes(self) -> usize {
        match self.codes {
            FourBitCodes::Int4 => 4,
            FourBitCodes::Fp4 => 1,
        }
    }

    /// Where the zero points of a panel are, or its end.
    pub const fn zeros_at(self) -> usize {
        Self::SCALES_AT + self.groups() * Self::OUTPUTS * self.scale_bytes()
    }

    pub const fn panel_bytes(self) -> usize {
        match self.codes {
            FourBitCodes::Int4 => self.zeros_at() + self.groups() * Self::OUTPUTS,
            FourBitCodes::Fp4 => self.zeros_at(),
        }
    }

    /// Whether each output has a factor, an f32 behind the panels of 64 outputs.
    pub const fn has_factors(self) -> bool {
        matches!(self, Self { codes: FourBitCodes::Fp4, group } if group == NVFP4_GROUP as usize)
    }

    /// Where the factors of 64 outputs are, from their first panel on.
    pub const fn factors_at(self, inner: usize) -> usize {
        inner.div_ceil(Self::INPUTS) * self.panel_bytes()
    }

    /// Bytes of the panels of 64 outputs, and their factors.
    pub const fn group_bytes(self, inner: usize) -> usize {
        self.factors_at(inner) + if self.has_factors() { Self::OUTPUTS * 4 } else { 0 }
    }

    /// Bytes of a stage of Hopper's kernels: inputs of `cap` rows, and panels of codes of `groups` times 64 outputs.
    pub const fn stage_bytes(self, cap: usize, groups: usize) -> usize {
        (cap * 256 + groups * self.panel_bytes()).next_multiple_of(1024)
    }

    /// Stages of such kernels that fit into `bytes`. More than 24 hide no more latency.
    pub const fn stages(self, bytes: usize, cap: usize, groups: usize) -> usize {
        let fit = bytes / self.stage_bytes(cap, groups);
        if fit < 24 { fit } else { 24 }
    }

    /// Bytes of a matrix.
    pub const fn bytes(self, outputs: usize, inner: usize) -> usize {
        outputs.div_ceil(Self::OUTPUTS) * self.group_bytes(inner)
    }
}

/// A kernel that multiplies panels of 4-bit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FourBitKernel {
    /// `expert_linear_4bit_wgmma`, of Hopper.
    Wgmma,
    /// `linear_4bit`, of any tensor cores.
    Mma,
}

/// How a kernel cuts products into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FourBitTiles {
    pub kernel: FourBitKernel,
    /// The most rows of a tile.
    pub cap: usize,
    /// Warpgroups with outputs of their own, 64 each.
    pub groups: usize,
    /// Warpgroups that share outputs.
    pub splits: usize,
}

impl FourBitTiles {
    /// For few rows of few experts, for few rows of all, for more, and for many.
    const WGMMA: [Self; 4] =
        [Self::wgmma(32, 2, 2), Self::wgmma(32, 4, 1), Self::wgmma(64, 3, 1), Self::wgmma(128, 3, 1)];

    const MMA: [Self; 1] = [Self { kernel: FourBitKernel::Mma, cap: 64, groups: 1, splits: 1 }];

    /// Bytes of shared memory that a block of Hopper may have beside barriers and the table of experts.
    const MOST_SHARED: usize = 217 * 1024;

    /// Bytes of the ring of `linear_4bit`.
    pub const RING: usize = 64 * 1024;

    const fn wgmma(cap: usize, groups: usize, splits: usize) -> Self {
        Self { kernel: FourBitKernel::Wgmma, cap, groups, splits }
    }

    /// The tiles of GPUs of compute capability `major`, by rising `cap`.
    pub const fn of(major: u32) -> &'static [Self] {
        if major == 9 { &Self::WGMMA } else { &Self::MMA }
    }

    /// The kernel's name.
    pub const fn name(self) -> &'static str {
        match self.kernel {
            FourBitKernel::Wgmma => "expert_linear_4bit_wgmma",
            FourBitKernel::Mma => "linear_4bit",
        }
    }

    pub const fn threads(self) -> u32 {
        match self.kernel {
            FourBitKernel::Wgmma => 128 * (self.groups * self.splits + 1) as u32,
            FourBitKernel::Mma => 128,
        }
    }

    /// Blocks per multiprocessor.
    pub const fn blocks(self) -> u32 {
        match self.kernel {
            FourBitKernel::Wgmma => 1,
            FourBitKernel::Mma => 2,
        }
    }

    /// Bytes in which splits pass on their sums.
    const fn split_bytes(self) -> usize {
        (self.splits - 1) * self.groups * self.cap / 2 * 128 * 4
    }

    /// Stages of the ring of `expert_linear_4bit_wgmma`, which is aligned to 1024.
    pub const fn stages(self, format: FourBit) -> usize {
        format.stages(Self::MOST_SHARED - 1024 - self.split_bytes(), self.cap, self.groups)
    }

    /// Bytes of dynamic shared memory.
    pub const fn shared(self, format: FourBit) -> usize {
        match self.kernel {
            FourBitKernel::Wgmma => {
                self.stages(format) * format.stage_bytes(self.cap, self.groups) + self.split_bytes() + 1024
            }
            FourBitKernel::Mma => Self::RING + 128,
        }
    }

    pub const fn outputs(self) -> usize {
        64 * self.groups
    }

    /// Tiles of one matrix.
    pub const fn count(self, rows: usize, outputs: usize) -> usize {
        rows.div_ceil(self.cap) * outputs.div_ceil(self.outputs())
    }

    /// The tiles of a layer before Hopper.
    pub const fn of_layer() -> Self {
        Self::MMA[0]
    }

    /// The tiles of GPUs of compute capability `major` for so many places of experts, of which each has at most `most`,
    /// on `multiprocessors`. If `batch_invariant`, a place's sums are the same for any number of rows.
    pub fn of_experts(major: u32, places: ExpertLoad, multiprocessors: usize, batch_invariant: bool) -> Self {
        if major != 9 {
            return Self::MMA[0];
        }
        let [few, wide, more, many] = Self::WGMMA;
        let ExpertLoad { experts, outputs, .. } = places;
        // Rows choose experts unevenly (H100, benches/runs/2026-11-26-h200-four-bit-2).
        match places.places.div_ceil(experts).min(places.most) {
            // Only tiles without splits add up in one order.
            ..=12 if batch_invariant => wide,
            ..=12 if experts.min(places.places) * outputs.div_ceil(wide.outputs()) < multiprocessors => few,
            ..=12 => wide,
            13..=96 => more,
            _ => many,
        }
    }
}

/// Places of experts that one launch multiplies, and outputs of each.
#[derive(Clone, Copy, Debug)]
pub struct ExpertLoad {
    pub experts: usize,
    pub places: usize,
    /// The most places that an expert may have.
    pub most: usize,
    pub outputs: usize,
}
