//! Scales of panels of 16 outputs, group by group, in as few bytes as their format has: f32; a byte for a power of two
//! (MXFP4); a byte of e4m3 and a factor of each output (NVFP4). Kernels widen 16 of them at once.

use crate::gemm::pack::PANEL;
use offshoot_backend::quantised::{CodeFormat, QuantFormat, e4m3_code, e4m3_value};

/// How scales are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleForm {
    Numbers,
    /// The exponent of an f32; that of the smallest power of e8m0 is 0, which counts as zero.
    Powers,
    /// e4m3, times a factor of the output.
    E4m3,
}

impl ScaleForm {
    /// That of a format.
    pub fn of(format: QuantFormat) -> Self {
        match format.codes {
            CodeFormat::Fp8 | CodeFormat::Int8 | CodeFormat::Int4 => ScaleForm::Numbers,
            CodeFormat::Fp4 if format.is_nvfp4() => ScaleForm::E4m3,
            CodeFormat::Fp4 => ScaleForm::Powers,
        }
    }
}

/// The scales of all panels.
pub struct CodeScales {
    form: ScaleForm,
    groups: usize,
    /// `[panels][groups][16]` of `ScaleForm::Numbers`, or empty.
    numbers: Vec<f32>,
    /// `[panels][groups][16]` of other forms, or empty.
    bytes: Vec<u8>,
    /// `[panels][16]` of `ScaleForm::E4m3`, or empty.
    factors: Vec<f32>,
}

/// The scales of some panels, as kernels read them.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "kernels are for x86"))]
#[derive(Clone, Copy)]
pub struct ScalePointers {
    /// `[panels][groups][16]`, valid in `ScaleForm::Numbers`.
    pub numbers: *const f32,
    /// `[panels][groups][16]`, valid in other forms.
    pub bytes: *const u8,
    /// `[panels][16]`, valid in `ScaleForm::E4m3`.
    pub factors: *const f32,
}

impl CodeScales {
    /// `scales`: `[panels][groups][16]`, without `factors`, `[panels][16]`.
    pub fn of(format: QuantFormat, scales: Vec<f32>, factors: Vec<f32>, groups: usize) -> Self {
        let form = ScaleForm::of(format);
        let byte = |scale: &f32| match form {
            ScaleForm::E4m3 => e4m3_code(*scale),
            ScaleForm::Numbers | ScaleForm::Powers => (scale.to_bits() >> 23) as u8,
        };
        match form {
            ScaleForm::Numbers => Self { form, groups, numbers: scales, bytes: Vec::new(), factors: Vec::new() },
            ScaleForm::Powers | ScaleForm::E4m3 => {
                let factors = if form == ScaleForm::E4m3 { factors } else { Vec::new() };
                Self { form, groups, numbers: Vec::new(), bytes: scales.iter().map(byte).collect(), factors }
            }
        }
    }

    /// The scale of group `group` and output `lane` of panel `panel`.
    pub fn get(&self, panel: usize, group: usize, lane: usize) -> f32 {
        let at = (panel * self.groups + group) * PANEL + lane;
        match self.form {
            ScaleForm::Numbers => self.numbers[at],
            ScaleForm::Powers => f32::from_bits(u32::from(self.bytes[at]) << 23),
            ScaleForm::E4m3 => e4m3_value(self.bytes[at]) * self.factors[panel * PANEL + lane],
        }
    }

    /// The scales from panel `panel` on, `[groups][16]` each; `None`: they are stored as bytes.
    pub fn numbers_from(&self, panel: usize) -> Option<&[f32]> {
        (self.form == ScaleForm::Numbers).then(|| &self.numbers[panel * self.groups * PANEL..])
    }

    /// What kernels read of `count` panels from `panel` on, all of which exist.
    pub fn pointers(&self, panel: usize, count: usize) -> ScalePointers {
        let (at, len) = (panel * self.groups * PANEL, count * self.groups * PANEL);
        let null = ScalePointers { numbers: std::ptr::null(), bytes: std::ptr::null(), factors: std::ptr::null() };
        match self.form {
            ScaleForm::Numbers => ScalePointers { numbers: self.numbers[at..][..len].as_ptr(), ..null },
            ScaleForm::Powers => ScalePointers { bytes: self.bytes[at..][..len].as_ptr(), ..null },
            ScaleForm::E4m3 => ScalePointers {
                bytes: self.bytes[at..][..len].as_ptr(),
                factors: self.factors[panel * PANEL..][..count * PANEL].as_ptr(),
                ..null
            },
        }
    }
}
