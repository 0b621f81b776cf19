//! The packings of quantised weights as checkpoints publish them, and dense weights that become codes when they are
//! read. Tensors are borrowed bytes as in the file, row-major, little-endian; `model::weights` has checked their
//! shapes.

use super::QuantFormat;
use super::codes::{CodeFormat, E2M1, e4m3_code, e4m3_value};
use super::rounding::nonzero;
use crate::weights::{RandomWeight, WeightView};

/// Where codes, scales and zero points are. `out`, `in`: outputs and inputs of the stored matrix.
#[derive(Clone, Copy, Debug)]
pub enum QuantSource<'a> {
    /// `[out, in]` bytes: e4m3 or int8.
    Bytes { codes: &'a [u8], scales: ScaleSource<'a> },
    /// AutoAWQ's "gemm": words of 32 bits `[in, out / 8]`, each of eight outputs in the order 0 2 4 6 1 3 5 7 from the
    /// low bits on; zero points `[in / group, out / 8]` alike; scales `[in / group, out]`.
    Awq { words: &'a [u8], zeros: &'a [u8], scales: WeightView<'a> },
    /// GPTQ: words `[in / 8, out]`, each of eight inputs from the low bits on; zero points `[groups, out / 8]`, words
    /// of eight outputs that are lower by `zero_offset` in each of them, with borrow; scales `[groups, out]`.
    Gptq { words: &'a [u8], zeros: &'a [u8], zero_offset: u8, scales: WeightView<'a> },
    /// compressed-tensors' "pack-quantized": words `[out, in / 8]`, each of eight inputs from the low bits on, codes 8
    /// higher than the signed numbers; scales `[out, groups]`; zero points `[out / 8, groups]`, of eight outputs.
    Packed { words: &'a [u8], scales: WeightView<'a>, zeros: Option<&'a [u8]> },
    /// OpenAI's MXFP4: `[out, in / 2]` bytes of two inputs, the low bits first; scales `[out, in / 32]`, powers of two
    /// with 127 added.
    Mxfp4 { bytes: &'a [u8], scales: &'a [u8] },
    /// NVFP4: `[out, in / 2]` bytes of two inputs, the low bits first; scales `[out, in / 16]` of e4m3, all of which
    /// `factor` multiplies.
    Nvfp4 { bytes: &'a [u8], scales: &'a [u8], factor: f32 },
    /// Dense weights, made into codes row by row.
    Dense(WeightView<'a>),
    /// Random numbers, generated and made into codes row by row.
    Random(RandomWeight),
}

/// The scales of a matrix of bytes.
#[derive(Clone, Copy, Debug)]
pub struct ScaleSource<'a> {
    /// `[ceil(out / block_rows), ceil(in / block_cols)]`
    pub scales: WeightView<'a>,
    /// Outputs that share a scale; all of them with scales for the whole tensor.
    pub block_rows: usize,
    pub block_cols: usize,
}

/// One output of a quantised matrix.
#[derive(Clone, Debug)]
pub struct QuantRow {
    /// One for each input, in the order of the view.
    pub codes: Vec<u8>,
    /// One for each group, without `factor`.
    pub scales: Vec<f32>,
    /// One for each group, or none.
    pub zeros: Vec<u8>,
    /// What multiplies all scales: 1 but for NVFP4.
    pub factor: f32,
}

impl Default for QuantRow {
    fn default() -> Self {
        Self { codes: Vec::new(), scales: Vec::new(), zeros: Vec::new(), factor: 1.0 }
    }
}

impl QuantRow {
    /// What the numbers of a group are multiplied by.
    pub fn scale(&self, group: usize) -> f32 {
        self.scales[group] * self.factor
    }
}

fn word(words: &[u8], at: usize) -> u32 {
    words.as_chunks::<4>().0.get(at).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The 4 bits at `place` of the word at index `word`.
fn nibble(words: &[u8], word: usize, place: usize) -> u8 {
    words[word * 4 + place / 2] >> (4 * (place % 2)) & 15
}

/// The codes of bytes that have two each, the low bits first.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| [byte & 15, byte >> 4])
}

/// Where AutoAWQ's words have output `o % 8`.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl QuantSource<'_> {
    /// Output `row` of `outputs` outputs and `inputs` inputs, by the format of its view.
    pub(super) fn read_row(&self, format: QuantFormat, shape: [usize; 2], row: usize, out: &mut QuantRow) {
        let [outputs, inputs] = shape;
        let (group, groups) = (format.group_inputs(inputs), format.groups(inputs));
        out.codes.clear();
        out.scales.clear();
        out.zeros.clear();
        out.factor = 1.0;
        match self {
            QuantSource::Bytes { codes, scales } => {
                out.codes.extend_from_slice(&codes[row * inputs..][..inputs]);
                let per_row = inputs.div_ceil(scales.block_cols);
                let first = row / scales.block_rows * per_row;
                out.scales.extend((0..groups).map(|g| scales.scales.get(first + g * group / scales.block_cols)));
            }
            QuantSource::Awq { words, zeros, scales } => {
                let (word, place) = (row / 8, AWQ_PLACES[row % 8]);
                out.codes.extend((0..inputs).map(|k| nibble(words, k * (outputs / 8) + word, place)));
                out.scales.extend((0..groups).map(|g| scales.get(g * outputs + row)));
                out.zeros.extend((0..groups).map(|g| nibble(zeros, g * (outputs / 8) + word, place)));
            }
            QuantSource::Gptq { words, zeros, zero_offset, scales } => {
                out.codes.extend((0..inputs).map(|k| nibble(words, k / 8 * outputs + row, k % 8)));
                out.scales.extend((0..groups).map(|g| scales.get(g * outputs + row)));
                // As its tools subtracted it, from the word as a whole.
                let offset = 0x1111_1111 * u32::from(*zero_offset);
                let word = |g: usize| word(zeros, g * (outputs / 8) + row / 8).wrapping_add(offset);
                let zero = |g: usize| (word(g) >> (4 * (row % 8)) & 15) as u8;
                out.zeros.extend((0..groups).map(zero));
            }
            QuantSource::Packed { words, scales, zeros } => {
                let per_row = inputs.div_ceil(8);
                out.codes.extend((0..inputs).map(|k| nibble(words, row * per_row + k / 8, k % 8)));
                out.scales.extend((0..groups).map(|g| scales.get(row * groups + g)));
                if let Some(zeros) = zeros {
                    out.zeros.extend((0..groups).map(|g| nibble(zeros, row / 8 * groups + g, row % 8)));
                }
            }
            QuantSource::Mxfp4 { bytes, scales } => {
                out.codes.extend(nibbles(&bytes[row * inputs / 2..][..inputs / 2]));
                out.scales.extend(scales[row * groups..][..groups].iter().map(|&scale| power_of_two(scale)));
            }
            QuantSource::Nvfp4 { bytes, scales, factor } => {
                out.codes.extend(nibbles(&bytes[row * inputs / 2..][..inputs / 2]));
                out.scales.extend(scales[row * groups..][..groups].iter().map(|&scale| e4m3_value(scale)));
                out.factor = *factor;
            }
            QuantSource::Dense(view) => {
                let numbers: Vec<f32> = (row * inputs..(row + 1) * inputs).map(|i| view.get(i)).collect();
                make_row(format, &numbers, out);
            }
            QuantSource::Random(random) => {
                let numbers: Vec<f32> = (0..inputs).map(|k| random.at(row, k)).collect();
                make_row(format, &numbers, out);
            }
        }
    }
}

/// The scale of e8m0: `2^(code - 127)`, NaN for the largest code.
pub fn power_of_two(code: u8) -> f32 {
    match code {
        0 => f32::MIN_POSITIVE / 2.0,
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

/// Makes codes of numbers, group by group, with the zero point 8 where the format has any. The largest of a group is
/// exact up to the rounding of its scale. In int4 it becomes -8, the code farthest from zero, so its scale may be
/// negative; in MXFP4, whose scales are powers of two, 3 to 6. NVFP4's factor makes the row's largest scale 448.
fn make_row(format: QuantFormat, numbers: &[f32], out: &mut QuantRow) {
    if format.is_nvfp4() {
        let largest = numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        out.factor = nonzero(largest / (6.0 * 448.0));
    }
    for group in numbers.chunks(format.group_inputs(numbers.len()).max(1)) {
        let largest = group.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most });
        let span = match format.codes {
            CodeFormat::Fp8 => 448.0,
            CodeFormat::Int8 => 127.0,
            CodeFormat::Int4 => -8.0,
            CodeFormat::Fp4 => 6.0,
        };
        let largest = if format.codes == CodeFormat::Int4 { largest } else { largest.abs() };
        let scale = nonzero(largest / span);
        let scale = match format.codes {
            CodeFormat::Fp4 if format.is_nvfp4() => nonzero(e4m3_value(e4m3_code((scale / out.factor).min(448.0)))),
            CodeFormat::Fp4 => power_of_two_from(scale),
            CodeFormat::Fp8 | CodeFormat::Int8 | CodeFormat::Int4 => scale,
        };
        out.scales.push(scale);
        let scale = scale * out.factor;
        if format.zeros {
            out.zeros.push(8);
        }
        out.codes.extend(group.iter().map(|x| code_of(format.codes, x / scale)));
    }
}

/// The smallest power of two that is not below `x`, a positive number.
fn power_of_two_from(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(((bits >> 23) + u32::from(bits & 0x7f_ffff != 0)) << 23)
}

/// The code of the nearest number.
fn code_of(codes: CodeFormat, x: f32) -> u8 {
    match codes {
        CodeFormat::Fp8 => e4m3_code(x.clamp(-448.0, 448.0)),
        CodeFormat::Int8 => (x.round_ties_even().clamp(-127.0, 127.0) as i8).cast_unsigned(),
        CodeFormat::Int4 => (x.round_ties_even().clamp(-8.0, 7.0) as i8 + 8).cast_unsigned(),
        CodeFormat::Fp4 => {
            // Half way between two numbers the smaller one is as near.
            let larger = E2M1.windows(2).filter(|pair| x.abs() > (pair[0] + pair[1]) / 2.0).count() as u8;
            larger | if x < 0.0 { 8 } else { 0 }
        }
    }
}
