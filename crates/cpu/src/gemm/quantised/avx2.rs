//! Kernels for AVX2, FMA and F16C: as those for AVX-512, with two registers for the 16 outputs of a panel, and products
//! of bytes in pairs of 16 bits.

use std::arch::x86_64::*;

use super::drive::{QuantKernel, QuantKernels, QuantTile};
use super::operand::OperandForm;
use crate::gemm::pack::PANEL;
use offshoot_backend::quantised::{CodeFormat, QuantFormat};

/// The kernel `$tile`, of a decoder or none, for so many rows and panels.
macro_rules! one_of {
    ($tile:ident$(, $d:ident)?) => {
        |rows: usize, panels: usize| -> QuantKernel {
            match (rows, panels) {
                (1, 1) => $tile::<$($d,)? 1, 1>,
                (1, 2) => $tile::<$($d,)? 1, 2>,
                (2, 1) => $tile::<$($d,)? 2, 1>,
                (2, 2) => $tile::<$($d,)? 2, 2>,
                (3, 1) => $tile::<$($d,)? 3, 1>,
                (4, 1) => $tile::<$($d,)? 4, 1>,
                _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
            }
        }
    };
}

/// The kernels that multiply numbers.
pub fn numbers(format: QuantFormat) -> QuantKernels {
    QuantKernels {
        form: OperandForm::Numbers,
        wide: None,
        rows: MOST_ROWS,
        panels,
        kernel: match (format.codes, format.zeros) {
            (CodeFormat::Fp8, _) => one_of!(tile, Fp8),
            (CodeFormat::Int8, _) => one_of!(tile, Int8),
            (CodeFormat::Int4, _) => one_of!(tile, Nibbles),
            (CodeFormat::Fp4, _) => one_of!(tile, Fp4),
        },
    }
}

/// The kernels that multiply bytes.
pub const BYTES: QuantKernels =
    QuantKernels { form: OperandForm::Signed, wide: None, rows: MOST_ROWS, panels, kernel: one_of!(dot_tile) };

const MOST_ROWS: usize = 4;

/// 16 registers: two sums for each row and panel, and the codes and numbers of one panel.
fn panels(rows: usize) -> usize {
    if rows <= 2 { 2 } else { 1 }
}

/// How a format's codes become numbers. `STEP` inputs of eight outputs lie in `BYTES / 2` bytes.
trait Decode {
    const STEP: usize;
    const BYTES: usize;
    /// What the numbers are too small by, a power of two.
    const FACTOR: f32 = 1.0;
    /// The zero point where the format has none.
    const ZERO: f32 = 0.0;

