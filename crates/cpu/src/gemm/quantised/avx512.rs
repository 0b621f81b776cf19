//! Kernels for AVX-512: codes become f32 numbers in registers, 16 outputs at once, or are multiplied as bytes (VNNI). A
//! group's sums are kept in registers and scaled at its end.

use std::arch::x86_64::*;

use super::avx512_wide;
use super::drive::{QuantKernel, QuantKernels, QuantTile};
use super::operand::OperandForm;
use super::wide::WideKernels;
use crate::gemm::pack::PANEL;
use offshoot_backend::quantised::{CodeFormat, QuantFormat};

/// The kernels that multiply numbers.
pub fn numbers(format: QuantFormat) -> QuantKernels {
    QuantKernels {
        form: OperandForm::Numbers,
        wide: Some(wide(format)),
        rows: MOST_ROWS,
        panels,
        kernel: match (format.codes, format.zeros) {
            (CodeFormat::Fp8, _) => kernel::<Fp8>,
            (CodeFormat::Int8, _) => kernel::<Int8>,
            (CodeFormat::Int4, false) => kernel::<Nibbles<false>>,
            (CodeFormat::Int4, true) => kernel::<Nibbles<true>>,
            (CodeFormat::Fp4, _) => kernel::<Fp4>,
        },
    }
}

/// The kernels for many rows.
fn wide(format: QuantFormat) -> WideKernels {
    fn of<D: Decode>() -> WideKernels {
        let (step, step_bytes, factor) = (D::STEP, D::BYTES, D::FACTOR);
        WideKernels { unpack: unpack::<D>, step, step_bytes, factor, kernel: avx512_wide::kernel }
    }
    match (format.codes, format.zeros) {
        (CodeFormat::Fp8, _) => of::<Fp8>(),
        (CodeFormat::Int8, _) => of::<Int8>(),
        (CodeFormat::Int4, false) => of::<Nibbles<false>>(),
        (CodeFormat::Int4, true) => of::<Nibbles<true>>(),
        (CodeFormat::Fp4, _) => of::<Fp4>(),
    }
}

/// See [`WideKernels::unpack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn unpack<D: Decode>(codes: *const u8, zeros: *const u8, inputs: usize, to: *mut f32) {
    let mut zero = _mm512_setzero_ps();
    if !zeros.is_null() {
        // SAFETY: the caller promises 16 zero points.
        zero = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(zeros.cast()) }));
    }
    for step in 0..inputs / D::STEP {
        // SAFETY: the caller promises the codes of `inputs` inputs, whole steps, and room for their numbers.
        unsafe {
            let at = codes.add(step * D::BYTES);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD * 64).cast());
            let mut codes = D::read(at);
            for i in 0..D::STEP {
                _mm512_storeu_ps(to.add((step * D::STEP + i) * PANEL), D::number(&mut codes, i, zero));
            }
        }
    }
}

/// The kernels that multiply bytes, which need VNNI.
pub const BYTES: QuantKernels = QuantKernels {
    form: OperandForm::Offset,
    wide: None,
    rows: MOST_ROWS,
    panels,
    kernel: |rows, panels| dot_kernel(rows, panels),
};

const MOST_ROWS: usize = 12;

/// 32 registers: `rows * panels` sums, and for each panel its numbers and codes.
fn panels(rows: usize) -> usize {
    match rows {
        0..=4 => 4,
        5..=6 => 3,
        _ => 2,
    }
}

macro_rules! one_of {
    ($rows:ident, $panels:ident, $tile:ident $(, $d:ty)?) => {
        one_of!(@ $rows, $panels, $tile [$($d)?]
            1 1, 1 4, 2 1, 2 4, 3 1, 3 4, 4 1, 4 4, 5 1, 5 3, 6 1, 6 2, 6 3,
            7 1, 7 2, 8 1, 8 2, 9 1, 9 2, 10 1, 10 2, 11 1, 11 2, 12 1, 12 2)
    };
    (@ $rows:ident, $panels:ident, $tile:ident [] $($r:literal $p:literal),+) => {
        match ($rows, $panels) {
            $(($r, $p) => $tile::<$r, $p>,)+
            _ => unreachable!("no kernel for {} rows and {} panels", $rows, $panels),
        }
    };
    (@ $rows:ident, $panels:ident, $tile:ident [$d:ty] $($r:literal $p:literal),+) => {
        match ($rows, $panels) {
            $(($r, $p) => $tile::<$d, $r, $p>,)+
            _ => unreachable!("no kernel for {} rows and {} panels", $rows, $panels),
        }
    };
}

fn kernel<D: Decode>(rows: usize, panels: usize) -> QuantKernel {
    one_of!(rows, panels, tile, D)
}

fn dot_kernel(rows: usize, panels: usize) -> QuantKernel {
    one_of!(rows, panels, dot_tile)
}

/// How a format's codes become numbers. `STEP` inputs of a panel lie in `BYTES` bytes.
trait Decode {
    const STEP: usize;
    const BYTES: usize;
    /// What the numbers are too small by, a power of two.
    const FACTOR: f32 = 1.0;

