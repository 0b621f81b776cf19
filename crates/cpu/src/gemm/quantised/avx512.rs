//! Kernels for AVX-512: codes become f32 numbers in registers, 16 outputs at once, or are multiplied as bytes (VNNI). A
//! group's sums are kept in registers and scaled at its end.

use std::arch::x86_64::*;

use super::avx512_wide;
use super::drive::{QuantKernel, QuantKernels, QuantTile};
use super::layouts::{Codes, Fp8, Int4, Int8, Mxfp4, Nvfp4};
use super::operand::OperandForm;
use super::scales::{ScaleForm, ScalePointers};
use super::wide::WideKernels;
use crate::gemm::kernel::tile_of;
use crate::gemm::pack::PANEL;
use offshoot_backend::quantised::{CodeFormat, QuantFormat};

/// The kernels that multiply numbers.
pub fn numbers(format: QuantFormat) -> QuantKernels {
    fn of<C: Codes>() -> QuantKernels {
        let (step, step_bytes, factor) = (C::STEP, C::BYTES, C::FACTOR);
        let wide = WideKernels { unpack: unpack::<C>, step, step_bytes, factor, kernel: avx512_wide::kernel };
        let kernel = kernel::<Numbers<C>>;
        QuantKernels { form: OperandForm::Numbers, wide: Some(wide), rows: MOST_ROWS, panels, kernel }
    }
    match (format.codes, format.zeros) {
        (CodeFormat::Fp8, _) => of::<Fp8>(),
        (CodeFormat::Int8, _) => of::<Int8>(),
        (CodeFormat::Int4, false) => of::<Int4<false>>(),
        (CodeFormat::Int4, true) => of::<Int4<true>>(),
        (CodeFormat::Fp4, _) if format.is_nvfp4() => of::<Nvfp4>(),
        (CodeFormat::Fp4, _) => of::<Mxfp4>(),
    }
}

/// See [`WideKernels::unpack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn unpack<C: Codes>(codes: *const u8, zeros: *const u8, inputs: usize, to: *mut f32) {
    let mut zero = _mm512_setzero_ps();
    if !zeros.is_null() {
        // SAFETY: the caller promises 16 zero points.
        zero = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(zeros.cast()) }));
    }
    for step in 0..inputs / C::STEP {
        // SAFETY: the caller promises the codes of `inputs` inputs, whole steps, and room for their numbers.
        unsafe {
            let at = codes.add(step * C::BYTES);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD * 64).cast());
            let mut codes = read::<C>(at);
            for i in 0..C::STEP {
                _mm512_storeu_ps(to.add((step * C::STEP + i) * PANEL), number::<C>(&mut codes, zero));
            }
        }
    }
}

/// The kernels that multiply bytes, which need VNNI.
pub const BYTES: QuantKernels =
    QuantKernels { form: OperandForm::Offset, wide: None, rows: MOST_ROWS, panels, kernel: kernel::<ByteDot> };

const MOST_ROWS: usize = 12;

