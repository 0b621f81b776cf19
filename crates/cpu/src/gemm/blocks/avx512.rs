//! Kernels for AVX-512 with VNNI: 16 outputs of a panel in a register, dot products of four inputs each. The codes of
//! 32 inputs are unpacked to eight registers and multiplied by all rows of the tile.

use std::arch::x86_64::*;

use super::codes::{CodeLines, E2M1_RAISED, IQ4_RAISED, LINE, WORDS};
use super::kernel::{BlockKernel, BlockKernels, BlockTile};
use super::layouts::{self, KnownLines, kernel_of};
use crate::gemm::kernel::tile_of;
use crate::gemm::pack::PANEL;
use offshoot_gguf::{LIFTED, TensorType};

/// The kernels for blocks of type `kind`.
pub fn kernels(kind: TensorType) -> BlockKernels {
    BlockKernels { rows: 12, panels, kernel: kernel_of!(kind, kernel) }
}

/// 32 registers: `rows * panels` sums, eight of codes, and some of scales. Few rows take several panels, so that
/// several streams of weights are read at once.
fn panels(rows: usize) -> usize {
    match rows {
        0..=2 => 4,
        3..=6 => 2,
        _ => 1,
    }
}

fn kernel<C: KnownLines, const LEAST: bool>(rows: usize, panels: usize) -> BlockKernel {
    tile_of! {
        Kernel<C, LEAST>, rows, panels;
        1 x 1 4;
        2 x 1 4;
        3 x 1 2;
        4 x 1 2;
        5 x 1 2;
        6 x 1 2;
        7 x 1;
        8 x 1;
        9 x 1;
        10 x 1;
        11 x 1;
        12 x 1;
    }
}

/// # Safety
/// `lines` is valid for a line at `i`; the processor has AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn line(lines: *const u8, i: usize) -> __m512i {
    // SAFETY: promised by the caller.
    unsafe { _mm512_loadu_si512(lines.add(i * LINE).cast()) }
}

/// # Safety
/// `lines` is valid for four lines; the processor has AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn nibbles(lines: *const u8, i: usize) -> __m512i {
    // SAFETY: promised by the caller.
    let both = unsafe { line(lines, i % 4) };
    let half = if i < 4 { both } else { _mm512_srli_epi16::<4>(both) };
    _mm512_and_si512(half, _mm512_set1_epi8(15))
}

/// Bits `mask` of the bytes of `high`, shifted to the left by `shift` before, or to the right if it is negative.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn high_bits(high: __m512i, shift: i32, mask: i8) -> __m512i {
    let moved = match shift >= 0 {
        true => _mm512_sll_epi16(high, _mm_cvtsi32_si128(shift)),
        false => _mm512_srl_epi16(high, _mm_cvtsi32_si128(-shift)),
    };
    _mm512_and_si512(moved, _mm512_set1_epi8(mask))
}

/// Word `i` of the raised codes of 32 inputs of a panel.
///
/// # Safety
/// `lines` is valid for each line of the layout; the processor has AVX-512 F and BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn raised<C: KnownLines>(lines: *const u8, i: usize) -> __m512i {
    // SAFETY: promised by the caller; the table has 16 bytes.
    unsafe {
        match C::LINES {
            CodeLines::Two => high_bits(line(lines, i / 4), -2 * (i as i32 % 4), 3),
            CodeLines::Three => {
                let low = high_bits(line(lines, i / 4), -2 * (i as i32 % 4), 3);
                _mm512_or_si512(low, high_bits(line(lines, 2), 2 - i as i32, 4))
            }
            CodeLines::Bytes => line(lines, i),
            CodeLines::Nibbles => nibbles(lines, i),
            CodeLines::Five => _mm512_or_si512(nibbles(lines, i), high_bits(line(lines, 4), 4 - i as i32, 16)),
            CodeLines::Six => {
                let high = high_bits(line(lines, 4 + i / 4), 4 - 2 * (i as i32 % 4), 0x30);
                _mm512_or_si512(nibbles(lines, i), high)
            }
            CodeLines::Fp4 => {
                let table = _mm512_broadcast_i32x4(_mm_loadu_si128(E2M1_RAISED.as_ptr().cast()));
                _mm512_shuffle_epi8(table, nibbles(lines, i))
            }
            CodeLines::Iq4 => {
                let table = _mm512_broadcast_i32x4(_mm_loadu_si128(IQ4_RAISED.as_ptr().cast()));
                _mm512_shuffle_epi8(table, nibbles(lines, i))
            }
        }
    }
}