    /// The codes of a step.
    ///
    /// # Safety
    /// `codes` is valid for `BYTES` bytes; the processor has AVX-512 F and BW.
    unsafe fn read(codes: *const u8) -> __m512i;
    /// The numbers of the step's input `i`; called in rising order of `i`. `zero`: the zero points.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW and VL.
    unsafe fn number(codes: &mut __m512i, i: usize, zero: __m512) -> __m512;
}

/// Sixteen f32 numbers by 4-bit code.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn lookup(codes: &mut __m512i, table: &[f32; 16]) -> __m512 {
    // SAFETY: the table has 16 numbers. Of each index the permutation reads the low four bits.
    let numbers = _mm512_permutexvar_ps(*codes, unsafe { _mm512_loadu_ps(table.as_ptr()) });
    *codes = _mm512_srli_epi32::<4>(*codes);
    numbers
}

/// 4-bit integers, with or without zero points.
struct Nibbles<const ZEROS: bool>;

impl<const ZEROS: bool> Decode for Nibbles<ZEROS> {
    const STEP: usize = 8;
    const BYTES: usize = 64;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn read(codes: *const u8) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_loadu_si512(codes.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn number(codes: &mut __m512i, _: usize, zero: __m512) -> __m512 {
        const FROM_0: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
        const FROM_MINUS_8: [f32; 16] = [-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.];
        // SAFETY: promised by the caller.
        unsafe { if ZEROS { _mm512_sub_ps(lookup(codes, &FROM_0), zero) } else { lookup(codes, &FROM_MINUS_8) } }
    }
}

/// e2m1.
struct Fp4;

impl Decode for Fp4 {
    const STEP: usize = 8;
    const BYTES: usize = 64;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn read(codes: *const u8) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_loadu_si512(codes.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn number(codes: &mut __m512i, _: usize, _: __m512) -> __m512 {
        const E2M1: [f32; 16] = [0., 0.5, 1., 1.5, 2., 3., 4., 6., -0., -0.5, -1., -1.5, -2., -3., -4., -6.];
        // SAFETY: promised by the caller.
        unsafe { lookup(codes, &E2M1) }
    }
}

/// Bytes as f32.
struct Int8;

impl Decode for Int8 {
    const STEP: usize = 4;
    const BYTES: usize = 64;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn read(codes: *const u8) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_loadu_si512(codes.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn number(codes: &mut __m512i, _: usize, _: __m512) -> __m512 {
        let low = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(*codes));
        *codes = _mm512_srli_epi32::<8>(*codes);
        _mm512_cvtepi32_ps(low)
    }
}

/// e4m3 by way of f16: with four exponent bits at the place of f16's five, a number is 2^-8 of itself.
struct Fp8;

impl Decode for Fp8 {
    const STEP: usize = 1;
    const BYTES: usize = 16;
    const FACTOR: f32 = 256.0;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn read(codes: *const u8) -> __m512i {
        // SAFETY: promised by the caller.
        _mm512_castsi128_si512(unsafe { _mm_loadu_si128(codes.cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn number(codes: &mut __m512i, _: usize, _: __m512) -> __m512 {
        let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm512_castsi512_si128(*codes)));
        _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(0xbfff_u16.cast_signed())))
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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn tile<D: Decode, const ROWS: usize, const PANELS: usize>(tile: &QuantTile) {
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
            let at = k / D::STEP * D::BYTES;
            let mut codes = [_mm512_setzero_si512(); PANELS];
            for (p, codes) in codes.iter_mut().enumerate() {
                // SAFETY: the tile holds the codes of `inputs` inputs of `PANELS` panels.
                *codes = unsafe { D::read(tile.codes.add(p * tile.panel_bytes + at)) };
                if at.is_multiple_of(64) {
                    let next = p * tile.panel_bytes + ahead(at, tile.panel_bytes, PANELS);
                    _mm_prefetch::<_MM_HINT_T0>(tile.codes.wrapping_add(next).cast());
                }
            }
            for i in 0..D::STEP {
                let mut w = [_mm512_setzero_ps(); PANELS];
                for p in 0..PANELS {
                    // SAFETY: the processor has the instructions, as the tile's caller promises.
                    w[p] = unsafe { D::number(&mut codes[p], i, zero[p]) };
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: the tile holds `inputs` numbers of `ROWS` rows, `inputs` a multiple of `STEP`.
                    let x = _mm512_set1_ps(unsafe { *x.add(r * tile.stride + k + i) });
                    for (acc, w) in acc.iter_mut().zip(&w) {
                        *acc = _mm512_fmadd_ps(x, *w, *acc);
                    }
                }
            }
            k += D::STEP;
        }
        for p in 0..PANELS {
            // SAFETY: the tile has scales of `PANELS` panels and `groups` groups.
            let scale = unsafe { _mm512_loadu_ps(tile.scales.add((p * tile.groups + g) * PANEL)) };
            let scale = _mm512_mul_ps(scale, _mm512_set1_ps(D::FACTOR));
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

/// Dot products of four bytes; the sums are i32.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn dot_tile<const ROWS: usize, const PANELS: usize>(tile: &QuantTile) {
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
