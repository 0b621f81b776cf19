//! Packs activations for the kernels: the inputs are cut into strips, and the rows of a strip lie at a fixed stride. So
//! a kernel reaches all its rows from one pointer, a strip stays in the first-level cache, and rows do not compete for
//! the same cache sets.

use crate::Isa;
use crate::memory::CacheLine;
use crate::rows::{bf16_bits, for_each_isa};

/// Most words per row of a strip. A strip of weights of two f32 panels then takes 32 KB, two thirds of a first-level
/// cache of 48 KB.
pub const STRIP: usize = 256;
/// Words from one row of a strip to the next, but for [`OperandFormat::Tiles`]: an odd number of cache lines plus one
/// word, so that rows neither map to the same cache set nor cross into their next line in the same iteration.
pub const ROW_STRIDE: usize = STRIP + 17;
/// Most words per row of a strip of tiles: 32 rows of activations and the two panels of weights that are multiplied at
/// a time take 32 KB.
const TILE_STRIP: usize = 128;
/// Words from one row of a strip of tiles to the next, which are loaded in whole cache lines: a row that crosses into
/// the next takes twice as long.
pub const TILE_STRIDE: usize = TILE_STRIP + 16;

/// The format of a kernel's activations, in words of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandFormat {
    /// One f32 per word.
    F32,
    /// One f32 per word, rounded to bf16; an odd number of inputs is padded with a zero.
    RoundedF32,
    /// Two bf16 per word; an odd number of inputs is padded with a zero.
    Bf16Pairs,
    /// The words of `Bf16Pairs`, in rows that begin with a cache line; the number of rows is padded to whole tiles.
    Tiles,
}

impl OperandFormat {
    /// Words per row of `inputs` activations.
    pub fn words(self, inputs: usize) -> usize {
        match self {
            OperandFormat::F32 => inputs,
            OperandFormat::RoundedF32 => inputs.next_multiple_of(2),
            OperandFormat::Bf16Pairs | OperandFormat::Tiles => inputs.div_ceil(2),
        }
    }

    /// Cuts rows of `words` words into the fewest strips of about equal length, whole cache lines except the last.
    pub fn strips(self, words: usize) -> impl Iterator<Item = Strip> + Clone {
        let most = match self {
            OperandFormat::F32 | OperandFormat::RoundedF32 | OperandFormat::Bf16Pairs => STRIP,
            OperandFormat::Tiles => TILE_STRIP,
        };
        let count = words.div_ceil(most).max(1);
        let length = words.div_ceil(count).next_multiple_of(16);
        let firsts = (0..words).step_by(length.max(1)).enumerate();
        firsts.map(move |(index, first)| Strip { index, first, words: length.min(words - first) })
    }

    /// Words from one row of a strip to the next.
    pub fn row_stride(self) -> usize {
        match self {
            OperandFormat::F32 | OperandFormat::RoundedF32 | OperandFormat::Bf16Pairs => ROW_STRIDE,
            OperandFormat::Tiles => TILE_STRIDE,
        }
    }

    /// Groups of rows begin at multiples of so many, and the last one is padded to them.
    pub fn row_unit(self) -> usize {
        match self {
            OperandFormat::F32 | OperandFormat::RoundedF32 | OperandFormat::Bf16Pairs => 1,
            OperandFormat::Tiles => 16,
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

/// The packed form of some rows of activations, `[strips][padded rows][row stride]`, which is written in chunks.
#[derive(Clone, Copy)]
pub struct ActivationPacking {
    pub operand: OperandFormat,
    /// Inputs of a row.
    pub inputs: usize,
    pub rows: usize,
}

impl ActivationPacking {
    /// Rows of a chunk: a thread packs so many rows of a strip in about a microsecond.
    const CHUNK_ROWS: usize = 16;

    /// Words of a chunk, but for the last.
    pub fn chunk(self) -> usize {
        Self::CHUNK_ROWS * self.operand.row_stride()
    }

    fn padded_rows(self) -> usize {
        self.rows.next_multiple_of(self.operand.row_unit())
    }

    /// Words of a strip of all rows.
    pub fn strip_len(self) -> usize {
        self.padded_rows() * self.operand.row_stride()
    }

    /// Gives `memory` room for all rows.
    pub fn room(self, memory: &mut Vec<CacheLine>) -> &mut [u32] {
        let len = self.operand.strips(self.operand.words(self.inputs)).count() * self.strip_len();
        let lines = (len * size_of::<u32>()).div_ceil(size_of::<CacheLine>());
        memory.resize(lines.max(memory.len()), CacheLine([0.0; 16]));
        &mut bytemuck::cast_slice_mut(memory)[..len]
    }

    /// Packs chunk number `chunk` into `out`, from the activations that `row` returns. Rows of the padding keep what
    /// they have.
    pub fn pack_chunk<'x>(self, isa: Isa, chunk: usize, out: &mut [u32], row: impl Fn(usize) -> &'x [f32]) {
        for (i, out) in out.chunks_exact_mut(self.operand.row_stride()).enumerate() {
            let at = chunk * Self::CHUNK_ROWS + i;
            let strip = self.operand.strips(self.operand.words(self.inputs)).nth(at / self.padded_rows());
            let strip = strip.expect("`out` has a row for each strip");
            let r = at % self.padded_rows();
            if r < self.rows {
                pack_activation_row(isa, &mut out[..strip.words], row(r), strip, self.operand);
            }
        }
    }

    /// Packs all rows into `memory`, which gets room for them.
    pub fn pack<'x>(self, isa: Isa, memory: &mut Vec<CacheLine>, row: impl Fn(usize) -> &'x [f32]) {
        let chunks = self.room(memory).chunks_mut(self.chunk()).enumerate();
        chunks.for_each(|(i, chunk)| self.pack_chunk(isa, i, chunk, &row));
    }
}

for_each_isa! {
    fn pack_activation_row(out: &mut [u32], row: &[f32], strip: Strip, operand: OperandFormat) {
        let inputs = match operand {
            OperandFormat::F32 | OperandFormat::RoundedF32 => strip.first..row.len().min(strip.first + strip.words),
            OperandFormat::Bf16Pairs | OperandFormat::Tiles => {
                2 * strip.first..row.len().min(2 * (strip.first + strip.words))
            }
        };
        let x = &row[inputs];
        match operand {
            OperandFormat::F32 => out.iter_mut().zip(x).for_each(|(out, x)| *out = x.to_bits()),
            OperandFormat::RoundedF32 => {
                out.iter_mut().zip(x).for_each(|(out, x)| *out = bf16_bits(*x) << 16);
                out[x.len()..].fill(0);
            }
            OperandFormat::Bf16Pairs | OperandFormat::Tiles => {
                let (pairs, odd) = x.as_chunks::<2>();
                let pair = |[low, high]: &[f32; 2]| bf16_bits(*low) | bf16_bits(*high) << 16;
                out.iter_mut().zip(pairs).for_each(|(out, x)| *out = pair(x));
                if let [last] = odd {
                    out[pairs.len()] = bf16_bits(*last);
                }
            }
        }
    }
}
