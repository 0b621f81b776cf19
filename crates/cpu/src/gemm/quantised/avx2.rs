//! Kernels for AVX2, FMA and F16C: as those for AVX-512, with two registers for the 16 outputs of a panel, and products
//! of bytes in pairs of 16 bits.

use std::arch::x86_64::*;

use super::drive::{QuantKernel, QuantKernels, QuantTile};
use super::layouts::{Codes, Fp8, Int4, Int8, Mxfp4, Nvfp4};
use super::operand::OperandForm;
use super::scales::{ScaleForm, ScalePointers};
use crate::gemm::kernel::tile_of;
use crate::gemm::pack::PANEL;
use offshoot_backend::quantised::{CodeFormat, QuantFormat};

/// The kernels that multiply numbers.
pub fn numbers(format: QuantFormat) -> QuantKernels {
    let kernel = match format.codes {
        CodeFormat::Fp8 => kernel::<Numbers<Fp8>>,
        CodeFormat::Int8 => kernel::<Numbers<Int8>>,
        // Formats without zero points too: without them all are `ZERO`.
        CodeFormat::Int4 => kernel::<Numbers<Int4<true>>>,
        CodeFormat::Fp4 if format.is_nvfp4() => kernel::<Numbers<Nvfp4>>,
        CodeFormat::Fp4 => kernel::<Numbers<Mxfp4>>,
    };
    QuantKernels { form: OperandForm::Numbers, wide: None, rows: MOST_ROWS, panels, kernel }
}

/// The kernels that multiply bytes.
pub const BYTES: QuantKernels =
    QuantKernels { form: OperandForm::Signed, wide: None, rows: MOST_ROWS, panels, kernel: kernel::<ByteDot> };

const MOST_ROWS: usize = 4;

/// 16 registers: two sums for each row and panel, and the codes and numbers of one panel.
fn panels(rows: usize) -> usize {
    if rows <= 2 { 2 } else { 1 }
}

/// A family of kernels, one for each shape that [`kernel`] lists.
trait Kernel {
    /// See [`QuantKernel`].
    ///
    /// # Safety
    /// The processor has the kernel's instruction set, and the tile's pointers are valid for its shape.
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &QuantTile);
}

/// Kernels that turn codes `C` into numbers and multiply these.
struct Numbers<C>(C);

/// The kernels that multiply codes: dot products of four bytes, whose sums are i32. A product is the weight's code
/// without its sign times the activation with that sign: a pair's sum is at most `2 * 128 * 127`, which 16 bits hold.
struct ByteDot;

/// The kernel for this many rows and panels: those that [`panels`] returns, and one panel for a remainder.
fn kernel<K: Kernel>(rows: usize, panels: usize) -> QuantKernel {
    tile_of! {
        K, rows, panels;
        1 x 1 2;
        2 x 1 2;
        3 x 1;
        4 x 1;
    }
}

/// The zero point of 4-bit integers whose format has none.
const ZERO: f32 = 8.0;

/// The codes of a step, of eight outputs.
///
/// # Safety
/// `codes` is valid for `BYTES / 2` bytes; the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn read<C: Codes>(codes: *const u8) -> __m256i {
    // SAFETY: promised by the caller.
    unsafe {
        match C::FORMAT {
            CodeFormat::Fp8 => _mm256_castsi128_si256(_mm_loadl_epi64(codes.cast())),
            CodeFormat::Int8 | CodeFormat::Int4 | CodeFormat::Fp4 => _mm256_loadu_si256(codes.cast()),
        }
    }
}

/// The scales of half `half` of a panel's outputs: of group `group` of all, and panel `panel`.
///
/// # Safety
/// The pointers are valid for so many groups and panels; the processor has AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn scales<C: Codes>(scales: &ScalePointers, group: usize, panel: usize, half: usize) -> __m256 {
    let at = group * PANEL + half * 8;
    // SAFETY: promised by the caller.
    unsafe {
        match C::SCALES {
            ScaleForm::Numbers => _mm256_loadu_ps(scales.numbers.add(at)),
            ScaleForm::Powers => {
                let exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64(scales.bytes.add(at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponents))
            }
            // As in `number`; without a sign.
            ScaleForm::E4m3 => {
                let wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(scales.bytes.add(at).cast()));
                let numbers = _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16::<7>(wide)), _mm256_set1_ps(256.0));
                _mm256_mul_ps(numbers, _mm256_loadu_ps(scales.factors.add(panel * PANEL + half * 8)))
            }
        }
    }
}

