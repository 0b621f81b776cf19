//! What the bytes of a block mean: one clear loop for each type, which every faster path is compared with. The layouts
//! are those of ggml-common.h and ggml-quants.c (llama.cpp), and so is the order of all arithmetic, which is in f32.

use std::ops::Range;

use half::bf16;

use super::TensorType;

/// The most elements of a block.
const MOST: usize = 256;
/// The fewest elements that share a scale, or a smallest value.
const SCALED: usize = 16;
/// Elements whose scales lie together: one, or one for each half of them.
pub const LIFTED: usize = 32;
/// The values of e2m1, twice as large, so that they are whole numbers.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The numbers of IQ4_NL and IQ4_XS by code.
pub const IQ4_NUMBERS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Up to 256 neighbours of a quantised type: element `i` is `scales[i / 16] * codes[i] - least[i / 16]`.
pub struct CodedBlock {
    pub codes: [i8; MOST],
    pub scales: [f32; MOST / SCALED],
    pub least: [f32; MOST / SCALED],
}

impl Default for CodedBlock {
    fn default() -> Self {
        Self { codes: [0; MOST], scales: [0.0; MOST / SCALED], least: [0.0; MOST / SCALED] }
    }
}

impl TensorType {
    /// Whether its elements are codes with scales.
    pub fn is_quantised(self) -> bool {
        !matches!(self, TensorType::F32 | TensorType::F16 | TensorType::Bf16)
    }

    /// Whether its blocks have smallest values.
    pub fn has_least(self) -> bool {
        matches!(self, TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q2K | TensorType::Q4K | TensorType::Q5K)
    }

    /// Where the scales of a block are, and its smallest values.
    pub fn scale_bytes(self) -> [Range<usize>; 2] {
        match self {
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => [0..0, 0..0],
            TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 | TensorType::Iq4Nl => [0..2, 0..0],
            TensorType::Q4_1 | TensorType::Q5_1 => [0..4, 0..0],
            TensorType::Q2K => [0..16, 80..84],
            TensorType::Q3K => [96..110, 0..0],
            TensorType::Q4K | TensorType::Q5K => [0..16, 0..0],
            TensorType::Q6K => [192..210, 0..0],
            TensorType::Iq4Xs => [0..8, 0..0],
            TensorType::Mxfp4 => [0..1, 0..0],
        }
    }

    /// The elements of whole blocks. Panics unless `bytes` and `out` are as many blocks.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        let (blocks, elements) = (bytes.chunks_exact(self.block_bytes()), self.block_elements());
        assert!(blocks.remainder().is_empty() && out.len() == blocks.len() * elements, "whole blocks");
        let mut coded = CodedBlock::default();
        for (block, out) in blocks.zip(out.chunks_exact_mut(elements)) {
            match self {
                TensorType::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
                TensorType::F16 => out[0] = half_at(block, 0),
                TensorType::Bf16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
                _ => {
                    coded.read(self, block);
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = coded.scales[i / SCALED] * f32::from(coded.codes[i]) - coded.least[i / SCALED];
                    }
                }
            }
        }
    }
}

impl CodedBlock {
    /// Reads blocks of at most 256 elements. Panics if the type is not quantised, or there are more.
    #[inline(always)]
    pub fn read(&mut self, kind: TensorType, bytes: &[u8]) {
        let elements = kind.block_elements();
        for (b, block) in bytes.chunks_exact(kind.block_bytes()).enumerate() {
            let part = CodedPart {
                codes: &mut self.codes[b * elements..][..elements],
                scales: &mut self.scales[b * elements / SCALED..][..elements / SCALED],
                least: &mut self.least[b * elements / SCALED..][..elements / SCALED],
            };
            part.read(kind, block);
        }
    }
}

/// Where one block's codes and scales are to be written.
struct CodedPart<'a> {
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    least: &'a mut [f32],
}

