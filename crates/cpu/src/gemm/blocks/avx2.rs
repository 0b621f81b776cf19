//! Kernels for AVX2, FMA and F16C: as those for AVX-512, with two registers for the 16 outputs of a panel. Dot products
//! by AVX-VNNI where the processor has it; else by products in pairs of 16 bits.

use std::arch::x86_64::*;

use super::codes::{CodeLines, E2M1_RAISED, IQ4_RAISED, LINE, WORDS};
use super::kernel::{BlockKernel, BlockKernels, BlockTile};
use super::layouts::{self, KnownLines, kernel_of};
use crate::gemm::pack::PANEL;
use offshoot_gguf::{LIFTED, TensorType};

/// The kernels for blocks of type `kind` by products in pairs.
pub fn pairs(kind: TensorType) -> BlockKernels {
    kernels::<false>(kind)
}

/// The kernels for blocks of type `kind` by AVX-VNNI.
pub fn vnni(kind: TensorType) -> BlockKernels {
    kernels::<true>(kind)
}

fn kernels<const VNNI: bool>(kind: TensorType) -> BlockKernels {
    BlockKernels { rows: 4, panels: |_| 1, kernel: kernel_of!(kind, kernel, VNNI) }
}

fn kernel<C: KnownLines, const LEAST: bool, const VNNI: bool>(rows: usize, _: usize) -> BlockKernel {
    macro_rules! of_rows {
        ($tile:ident) => {
            match rows {
                1 => $tile::<C, LEAST, 1>,
                2 => $tile::<C, LEAST, 2>,
                3 => $tile::<C, LEAST, 3>,
                4 => $tile::<C, LEAST, 4>,
                _ => unreachable!("no kernel for {rows} rows"),
            }
        };
    }
    if VNNI { of_rows!(vnni_tile) } else { of_rows!(pair_tile) }
}

/// Words whose sums of products of pairs fit 16 bits: `8 * 2 * 15 * 127` is 30,480, `4 * 2 * 31 * 127` is 31,496,
/// `2 * 2 * 63 * 127` is 32,004, and `4 * 2 * 24 * 127` is 24,384. Zero where not even one pair's do.
const fn words_in_16_bits(codes: CodeLines) -> usize {
    match codes {
        CodeLines::Bytes | CodeLines::Iq4 => 0,
        CodeLines::Two | CodeLines::Three | CodeLines::Nibbles => 8,
        CodeLines::Five | CodeLines::Fp4 => 4,
        CodeLines::Six => 2,
    }
}

/// # Safety
/// `lines` is valid for half a line at `i`; the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn line(lines: *const u8, i: usize) -> __m256i {
    // SAFETY: promised by the caller.
    unsafe { _mm256_loadu_si256(lines.add(i * LINE).cast()) }
}

/// # Safety
/// `lines` is valid for half of each of four lines; the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nibbles(lines: *const u8, i: usize) -> __m256i {
    // SAFETY: promised by the caller.
    let both = unsafe { line(lines, i % 4) };
    let half = if i < 4 { both } else { _mm256_srli_epi16::<4>(both) };
    _mm256_and_si256(half, _mm256_set1_epi8(15))
}

/// Bits `mask` of the bytes of `high`, shifted to the left by `shift` before, or to the right if it is negative.
#[inline]
#[target_feature(enable = "avx2")]
fn high_bits(high: __m256i, shift: i32, mask: i8) -> __m256i {
    let moved = match shift >= 0 {
        true => _mm256_sll_epi16(high, _mm_cvtsi32_si128(shift)),
        false => _mm256_srl_epi16(high, _mm_cvtsi32_si128(-shift)),
    };
    _mm256_and_si256(moved, _mm256_set1_epi8(mask))
}

/// Word `i` of the raised codes of 32 inputs of eight outputs.
///
/// # Safety
/// `lines` is valid for half of each line of the layout; the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn raised<C: KnownLines>(lines: *const u8, i: usize) -> __m256i {
    // SAFETY: promised by the caller; the table has 16 bytes.
    unsafe {
        match C::LINES {
            CodeLines::Two => high_bits(line(lines, i / 4), -2 * (i as i32 % 4), 3),
            CodeLines::Three => {
                let low = high_bits(line(lines, i / 4), -2 * (i as i32 % 4), 3);
                _mm256_or_si256(low, high_bits(line(lines, 2), 2 - i as i32, 4))
            }
            CodeLines::Bytes => line(lines, i),
            CodeLines::Nibbles => nibbles(lines, i),
            CodeLines::Five => _mm256_or_si256(nibbles(lines, i), high_bits(line(lines, 4), 4 - i as i32, 16)),
            CodeLines::Six => {
                let high = high_bits(line(lines, 4 + i / 4), 4 - 2 * (i as i32 % 4), 0x30);
                _mm256_or_si256(nibbles(lines, i), high)
            }
            CodeLines::Fp4 => {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(E2M1_RAISED.as_ptr().cast()));
                _mm256_shuffle_epi8(table, nibbles(lines, i))
            }
            CodeLines::Iq4 => {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(IQ4_RAISED.as_ptr().cast()));
                _mm256_shuffle_epi8(table, nibbles(lines, i))
            }
        }
    }
}