/// The numbers of the step's next input. `zero`: the zero points.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn number<C: Codes>(codes: &mut __m256i, zero: __m256) -> __m256 {
    match C::FORMAT {
        CodeFormat::Int4 => {
            let number = _mm256_cvtepi32_ps(_mm256_and_si256(*codes, _mm256_set1_epi32(15)));
            *codes = _mm256_srli_epi32::<4>(*codes);
            _mm256_sub_ps(number, zero)
        }
        // A table of eight numbers, and the sign.
        CodeFormat::Fp4 => {
            let table = _mm256_setr_ps(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0);
            let size = _mm256_permutevar8x32_ps(table, *codes);
            let sign = _mm256_slli_epi32::<28>(_mm256_and_si256(*codes, _mm256_set1_epi32(8)));
            *codes = _mm256_srli_epi32::<4>(*codes);
            _mm256_or_ps(size, _mm256_castsi256_ps(sign))
        }
        CodeFormat::Int8 => {
            let low = _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(*codes));
            *codes = _mm256_srli_epi32::<8>(*codes);
            _mm256_cvtepi32_ps(low)
        }
        // e4m3 is read as f16: its four exponent bits lie in the place of f16's five.
        CodeFormat::Fp8 => {
            let wide = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm256_castsi256_si128(*codes)));
            _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(0xbfff_u16.cast_signed())))
        }
    }
}

impl<C: Codes> Kernel for Numbers<C> {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &QuantTile) {
        let x = tile.x.cast::<f32>();
        for g in 0..tile.groups {
            let first = g * tile.group;
            let end = if g + 1 == tile.groups { tile.inputs } else { first + tile.group };
            let mut acc = [[[_mm256_setzero_ps(); 2]; PANELS]; ROWS];
            let mut zero = [[_mm256_set1_ps(ZERO); 2]; PANELS];
            if !tile.zeros.is_null() {
                for (i, zero) in zero.as_flattened_mut().iter_mut().enumerate() {
                    let at = ((i / 2) * tile.groups + g) * PANEL + i % 2 * 8;
                    // SAFETY: the tile has zero points of `PANELS` panels and `groups` groups.
                    let points = unsafe { _mm_loadl_epi64(tile.zeros.add(at).cast()) };
                    *zero = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(points));
                }
            }
            let mut k = first;
            while k < end {
                for p in 0..PANELS {
                    for half in 0..2 {
                        let at = p * tile.panel_bytes + k / C::STEP * C::BYTES + half * C::BYTES / 2;
                        // SAFETY: the tile holds the codes of `inputs` inputs of `PANELS` panels.
                        let mut codes = unsafe { read::<C>(tile.codes.add(at)) };
                        for i in 0..C::STEP {
                            let w = number::<C>(&mut codes, zero[p][half]);
                            for (r, acc) in acc.iter_mut().enumerate() {
                                // SAFETY: the tile holds `inputs` numbers of `ROWS` rows, a multiple of `STEP`.
                                let x = _mm256_set1_ps(unsafe { *x.add(r * tile.stride + k + i) });
                                acc[p][half] = _mm256_fmadd_ps(x, w, acc[p][half]);
                            }
                        }
                    }
                }
                k += C::STEP;
            }
            for (i, acc) in acc.as_flattened().as_flattened().iter().enumerate() {
                let (p, half) = (i / 2 % PANELS, i % 2);
                // SAFETY: the tile has scales of `PANELS` panels and `groups` groups, and `ROWS * PANELS` panels of
                // sums.
                unsafe {
                    let scale = scales::<C>(&tile.scales, p * tile.groups + g, p, half);
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps(C::FACTOR));
                    let sum = tile.sums.add(i * PANEL / 2);
                    let before = if g == 0 { _mm256_setzero_ps() } else { _mm256_loadu_ps(sum) };
                    _mm256_storeu_ps(sum, _mm256_fmadd_ps(*acc, scale, before));
                }
            }
        }
    }
}

impl Kernel for ByteDot {
    #[target_feature(enable = "avx2")]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &QuantTile) {
        let x = tile.x.cast::<i32>();
        let mut acc = [[[_mm256_setzero_si256(); 2]; PANELS]; ROWS];
        for word in 0..tile.inputs / 4 {
            for p in 0..PANELS {
                for half in 0..2 {
                    let at = p * tile.panel_bytes + word * 64 + half * 32;
                    // SAFETY: the tile holds the codes of `inputs` inputs of `PANELS` panels.
                    let w = unsafe { _mm256_loadu_si256(tile.codes.add(at).cast()) };
                    let size = _mm256_abs_epi8(w);
                    for (r, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: the tile holds `inputs / 4` words of `ROWS` rows.
                        let x = _mm256_set1_epi32(unsafe { *x.add(r * tile.stride + word) });
                        let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w));
                        let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                        acc[p][half] = _mm256_add_epi32(acc[p][half], fours);
                    }
                }
            }
        }
        for (i, acc) in acc.as_flattened().as_flattened().iter().enumerate() {
            // SAFETY: the tile has `ROWS * PANELS` panels of sums.
            unsafe { _mm256_storeu_si256(tile.sums.add(i * PANEL / 2).cast(), *acc) };
        }
    }
}
