//! Activations as kernels read them: cut into strips of inputs, the rows of a strip a fixed distance apart. So a kernel
//! reaches all its rows from one pointer, strips stay in the first cache, and rows a power of two apart do not crowd
//! its sets.

use rayon::prelude::*;

use crate::backend::cpu::rows::for_each_isa;
use crate::backend::cpu::{Buffer, Isa};

/// Most words of a strip's row. With two f32 panels a strip of weights takes 32 KB, two thirds of a first cache of 48
/// KB.
pub const STRIP: usize = 256;
/// Words from one row of a strip to the next: an odd number of cache lines and one word, so that rows neither fall into
/// the same set nor pass to their next line all at the same step.
pub const ROW_STRIDE: usize = STRIP + 17;

/// How a kernel wants its activations: in words of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// One f32 a word.
    F32,
    /// The same, rounded to bf16 but kept as f32, the number of inputs filled up to an even one with zero.
    RoundedF32,
    /// Two bf16 a word, an odd last input paired with zero.
    Bf16Pairs,
}

impl Operand {
    /// Words that one row of `inputs` takes.
    pub fn words(self, inputs: usize) -> usize {
        match self {
            Operand::F32 => inputs,
            Operand::RoundedF32 => inputs.next_multiple_of(2),
            Operand::Bf16Pairs => inputs.div_ceil(2),
        }
    }
}

/// Which strip of a row it is, where it begins and how long it is, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strip {
    pub index: usize,
    pub first: usize,
    pub words: usize,
}

/// Cuts rows of `words` into the fewest strips, about equal, each but the last of whole cache lines.
pub fn strips(words: usize) -> impl Iterator<Item = Strip> + Clone {
    let count = words.div_ceil(STRIP).max(1);
    let length = words.div_ceil(count).next_multiple_of(16);
    let firsts = (0..words).step_by(length.max(1)).enumerate();
    firsts.map(move |(index, first)| Strip { index, first, words: length.min(words - first) })
}

/// Below this many activations the calling thread arranges them alone.
const PARALLEL_FROM: usize = 16 * 1024;

/// Writes rows `first ..` of `x` to `out`, strip after strip; as many rows as `out` has room for.
pub fn arrange(isa: Isa, out: &mut Vec<u32>, x: &Buffer, first: usize, rows: usize, operand: Operand) {
    let words = operand.words(x.width);
    out.resize(strips(words).count() * rows * ROW_STRIDE, 0);
    let chunks = out
        .chunks_exact_mut(rows * ROW_STRIDE)
        .zip(strips(words))
        .flat_map(|(out, strip)| out.chunks_exact_mut(ROW_STRIDE).enumerate().map(move |(r, out)| (r, strip, out)));
    let row_of_strip = |(r, strip, out): (usize, Strip, &mut [u32])| {
        arrange_row(isa, &mut out[..strip.words], x.row(first + r), strip, operand);
    };
    if rows * words < PARALLEL_FROM {
        chunks.for_each(row_of_strip);
    } else {
        let chunks: Vec<_> = chunks.collect();
        chunks.into_par_iter().with_min_len(16).for_each(row_of_strip);
    }
}

for_each_isa! {
    fn arrange_row(out: &mut [u32], row: &[f32], strip: Strip, operand: Operand) = arrange_row_loop;
}

#[inline(always)]
fn arrange_row_loop(out: &mut [u32], row: &[f32], strip: Strip, operand: Operand) {
    let inputs = match operand {
        Operand::F32 | Operand::RoundedF32 => strip.first..row.len().min(strip.first + strip.words),
        Operand::Bf16Pairs => 2 * strip.first..row.len().min(2 * (strip.first + strip.words)),
    };
    let x = &row[inputs];
    match operand {
        Operand::F32 => out.iter_mut().zip(x).for_each(|(out, x)| *out = x.to_bits()),
        Operand::RoundedF32 => {
            out.iter_mut().zip(x).for_each(|(out, x)| *out = rounded(*x));
            out[x.len()..].fill(0);
        }
        Operand::Bf16Pairs => {
            let (pairs, odd) = x.as_chunks::<2>();
            out.iter_mut().zip(pairs).for_each(|(out, [low, high])| *out = rounded(*low) >> 16 | rounded(*high));
            if let [last] = odd {
                out[pairs.len()] = rounded(*last) >> 16;
            }
        }
    }
}

/// The bits of `x` rounded to bf16, to nearest even; a NaN stays one.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    (if x.is_nan() { bits | 0x0040_0000 } else { nearest }) & 0xffff_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_bf16() {
        for bits in (0..u32::MAX - 70_001).step_by(70_001) {
            let x = f32::from_bits(bits);
            assert_eq!(rounded(x) >> 16, u32::from(half::bf16::from_f32(x).to_bits()), "{x}");
        }
    }

    #[test]
    fn strips_cover_every_word_once() {
        for words in 0..2000 {
            let mut next = 0;
            for strip in strips(words) {
                assert_eq!(strip.first, next);
                assert!(strip.words <= STRIP && strip.words > 0);
                next += strip.words;
            }
            assert_eq!(next, words);
        }
    }
}