/// Lines ahead of those in use that are prefetched.
const AHEAD: usize = 24;

/// The kernels of a layout of codes, with smallest values or without.
struct Kernel<C, const LEAST: bool>(C);

impl<C: KnownLines, const LEAST: bool> Kernel<C, LEAST> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &BlockTile<'_>, sums: &mut [f32]) {
        let (w, groups) = (tile.w, tile.w.groups());
        let (codes, panel_bytes) = (w.codes_from(tile.panel), w.panel_bytes());
        let (x, stride) = (tile.x.codes_from(tile.first), tile.x.stride);
        let rows: [_; ROWS] = std::array::from_fn(|r| tile.x.row(tile.first + r));
        let (bytes, splits) = const { (C::LINES.bytes(), C::LINES.splits()) };
        assert!(
            panel_bytes == groups * bytes
                && codes.len() >= PANELS * panel_bytes
                && x.len() >= (ROWS - 1) * stride + groups * LIFTED
                && tile.scales.scales.len() >= PANELS * groups * splits
                && (!LEAST || tile.scales.least.len() >= PANELS * groups * splits)
                && sums.len() >= ROWS * PANELS * PANEL
                && rows.iter().all(|row| {
                    let of_splits = groups * splits;
                    (row.scales.len(), row.sums.len(), row.starts.len()) == (groups, of_splits, of_splits)
                }),
            "shapes of the panels and their rows"
        );
        let mut acc = [[_mm512_setzero_ps(); PANELS]; ROWS];
        for g in 0..groups {
            for p in 0..PANELS {
                let at = p * panel_bytes + g * bytes;
                for i in 0..const { C::LINES.lines() } {
                    _mm_prefetch::<_MM_HINT_T0>(codes.as_ptr().wrapping_add(at + (i + AHEAD) * LINE).cast());
                }
                // SAFETY: by the assertion above the panels have the codes, scales and smallest values of `groups`
                // groups, and the rows their codes.
                unsafe {
                    let mut words = [_mm512_setzero_si512(); WORDS];
                    for (i, word) in words.iter_mut().enumerate() {
                        *word = raised::<C>(codes.as_ptr().add(at), i);
                    }
                    let scales = tile.scales.scales.as_ptr().add((p * groups + g) * splits);
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let (row, x) = (rows[r], x.as_ptr().add(r * stride + g * LIFTED).cast::<i32>());
                        let x_scale = _mm512_set1_ps(*row.scales.get_unchecked(g));
                        for (half, words) in words.chunks_exact(WORDS / splits).enumerate() {
                            let mut dot = _mm512_set1_epi32(*row.starts.get_unchecked(g * splits + half));
                            let x = x.add(half * WORDS / splits);
                            for (i, word) in words.iter().enumerate() {
                                dot = _mm512_dpbusd_epi32(dot, *word, _mm512_set1_epi32(x.add(i).read_unaligned()));
                            }
                            let scale = _mm512_mul_ps(_mm512_loadu_ps(scales.add(half).cast()), x_scale);
                            acc[p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, acc[p]);
                            if LEAST {
                                let least = tile.scales.least.as_ptr().add((p * groups + g) * splits + half);
                                let sum = _mm512_set1_ps(*row.sums.get_unchecked(g * splits + half));
                                acc[p] = _mm512_fnmadd_ps(_mm512_loadu_ps(least.cast()), sum, acc[p]);
                            }
                        }
                    }
                }
            }
        }
        for (acc, sums) in acc.as_flattened().iter().zip(sums.chunks_exact_mut(PANEL)) {
            // SAFETY: `sums` are 16 numbers.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), *acc) };
        }
    }
}