/// 32 registers: `rows * panels` sums, and for each panel its numbers and codes.
fn panels(rows: usize) -> usize {
    match rows {
        0..=4 => 4,
        5..=6 => 3,
        _ => 2,
    }
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

/// The kernels that multiply codes: dot products of four bytes, whose sums are i32.
struct ByteDot;

/// The kernel for this many rows and panels: those that [`panels`] returns, and those of remainders.
fn kernel<K: Kernel>(rows: usize, panels: usize) -> QuantKernel {
    tile_of! {
        K, rows, panels;
        1 x 1 4;
        2 x 1 4;
        3 x 1 4;
        4 x 1 4;
        5 x 1 3;
        6 x 1 2 3;
        7 x 1 2;
        8 x 1 2;
        9 x 1 2;
        10 x 1 2;
        11 x 1 2;
        12 x 1 2;
    }
}

/// Sixteen f32 numbers by 4-bit code.
#[inline]
#[target_feature(enable = "avx512f")]
fn lookup(codes: &mut __m512i, table: &[f32; 16]) -> __m512 {
    // SAFETY: the table has 16 numbers. Of each index the permutation reads the low four bits.
    let numbers = _mm512_permutexvar_ps(*codes, unsafe { _mm512_loadu_ps(table.as_ptr()) });
    *codes = _mm512_srli_epi32::<4>(*codes);
    numbers
}

/// The codes of a step.
///
/// # Safety
/// `codes` is valid for `BYTES` bytes; the processor has AVX-512 F and BW.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn read<C: Codes>(codes: *const u8) -> __m512i {
    // SAFETY: promised by the caller.
    unsafe {
        match C::FORMAT {
            CodeFormat::Fp8 => _mm512_castsi128_si512(_mm_loadu_si128(codes.cast())),
            CodeFormat::Int8 | CodeFormat::Int4 | CodeFormat::Fp4 => _mm512_loadu_si512(codes.cast()),
        }
    }
}

/// The scales of a panel's outputs: of group `group` of all, and panel `panel`.
///
/// # Safety
/// The pointers are valid for so many groups and panels; the processor has AVX-512 F and BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn scales<C: Codes>(scales: &ScalePointers, group: usize, panel: usize) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe {
        match C::SCALES {
            ScaleForm::Numbers => _mm512_loadu_ps(scales.numbers.add(group * PANEL)),
            ScaleForm::Powers => {
                let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(scales.bytes.add(group * PANEL).cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponents))
            }
            // As in `number`; without a sign.
            ScaleForm::E4m3 => {
                let wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(scales.bytes.add(group * PANEL).cast()));
                let numbers = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16::<7>(wide)), _mm512_set1_ps(256.0));
                _mm512_mul_ps(numbers, _mm512_loadu_ps(scales.factors.add(panel * PANEL)))
            }
        }
    }
}

/// The numbers of the step's next input. `zero`: the zero points.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn number<C: Codes>(codes: &mut __m512i, zero: __m512) -> __m512 {
    const FROM_0: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    const FROM_MINUS_8: [f32; 16] = [-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.];
    const E2M1: [f32; 16] = [0., 0.5, 1., 1.5, 2., 3., 4., 6., -0., -0.5, -1., -1.5, -2., -3., -4., -6.];
    match C::FORMAT {
        CodeFormat::Int4 if C::ZEROS => _mm512_sub_ps(lookup(codes, &FROM_0), zero),
        CodeFormat::Int4 => lookup(codes, &FROM_MINUS_8),
        CodeFormat::Fp4 => lookup(codes, &E2M1),
        CodeFormat::Int8 => {
            let low = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(*codes));
            *codes = _mm512_srli_epi32::<8>(*codes);
            _mm512_cvtepi32_ps(low)
        }
        // e4m3 is read as f16: its four exponent bits lie in the place of f16's five.
        CodeFormat::Fp8 => {
            let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm512_castsi512_si128(*codes)));
            _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(0xbfff_u16.cast_signed())))
        }
    }
}

/// Lines ahead of the codes in use that are prefetched.
const AHEAD: usize = 16;

/// The bytes from codes at byte `at` of a panel to those to prefetch: further in the panel or, at its end, in the panel
/// that the next call begins with.
#[inline(always)]
fn ahead(at: usize, panel_bytes: usize, panels: usize) -> usize {
    let next = at + AHEAD * 64;
    if next < panel_bytes { next } else { next + (panels - 1) * panel_bytes }
}