impl CodedPart<'_> {
    #[inline(always)]
    fn read(mut self, kind: TensorType, block: &[u8]) {
        match kind {
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => panic!("{kind} has no codes"),
            TensorType::Q4_0 => {
                self.of_32(half_at(block, 0), 0.0);
                nibbles(&block[2..], self.codes, |nibble| nibble as i8 - 8);
            }
            TensorType::Q4_1 => {
                self.of_32(half_at(block, 0), -half_at(block, 2));
                nibbles(&block[4..], self.codes, |nibble| nibble as i8);
            }
            TensorType::Q5_0 => {
                self.of_32(half_at(block, 0), 0.0);
                nibbles(&block[6..], self.codes, |nibble| nibble as i8);
                fifth_bits(&block[2..], self.codes);
                self.codes.iter_mut().for_each(|code| *code -= 16);
            }
            TensorType::Q5_1 => {
                self.of_32(half_at(block, 0), -half_at(block, 2));
                nibbles(&block[8..], self.codes, |nibble| nibble as i8);
                fifth_bits(&block[4..], self.codes);
            }
            TensorType::Q8_0 => {
                self.of_32(half_at(block, 0), 0.0);
                self.codes.iter_mut().zip(&block[2..]).for_each(|(code, &byte)| *code = byte as i8);
            }
            TensorType::Q2K => {
                self.of_q2_k(block);
                two_bits(&block[16..80], self.codes);
            }
            TensorType::Q3K => {
                self.of_q3_k(block);
                two_bits(&block[32..96], self.codes);
                // Bit `j` of byte `i` is that of element `32 j + i`: without it the element is lower by 4.
                for (j, codes) in self.codes.chunks_exact_mut(32).enumerate() {
                    for (code, bits) in codes.iter_mut().zip(&block[..32]) {
                        *code += ((bits >> j & 1) << 2) as i8 - 4;
                    }
                }
            }
            TensorType::Q4K => {
                self.of_256(block);
                nibbles_of_64(&block[16..], self.codes);
            }
            TensorType::Q5K => {
                self.of_256(block);
                nibbles_of_64(&block[48..], self.codes);
                // Bit `j` of byte `i` is the fifth one of element `32 j + i`.
                for (j, codes) in self.codes.chunks_exact_mut(32).enumerate() {
                    codes.iter_mut().zip(&block[16..48]).for_each(|(code, bits)| *code |= ((bits >> j & 1) << 4) as i8);
                }
            }
            TensorType::Q6K => self.of_q6_k(block),
            TensorType::Iq4Nl => {
                self.of_32(half_at(block, 0), 0.0);
                nibbles(&block[2..], self.codes, |nibble| IQ4_NUMBERS[usize::from(nibble)]);
            }
            TensorType::Iq4Xs => {
                self.of_iq4_xs(block);
                for (codes, bytes) in self.codes.chunks_exact_mut(32).zip(block[8..].chunks_exact(16)) {
                    nibbles(bytes, codes, |nibble| IQ4_NUMBERS[usize::from(nibble)]);
                }
            }
            TensorType::Mxfp4 => {
                self.of_32(half_power_of_two(block[0]), 0.0);
                nibbles(&block[1..], self.codes, |nibble| E2M1_DOUBLED[usize::from(nibble)]);
            }
        }
    }

    /// The scale and the smallest value of a block of 32; `least` is subtracted.
    #[inline(always)]
    fn of_32(&mut self, scale: f32, least: f32) {
        self.scales.fill(scale);
        self.least.fill(least);
    }

    /// The eight scales and smallest values of Q4_K and Q5_K: two f16 that multiply them, then 12 bytes with eight of
    /// each, of 6 bits. The first four are the lower bits of a byte of their own; the upper two bits of these bytes
    /// complete the last four, whose lower four bits share a byte.
    #[inline(always)]
    fn of_256(&mut self, block: &[u8]) {
        let (of_scales, of_least, bytes) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
        for j in 0..4 {
            let (low, next, high) = (bytes[j], bytes[j + 4], bytes[j + 8]);
            let scales = [(j, low & 63), (j + 4, high & 15 | low >> 6 << 4)];
            let least = [(j, next & 63), (j + 4, high >> 4 | next >> 6 << 4)];
            for (j, scale) in scales {
                self.scales[2 * j..2 * j + 2].fill(of_scales * f32::from(scale));
            }
            for (j, least) in least {
                self.least[2 * j..2 * j + 2].fill(of_least * f32::from(least));
            }
        }
    }

    /// Sixteen bytes with a scale in the lower half and a smallest value in the upper one, and behind the codes two f16
    /// that multiply them.
    #[inline(always)]
    fn of_q2_k(&mut self, block: &[u8]) {
        let (of_scales, of_least) = (half_at(block, 80), half_at(block, 82));
        for ((scale, least), byte) in self.scales.iter_mut().zip(self.least.iter_mut()).zip(&block[..16]) {
            *scale = of_scales * f32::from(byte & 15);
            *least = of_least * f32::from(byte >> 4);
        }
    }

    /// Sixteen scales of 6 bits, 32 higher than what they stand for, and an f16 that multiplies them. Eight bytes have
    /// the lower four bits of two scales each, eight apart; four bytes the upper two bits of four scales, four apart.
    #[inline(always)]
    fn of_q3_k(&mut self, block: &[u8]) {
        let (low, high, of_scales) = (&block[96..104], &block[104..108], half_at(block, 108));
        for (j, scale) in self.scales.iter_mut().enumerate() {
            let bits = low[j % 8] >> (j / 8 * 4) & 15 | (high[j % 4] >> (j / 4 * 2) & 3) << 4;
            *scale = of_scales * f32::from(bits as i8 - 32);
        }
        self.least.fill(0.0);
    }

    /// Eight scales of 6 bits, 32 higher than what they stand for, that an f16 multiplies: the upper two bits of all
    /// lie in 16 bits behind it, then the lower four in four bytes.
    #[inline(always)]
    fn of_iq4_xs(&mut self, block: &[u8]) {
        let (of_scales, high) = (half_at(block, 0), u16::from_le_bytes([block[2], block[3]]));
        for (j, scales) in self.scales.chunks_exact_mut(2).enumerate() {
            let bits = block[4 + j / 2] >> (j % 2 * 4) & 15 | ((high >> (2 * j) & 3) as u8) << 4;
            scales.fill(of_scales * f32::from(bits as i8 - 32));
        }
        self.least.fill(0.0);
    }

    /// 128 bytes with the lower four bits, 64 with the upper two, 16 scales, and an f16 that multiplies them. Of each
    /// 128 elements, the first 64 have the lower halves of 64 bytes; element `32 j + i` has bits `2 j` of byte `i`.
    #[inline(always)]
    fn of_q6_k(&mut self, block: &[u8]) {
        let (lower, upper, scales) = (&block[..128], &block[128..192], &block[192..208]);
        let of_scales = half_at(block, 208);
        for (scale, &byte) in self.scales.iter_mut().zip(scales) {
            *scale = of_scales * f32::from(byte as i8);
        }
        self.least.fill(0.0);
        for ((codes, lower), upper) in
            self.codes.chunks_exact_mut(128).zip(lower.chunks_exact(64)).zip(upper.chunks_exact(32))
        {
            for (j, codes) in codes.chunks_exact_mut(32).enumerate() {
                let lower = &lower[j % 2 * 32..][..32];
                for ((code, four), two) in codes.iter_mut().zip(lower).zip(upper) {
                    *code = ((four >> (j / 2 * 4) & 15 | (two >> (2 * j) & 3) << 4) as i8) - 32;
                }
            }
        }
    }
}

