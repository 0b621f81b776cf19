//! What the bytes of a block mean: one clear loop for each type, which every faster path is compared with. The layouts
//! are those of ggml-common.h and ggml-quants.c (llama.cpp); all arithmetic is in f32, in their order.

use half::{bf16, f16};

use super::TensorType;

/// Elements of a block of the types with scales in two steps.
const SUPER: usize = 256;
/// The values of e2m1, twice as large, so that they are whole numbers.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl TensorType {
    /// The elements of whole blocks. Panics unless `bytes` and `out` are as many blocks.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        let (blocks, elements) = (bytes.chunks_exact(self.block_bytes()), self.block_elements());
        assert!(blocks.remainder().is_empty() && out.len() == blocks.len() * elements, "whole blocks");
        for (block, out) in blocks.zip(out.chunks_exact_mut(elements)) {
            self.decode_block(block, out);
        }
    }

    fn decode_block(self, block: &[u8], out: &mut [f32]) {
        match self {
            TensorType::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
            TensorType::F16 => out[0] = half_at(block, 0),
            TensorType::Bf16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
            TensorType::Q4_0 => {
                let scale = half_at(block, 0);
                halves(&block[2..], out, |nibble, _| scale * (f32::from(nibble) - 8.0));
            }
            TensorType::Q4_1 => {
                let (scale, least) = (half_at(block, 0), half_at(block, 2));
                halves(&block[4..], out, |nibble, _| scale * f32::from(nibble) + least);
            }
            TensorType::Q5_0 => {
                let (scale, fifth) = (half_at(block, 0), fifth_bits(&block[2..]));
                halves(&block[6..], out, |nibble, i| scale * (f32::from(nibble | fifth(i)) - 16.0));
            }
            TensorType::Q5_1 => {
                let (scale, least, fifth) = (half_at(block, 0), half_at(block, 2), fifth_bits(&block[4..]));
                halves(&block[8..], out, |nibble, i| scale * f32::from(nibble | fifth(i)) + least);
            }
            TensorType::Q8_0 => {
                let scale = half_at(block, 0);
                for (out, &byte) in out.iter_mut().zip(&block[2..]) {
                    *out = scale * f32::from(byte as i8);
                }
            }
            TensorType::Q4K => {
                let (scales, quants) = (SubScales::of(block), &block[16..]);
                for (i, out) in out.iter_mut().enumerate() {
                    *out = scales.apply(i / 32, nibble_of_64(quants, i));
                }
            }
            TensorType::Q5K => {
                let (scales, fifth, quants) = (SubScales::of(block), &block[16..48], &block[48..]);
                for (i, out) in out.iter_mut().enumerate() {
                    // Bit `i / 32` of the byte for place `i % 32`.
                    let fifth = (fifth[i % 32] >> (i / 32) & 1) << 4;
                    *out = scales.apply(i / 32, nibble_of_64(quants, i) | fifth);
                }
            }
            TensorType::Q6K => decode_q6_k(block, out),
            TensorType::Mxfp4 => {
                let scale = half_power_of_two(block[0]);
                halves(&block[1..], out, |nibble, _| scale * f32::from(E2M1_DOUBLED[usize::from(nibble)]));
            }
        }
    }
}

/// The two bytes at `at` as an f16.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// A block of 32 whose byte `i` holds element `i` in its lower half and element `i + 16` in its upper one. `value`: of the
/// four bits and the element's index.
fn halves(bytes: &[u8], out: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    for (i, &byte) in bytes.iter().enumerate() {
        out[i] = value(byte & 15, i);
        out[i + 16] = value(byte >> 4, i + 16);
    }
}

/// The fifth bit of element `i`, in its place: bit `i` of the 32.
fn fifth_bits(bytes: &[u8]) -> impl Fn(usize) -> u8 {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    move |i| ((bits >> i & 1) as u8) << 4
}

/// The four bits of element `i` of a block of 256: 64 elements lie in 32 bytes, the first 32 in the lower halves.
fn nibble_of_64(bytes: &[u8], i: usize) -> u8 {
    let byte = bytes[i / 64 * 32 + i % 32];
    if i % 64 < 32 { byte & 15 } else { byte >> 4 }
}

/// The scales and smallest values of the eight sub-blocks of Q4_K and Q5_K.
struct SubScales {
    scale: [f32; 8],
    least: [f32; 8],
}

impl SubScales {
    /// From the block's beginning: two f16 that multiply the scales and the smallest values, then 12 bytes with eight
    /// of each, of 6 bits. The first four are the lower bits of a byte of their own; the upper two bits of these bytes
    /// complete the last four, whose lower four bits share a byte.
    fn of(block: &[u8]) -> Self {
        let (of_scales, of_least, bytes) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
        let scale = |j: usize| match j {
            0..4 => bytes[j] & 63,
            _ => bytes[j + 4] & 15 | bytes[j - 4] >> 6 << 4,
        };
        let least = |j: usize| match j {
            0..4 => bytes[j + 4] & 63,
            _ => bytes[j + 4] >> 4 | bytes[j] >> 6 << 4,
        };
        Self {
            scale: std::array::from_fn(|j| of_scales * f32::from(scale(j))),
            least: std::array::from_fn(|j| of_least * f32::from(least(j))),
        }
    }

    fn apply(&self, sub: usize, quant: u8) -> f32 {
        self.scale[sub] * f32::from(quant) - self.least[sub]
    }
}

/// 128 bytes with the lower four bits, 64 with the upper two, 16 scales, and an f16 that multiplies them. Of each 128
/// elements, the first 64 have the lower halves of 64 bytes; element `i` has bits `2 (i / 32)` of byte `i % 32`.
fn decode_q6_k(block: &[u8], out: &mut [f32]) {
    let (lower, upper, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let of_scales = half_at(block, 208);
    for i in 0..SUPER {
        let (half, place) = (i / 128, i % 128);
        let byte = lower[half * 64 + place % 64];
        let four = if place < 64 { byte & 15 } else { byte >> 4 };
        let two = upper[half * 32 + place % 32] >> (2 * (place / 32)) & 3;
        let scale = of_scales * f32::from(scales[i / 16] as i8);
        out[i] = scale * (f32::from(four | two << 4) - 32.0);
    }
}

/// `2^(exponent - 128)`: half of what an e8m0 scale means, as the values are doubled.
fn half_power_of_two(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    // The smallest two are subnormal.
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
}