impl<C: Codes> Kernel for Numbers<C> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &QuantTile) {
        let x = tile.x.cast::<f32>();
        for g in 0..tile.groups {
            let first = g * tile.group;
            let end = if g + 1 == tile.groups { tile.inputs } else { first + tile.group };
            let mut acc = [[_mm512_setzero_ps(); PANELS]; ROWS];
            let mut zero = [_mm512_setzero_ps(); PANELS];
            if !tile.zeros.is_null() {
                for (p, zero) in zero.iter_mut().enumerate() {
                    // SAFETY: the tile has zero points of `PANELS` panels and `groups` groups.
                    let points = unsafe { _mm_loadu_si128(tile.zeros.add((p * tile.groups + g) * PANEL).cast()) };
                    *zero = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(points));
                }
            }
            let mut k = first;
            while k < end {
                let at = k / C::STEP * C::BYTES;
                let mut codes = [_mm512_setzero_si512(); PANELS];
                for (p, codes) in codes.iter_mut().enumerate() {
                    // SAFETY: the tile holds the codes of `inputs` inputs of `PANELS` panels.
                    *codes = unsafe { read::<C>(tile.codes.add(p * tile.panel_bytes + at)) };
                    if at.is_multiple_of(64) {
                        let next = p * tile.panel_bytes + ahead(at, tile.panel_bytes, PANELS);
                        _mm_prefetch::<_MM_HINT_T0>(tile.codes.wrapping_add(next).cast());
                    }
                }
                for i in 0..C::STEP {
                    let mut w = [_mm512_setzero_ps(); PANELS];
                    for p in 0..PANELS {
                        w[p] = number::<C>(&mut codes[p], zero[p]);
                    }
                    for (r, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: the tile holds `inputs` numbers of `ROWS` rows, `inputs` a multiple of `STEP`.
                        let x = _mm512_set1_ps(unsafe { *x.add(r * tile.stride + k + i) });
                        for (acc, w) in acc.iter_mut().zip(&w) {
                            *acc = _mm512_fmadd_ps(x, *w, *acc);
                        }
                    }
                }
                k += C::STEP;
            }
            for p in 0..PANELS {
                // SAFETY: the tile has scales of `PANELS` panels and `groups` groups.
                let scale = unsafe { scales::<C>(&tile.scales, p * tile.groups + g, p) };
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(C::FACTOR));
                for (r, acc) in acc.iter().enumerate() {
                    // SAFETY: the tile has `ROWS * PANELS` registers of sums.
                    unsafe {
                        let sum = tile.sums.add((r * PANELS + p) * PANEL);
                        let before = if g == 0 { _mm512_setzero_ps() } else { _mm512_loadu_ps(sum) };
                        _mm512_storeu_ps(sum, _mm512_fmadd_ps(acc[p], scale, before));
                    }
                }
            }
        }
    }
}

impl Kernel for ByteDot {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &QuantTile) {
        let x = tile.x.cast::<i32>();
        let mut acc = [[_mm512_setzero_si512(); PANELS]; ROWS];
        for word in 0..tile.inputs / 4 {
            let mut w = [_mm512_setzero_si512(); PANELS];
            for (p, w) in w.iter_mut().enumerate() {
                // SAFETY: the tile holds the codes of `inputs` inputs of `PANELS` panels.
                *w = unsafe { _mm512_loadu_si512(tile.codes.add(p * tile.panel_bytes + word * 64).cast()) };
                let next = p * tile.panel_bytes + ahead(word * 64, tile.panel_bytes, PANELS);
                _mm_prefetch::<_MM_HINT_T0>(tile.codes.wrapping_add(next).cast());
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: the tile holds `inputs / 4` words of `ROWS` rows.
                let x = _mm512_set1_epi32(unsafe { *x.add(r * tile.stride + word) });
                for (acc, w) in acc.iter_mut().zip(&w) {
                    *acc = _mm512_dpbusd_epi32(*acc, x, *w);
                }
            }
        }
        for (i, acc) in acc.as_flattened().iter().enumerate() {
            // SAFETY: the tile has `ROWS * PANELS` registers of sums.
            unsafe { _mm512_storeu_si512(tile.sums.add(i * PANEL).cast(), *acc) };
        }
    }
}