/// The two bytes at `at` as an f16. (The crate's conversion asks for the processor's instructions each time.)
#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    half(u32::from(u16::from_le_bytes([block[at], block[at + 1]])))
}

/// The f16 of these 16 bits. Without branches, so that loops over it are vectorised, and without subnormal operands,
/// which make some processors slow.
#[inline(always)]
pub fn half(bits: u32) -> f32 {
    /// The step of subnormal numbers.
    const LEAST: f32 = f32::from_bits((127 - 24) << 23);
    let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7fff);
    // The difference of the two exponents' biases.
    let normal = (rest << 13) + (112 << 23);
    let subnormal = (rest.cast_signed() as f32 * LEAST).to_bits();
    // The largest exponent is that of infinities and NaN.
    let normal = if rest >= 0x7c00 { normal | 0x7f80_0000 } else { normal };
    f32::from_bits(if rest < 0x400 { subnormal } else { normal } | sign)
}

/// A block of 32 whose byte `i` holds element `i` in its lower half and element `i + 16` in its upper one.
#[inline(always)]
fn nibbles(bytes: &[u8], codes: &mut [i8], code: impl Fn(u8) -> i8) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&bytes[..16]) {
        (*low, *high) = (code(byte & 15), code(byte >> 4));
    }
}

/// A block of 256 whose 64 neighbours lie in 32 bytes, the first 32 in the lower halves.
#[inline(always)]
fn nibbles_of_64(bytes: &[u8], codes: &mut [i8]) {
    for (codes, bytes) in codes.chunks_exact_mut(64).zip(bytes.chunks_exact(32)) {
        let (low, high) = codes.split_at_mut(32);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
            (*low, *high) = ((byte & 15) as i8, (byte >> 4) as i8);
        }
    }
}

/// A block of 256 whose 128 neighbours lie in 32 bytes: element `32 j + i` in bits `2 j` of byte `i`.
#[inline(always)]
fn two_bits(bytes: &[u8], codes: &mut [i8]) {
    for (codes, bytes) in codes.chunks_exact_mut(128).zip(bytes.chunks_exact(32)) {
        for (j, codes) in codes.chunks_exact_mut(32).enumerate() {
            codes.iter_mut().zip(bytes).for_each(|(code, byte)| *code = (byte >> (2 * j) & 3) as i8);
        }
    }
}

/// Bit `i` of the four bytes is the fifth one of element `i`.
#[inline(always)]
fn fifth_bits(bytes: &[u8], codes: &mut [i8]) {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= ((bits >> i & 1) << 4) as i8;
    }
}

/// `2^(exponent - 128)`: half of what an e8m0 scale means, as the values are doubled.
#[inline(always)]
pub fn half_power_of_two(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    // The smallest two are subnormal.
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::half_at;

    #[test]
    fn every_f16() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (half_at(&bits.to_le_bytes(), 0), f16::from_bits(bits).to_f32());
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{bits:#x}");
        }
    }
}