    /// The codes of a step.
    ///
    /// # Safety
    /// `codes` is valid for `BYTES / 2` bytes; the processor has AVX2.
    unsafe fn read(codes: *const u8) -> __m256i;
    /// The numbers of the step's next input. `zero`: the zero points.
    ///
    /// # Safety
    /// The processor has AVX2 and F16C.
    unsafe fn number(codes: &mut __m256i, zero: __m256) -> __m256;
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn read_words(codes: *const u8) -> __m256i {
    // SAFETY: promised by the caller: 32 bytes.
    unsafe { _mm256_loadu_si256(codes.cast()) }
}

/// 4-bit integers.
struct Nibbles;

impl Decode for Nibbles {
    const STEP: usize = 8;
    const BYTES: usize = 64;
    const ZERO: f32 = 8.0;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn read(codes: *const u8) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { read_words(codes) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn number(codes: &mut __m256i, zero: __m256) -> __m256 {
        let number = _mm256_cvtepi32_ps(_mm256_and_si256(*codes, _mm256_set1_epi32(15)));
        *codes = _mm256_srli_epi32::<4>(*codes);
        _mm256_sub_ps(number, zero)
    }
}

/// e2m1: a table of eight numbers, and the sign.
struct Fp4;

impl Decode for Fp4 {
    const STEP: usize = 8;
    const BYTES: usize = 64;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn read(codes: *const u8) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { read_words(codes) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn number(codes: &mut __m256i, _: __m256) -> __m256 {
        let table = _mm256_setr_ps(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0);
        let size = _mm256_permutevar8x32_ps(table, *codes);
        let sign = _mm256_slli_epi32::<28>(_mm256_and_si256(*codes, _mm256_set1_epi32(8)));
        *codes = _mm256_srli_epi32::<4>(*codes);
        _mm256_or_ps(size, _mm256_castsi256_ps(sign))
    }
}

/// Bytes as f32.
struct Int8;

impl Decode for Int8 {
    const STEP: usize = 4;
    const BYTES: usize = 64;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn read(codes: *const u8) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { read_words(codes) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn number(codes: &mut __m256i, _: __m256) -> __m256 {
        let low = _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(*codes));
        *codes = _mm256_srli_epi32::<8>(*codes);
        _mm256_cvtepi32_ps(low)
    }
}

/// e4m3 by way of f16: with four exponent bits at the place of f16's five, a number is 2^-8 of itself.
struct Fp8;

impl Decode for Fp8 {
    const STEP: usize = 1;
    const BYTES: usize = 16;
    const FACTOR: f32 = 256.0;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn read(codes: *const u8) -> __m256i {
        // SAFETY: promised by the caller: eight bytes.
        _mm256_castsi128_si256(unsafe { _mm_loadl_epi64(codes.cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn number(codes: &mut __m256i, _: __m256) -> __m256 {
        let wide = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm256_castsi256_si128(*codes)));
        _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(0xbfff_u16.cast_signed())))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<D: Decode, const ROWS: usize, const PANELS: usize>(tile: &QuantTile) {
    let x = tile.x.cast::<f32>();
    for g in 0..tile.groups {
        let first = g * tile.group;
        let end = if g + 1 == tile.groups { tile.inputs } else { first + tile.group };
        let mut acc = [[[_mm256_setzero_ps(); 2]; PANELS]; ROWS];
        let mut zero = [[_mm256_set1_ps(D::ZERO); 2]; PANELS];
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
                    let at = p * tile.panel_bytes + k / D::STEP * D::BYTES + half * D::BYTES / 2;
                    // SAFETY: the tile holds the codes of `inputs` inputs of `PANELS` panels.
                    let mut codes = unsafe { D::read(tile.codes.add(at)) };
                    for i in 0..D::STEP {
                        // SAFETY: the processor has the instructions, as the tile's caller promises.
                        let w = unsafe { D::number(&mut codes, zero[p][half]) };
                        for (r, acc) in acc.iter_mut().enumerate() {
                            // SAFETY: the tile holds `inputs` numbers of `ROWS` rows, `inputs` a multiple of `STEP`.
                            let x = _mm256_set1_ps(unsafe { *x.add(r * tile.stride + k + i) });
                            acc[p][half] = _mm256_fmadd_ps(x, w, acc[p][half]);
                        }
                    }
                }
            }
            k += D::STEP;
        }
        for (i, acc) in acc.as_flattened().as_flattened().iter().enumerate() {
            let (p, half) = (i / 2 % PANELS, i % 2);
            // SAFETY: the tile has scales of `PANELS` panels and `groups` groups, and `ROWS * PANELS` panels of sums.
            unsafe {
                let scale = _mm256_loadu_ps(tile.scales.add((p * tile.groups + g) * PANEL + half * 8));
                let scale = _mm256_mul_ps(scale, _mm256_set1_ps(D::FACTOR));
                let sum = tile.sums.add(i * PANEL / 2);
                let before = if g == 0 { _mm256_setzero_ps() } else { _mm256_loadu_ps(sum) };
                _mm256_storeu_ps(sum, _mm256_fmadd_ps(*acc, scale, before));
            }
        }
    }
}

/// Dot products of four bytes; the sums are i32. The sizes of the weights' codes times the activations with the
/// weights' signs: a pair's sum is at most `2 * 128 * 127`, which 16 bits hold.
#[target_feature(enable = "avx2")]
unsafe fn dot_tile<const ROWS: usize, const PANELS: usize>(tile: &QuantTile) {
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