/// Adds the products of some words to `dot`. Codes of eight bits have no sums of pairs in 16 bits: there the sizes of
/// the signed codes are multiplied by the activations with their signs, at most `2 * 128 * 127`, and what raised the
/// codes is not in the sum, nor in its beginning.
#[inline]
#[target_feature(enable = "avx2")]
fn add_pairs<C: KnownLines>(mut dot: __m256i, words: &[__m256i], x: &[i32]) -> __m256i {
    let (ones, most) = (_mm256_set1_epi16(1), const { words_in_16_bits(C::LINES) });
    for (words, x) in words.chunks(most.max(1)).zip(x.chunks(most.max(1))) {
        let mut pairs = _mm256_setzero_si256();
        for (word, x) in words.iter().zip(x) {
            let x = _mm256_set1_epi32(*x);
            pairs = if most == 0 {
                let code = _mm256_xor_si256(*word, _mm256_set1_epi8(-128));
                _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code))
            } else {
                _mm256_add_epi16(pairs, _mm256_maddubs_epi16(*word, x))
            };
        }
        dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, ones));
    }
    dot
}

#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn add_dots(mut dot: __m256i, words: &[__m256i], x: &[i32]) -> __m256i {
    for (word, x) in words.iter().zip(x) {
        dot = _mm256_dpbusd_avx_epi32(dot, *word, _mm256_set1_epi32(*x));
    }
    dot
}

macro_rules! tile {
    ($name:ident, $features:literal, $raised:expr, $add:expr) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<C: KnownLines, const LEAST: bool, const ROWS: usize>(tile: &BlockTile<'_>, sums: &mut [f32]) {
            let (w, groups) = (tile.w, tile.w.groups());
            let (bytes, splits) = const { (C::LINES.bytes(), C::LINES.splits()) };
            let codes = &w.codes_from(tile.panel)[..groups * bytes];
            let mut acc = [[_mm256_setzero_ps(); 2]; ROWS];
            for (g, lines) in codes.chunks_exact(bytes).enumerate() {
                let x: [[i32; WORDS]; ROWS] = std::array::from_fn(|r| {
                    let codes = &tile.x.codes_from(tile.first + r)[g * LIFTED..][..LIFTED];
                    bytemuck::pod_read_unaligned(bytemuck::cast_slice(codes))
                });
                for half in 0..2 {
                    let mut words = [_mm256_setzero_si256(); WORDS];
                    for (i, word) in words.iter_mut().enumerate() {
                        // SAFETY: `lines` has all lines of the group; the processor has the instructions.
                        *word = unsafe { raised::<C>(lines.as_ptr().add(half * LINE / 2), i) };
                    }
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let row = tile.x.row(tile.first + r);
                        for split in 0..splits {
                            let words_of = split * WORDS / splits..(split + 1) * WORDS / splits;
                            let start = if $raised(const { words_in_16_bits(C::LINES) }) {
                                row.starts[g * splits + split]
                            } else {
                                0
                            };
                            let dot = $add(_mm256_set1_epi32(start), &words[words_of.clone()], &x[r][words_of]);
                            let scales = &tile.scales_at(0, g, split)[half * PANEL / 2..][..PANEL / 2];
                            // SAFETY: eight numbers.
                            let scales = unsafe { _mm256_loadu_ps(scales.as_ptr()) };
                            let scale = _mm256_mul_ps(scales, _mm256_set1_ps(row.scales[g]));
                            acc[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc[half]);
                            if LEAST {
                                let least = &tile.least_at(0, g, split)[half * PANEL / 2..][..PANEL / 2];
                                // SAFETY: eight numbers.
                                let least = unsafe { _mm256_loadu_ps(least.as_ptr()) };
                                let sum = _mm256_set1_ps(row.sums[g * splits + split]);
                                acc[half] = _mm256_fnmadd_ps(least, sum, acc[half]);
                            }
                        }
                    }
                }
            }
            for (acc, sums) in acc.as_flattened().iter().zip(sums.chunks_exact_mut(PANEL / 2)) {
                // SAFETY: `sums` are eight numbers.
                unsafe { _mm256_storeu_ps(sums.as_mut_ptr(), *acc) };
            }
        }
    };
}

tile!(pair_tile, "avx2,fma,f16c", |words: usize| words > 0, add_pairs::<C>);
tile!(vnni_tile, "avx2,fma,f16c,avxvnni", |_: usize| true, add_dots);
