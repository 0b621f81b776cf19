//! The codes of 32 inputs of a panel's 16 outputs, as kernels read them: lines of 64 bytes, four neighbouring inputs of
//! each output. Codes are raised so that none is negative, which dot products of unsigned by signed bytes ask for.

use crate::gemm::pack::PANEL;
use offshoot_gguf::{IQ4_NUMBERS, LIFTED, TensorType};

/// Lines of four inputs: words of four bytes for 16 outputs.
pub const WORDS: usize = LIFTED / 4;
/// Bytes of a line.
pub const LINE: usize = 4 * PANEL;

/// Where the bits of a code lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeLines {
    /// Bits `2 i` of the first line's bytes have inputs `4 i ..`, those of the second one's inputs `16 + 4 i ..`.
    Two,
    /// `Two`, and a line with the third bits: bit `i` of its bytes belongs to inputs `4 i ..`.
    Three,
    /// A byte each: line `i` has inputs `4 i` to `4 i + 3`.
    Bytes,
    /// The lower halves of line `i` have inputs `4 i ..`, the upper ones inputs `16 + 4 i ..`.
    Nibbles,
    /// `Nibbles`, and a line with the fifth bits: bit `i` of its bytes belongs to inputs `4 i ..`.
    Five,
    /// `Nibbles`, and two lines with the upper two bits: bits `2 i` of the first one's bytes belong to inputs `4 i ..`,
    /// those of the second one to inputs `16 + 4 i ..`.
    Six,
    /// `Nibbles` that stand for the numbers of [`E2M1_RAISED`].
    Fp4,
    /// `Nibbles` that stand for the numbers of [`IQ4_RAISED`].
    Iq4,
}

/// The numbers of e2m1, doubled and raised by 12.
pub const E2M1_RAISED: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// The numbers of IQ4_NL and IQ4_XS, raised by 128.
pub const IQ4_RAISED: [u8; 16] = {
    let (mut raised, mut i) = ([0; 16], 0);
    while i < 16 {
        raised[i] = (IQ4_NUMBERS[i] as u8) ^ 128;
        i += 1;
    }
    raised
};

impl CodeLines {
    pub fn of(kind: TensorType) -> Self {
        match kind {
            TensorType::Q2K => CodeLines::Two,
            TensorType::Q3K => CodeLines::Three,
            TensorType::Q8_0 => CodeLines::Bytes,
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4K => CodeLines::Nibbles,
            TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => CodeLines::Five,
            TensorType::Q6K => CodeLines::Six,
            TensorType::Mxfp4 => CodeLines::Fp4,
            TensorType::Iq4Nl | TensorType::Iq4Xs => CodeLines::Iq4,
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => panic!("{kind} has no codes"),
        }
    }

    pub const fn lines(self) -> usize {
        match self {
            CodeLines::Two => 2,
            CodeLines::Three => 3,
            CodeLines::Bytes => 8,
            CodeLines::Nibbles | CodeLines::Fp4 | CodeLines::Iq4 => 4,
            CodeLines::Five => 5,
            CodeLines::Six => 6,
        }
    }

    /// Scales of 32 inputs: one, or one for each half of them.
    pub const fn splits(self) -> usize {
        if matches!(self, CodeLines::Two | CodeLines::Three | CodeLines::Six) { 2 } else { 1 }
    }

    /// Bytes of 32 inputs of a panel.
    pub const fn bytes(self) -> usize {
        self.lines() * LINE
    }

    /// Writes the raised code of input `k` of output `lane` into lines of zeros.
    pub fn put(self, lines: &mut [u8], k: usize, lane: usize, code: u8) {
        let (word, at) = (k / 4, lane * 4 + k % 4);
        match self {
            CodeLines::Bytes => {
                lines[word * LINE + at] = code;
                return;
            }
            CodeLines::Two | CodeLines::Three => {
                lines[word / 4 * LINE + at] |= (code & 3) << (2 * (word % 4));
                if self == CodeLines::Three {
                    lines[2 * LINE + at] |= (code >> 2) << word;
                }
                return;
            }
            CodeLines::Nibbles | CodeLines::Five | CodeLines::Six | CodeLines::Fp4 | CodeLines::Iq4 => {}
        }
        let in_table = |table: &[u8; 16]| {
            table.iter().position(|raised| *raised == code).expect("a number of the type, raised") as u8
        };
        let code = match self {
            CodeLines::Fp4 => in_table(&E2M1_RAISED),
            CodeLines::Iq4 => in_table(&IQ4_RAISED),
            _ => code,
        };
        lines[word % 4 * LINE + at] |= (code & 15) << (word / 4 * 4);
        match self {
            CodeLines::Five => lines[4 * LINE + at] |= (code >> 4) << word,
            CodeLines::Six => lines[(4 + word / 4) * LINE + at] |= (code >> 4) << (2 * (word % 4)),
            _ => {}
        }
    }

    /// The raised codes: `[word][lane][4]`.
    #[inline(always)]
    pub fn unpack(self, lines: &[u8], out: &mut [[u8; LINE]; WORDS]) {
        let (lines, _) = lines.as_chunks::<LINE>();
        for (word, out) in out.iter_mut().enumerate() {
            let line = match self {
                CodeLines::Bytes => &lines[word],
                CodeLines::Two | CodeLines::Three => &lines[word / 4],
                _ => &lines[word % 4],
            };
            for (b, out) in out.iter_mut().enumerate() {
                let nibble = line[b] >> (word / 4 * 4) & 15;
                *out = match self {
                    CodeLines::Two => line[b] >> (2 * (word % 4)) & 3,
                    CodeLines::Three => line[b] >> (2 * (word % 4)) & 3 | (lines[2][b] >> word & 1) << 2,
                    CodeLines::Bytes => line[b],
                    CodeLines::Nibbles => nibble,
                    CodeLines::Five => nibble | (lines[4][b] >> word & 1) << 4,
                    CodeLines::Six => nibble | (lines[4 + word / 4][b] >> (2 * (word % 4)) & 3) << 4,
                    CodeLines::Fp4 => E2M1_RAISED[usize::from(nibble)],
                    CodeLines::Iq4 => IQ4_RAISED[usize::from(nibble)],
                };
            }
        }
    }
}

/// What the codes of a type are raised by.
pub fn raised_by(kind: TensorType) -> i16 {
    match kind {
        TensorType::Q8_0 | TensorType::Iq4Nl | TensorType::Iq4Xs => 128,
        TensorType::Q3K => 4,
        TensorType::Q4_0 => 8,
        TensorType::Q5_0 => 16,
        TensorType::Q6K => 32,
        TensorType::Mxfp4 => 12,
        _ => 0,
    }
}
