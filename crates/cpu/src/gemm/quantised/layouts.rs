//! The layouts of codes that kernels are compiled for. How codes become numbers is said in `avx2` and `avx512`.

use super::panels::word_codes;
use super::scales::ScaleForm;
use crate::gemm::pack::PANEL;
use offshoot_backend::quantised::CodeFormat;

/// A format of codes that is known where a kernel is compiled. `STEP` inputs of a panel lie in `BYTES` bytes.
pub trait Codes {
    const FORMAT: CodeFormat;
    /// Whether there are zero points; of a format of integers.
    const ZEROS: bool = false;
    const STEP: usize = word_codes(Self::FORMAT);
    const BYTES: usize = Self::STEP * PANEL * Self::FORMAT.bits() / 8;
    const SCALES: ScaleForm = ScaleForm::Numbers;
    /// What the numbers are too small by, a power of two: e4m3 is read as f16, which is 2^-8 of it.
    const FACTOR: f32 = if matches!(Self::FORMAT, CodeFormat::Fp8) { 256.0 } else { 1.0 };
}

pub struct Fp8;
pub struct Int8;
pub struct Int4<const ZEROS: bool>;
pub struct Mxfp4;
pub struct Nvfp4;

impl Codes for Fp8 {
    const FORMAT: CodeFormat = CodeFormat::Fp8;
}

impl Codes for Int8 {
    const FORMAT: CodeFormat = CodeFormat::Int8;
}

impl<const HAS: bool> Codes for Int4<HAS> {
    const FORMAT: CodeFormat = CodeFormat::Int4;
    const ZEROS: bool = HAS;
}

impl Codes for Mxfp4 {
    const FORMAT: CodeFormat = CodeFormat::Fp4;
    const SCALES: ScaleForm = ScaleForm::Powers;
}

impl Codes for Nvfp4 {
    const FORMAT: CodeFormat = CodeFormat::Fp4;
    const SCALES: ScaleForm = ScaleForm::E4m3;
}
