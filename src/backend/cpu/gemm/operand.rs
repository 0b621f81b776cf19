//! Packs activations for the kernels: the inputs are cut into strips, and the rows of a strip lie at a fixed stride. So
//! a kernel reaches all its rows from one pointer, a strip stays in the first-level cache, and rows do not compete for
//! the same cache sets.

use crate::backend::cpu::Isa;
use crate::backend::cpu::rows::{bf16_bits, for_each_isa};

/// Most words per row of a strip. A strip of weights of two f32 panels then takes 32 KB, two thirds of a first-level
/// cache of 48 KB.
pub const STRIP: usize = 256;
/// Words from one row of a strip to the next: an odd number of cache lines plus one word, so that rows neither map to
/// the same cache set nor cross into their next line in the same iteration.
pub const ROW_STRIDE: usize = STRIP + 17;

/// The format of a kernel's activations, in words of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "formats of the x86 kernels"))]
pub enum OperandFormat {
    /// One f32 per word.
    F32,
    /// One f32 per word, rounded to bf16; an odd number of inputs is padded with a zero.
    RoundedF32,
    /// Two bf16 per word; an odd number of inputs is padded with a zero.
    Bf16Pairs,
}

impl OperandFormat {
    /// Words per row of `inputs` activations.
    pub fn words(self, inputs: usize) -> usize {
        match self {
            OperandFormat::F32 => inputs,
            OperandFormat::RoundedF32 => inputs.next_multiple_of(2),
            OperandFormat::Bf16Pairs => inputs.div_ceil(2),
        }
    }
}

/// A strip of a row: its number, its first word and its length in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strip {
    pub index: usize,
    pub first: usize,
    pub words: usize,
}

/// Cuts rows of `words` words into the fewest strips of about equal length, whole cache lines except the last.
pub fn strips(words: usize) -> impl Iterator<Item = Strip> + Clone {
    let count = words.div_ceil(STRIP).max(1);
    let length = words.div_ceil(count).next_multiple_of(16);
    let firsts = (0..words).step_by(length.max(1)).enumerate();
    firsts.map(move |(index, first)| Strip { index, first, words: length.min(words - first) })
}

/// The packed form of some rows of activations, `[strips][rows][ROW_STRIDE]`, which is written in chunks.
#[derive(Clone, Copy)]
pub struct ActivationPacking {
    pub operand: OperandFormat,
    /// Of a row.
    pub inputs: usize,
    pub rows: usize,
}

impl ActivationPacking {
    /// Words of a chunk, but for the last: 16 rows of strips, which take a thread about a microsecond.
    pub const CHUNK: usize = 16 * ROW_STRIDE;

    /// Words of all rows.
    pub fn len(self) -> usize {
        strips(self.operand.words(self.inputs)).count() * self.rows * ROW_STRIDE
    }

    /// Packs chunk number `chunk` into `out`, from the activations that `row` returns.
    pub fn pack_chunk<'x>(self, isa: Isa, chunk: usize, out: &mut [u32], row: impl Fn(usize) -> &'x [f32]) {
        for (i, out) in out.chunks_exact_mut(ROW_STRIDE).enumerate() {
            let at = chunk * (Self::CHUNK / ROW_STRIDE) + i;
            let strip = strips(self.operand.words(self.inputs)).nth(at / self.rows);
            let strip = strip.expect("`out` has a row for each strip");
            pack_activation_row(isa, &mut out[..strip.words], row(at % self.rows), strip, self.operand);
        }
    }

    /// Packs all chunks into `out`, which gets their length.
    pub fn pack<'x>(self, isa: Isa, out: &mut Vec<u32>, row: impl Fn(usize) -> &'x [f32]) {
        out.resize(self.len(), 0);
        out.chunks_mut(Self::CHUNK).enumerate().for_each(|(i, chunk)| self.pack_chunk(isa, i, chunk, &row));
    }
}

for_each_isa! {
    fn pack_activation_row(out: &mut [u32], row: &[f32], strip: Strip, operand: OperandFormat) = pack_activation_row_loop;
}

#[inline(always)]
fn pack_activation_row_loop(out: &mut [u32], row: &[f32], strip: Strip, operand: OperandFormat) {
    let inputs = match operand {
        OperandFormat::F32 | OperandFormat::RoundedF32 => strip.first..row.len().min(strip.first + strip.words),
        OperandFormat::Bf16Pairs => 2 * strip.first..row.len().min(2 * (strip.first + strip.words)),
    };
    let x = &row[inputs];
    match operand {
        OperandFormat::F32 => out.iter_mut().zip(x).for_each(|(out, x)| *out = x.to_bits()),
        OperandFormat::RoundedF32 => {
            out.iter_mut().zip(x).for_each(|(out, x)| *out = bf16_bits(*x) << 16);
            out[x.len()..].fill(0);
        }
        OperandFormat::Bf16Pairs => {
            let (pairs, odd) = x.as_chunks::<2>();
            let pair = |[low, high]: &[f32; 2]| bf16_bits(*low) | bf16_bits(*high) << 16;
            out.iter_mut().zip(pairs).for_each(|(out, x)| *out = pair(x));
            if let [last] = odd {
                out[pairs.len()] = bf16_bits(*last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
