//! The element types of GGUF tensors: their numbers in files, their names, and the size of their blocks. `blocks` says
//! what the bytes of a block mean.

use serde::{Deserialize, Serialize};

use offshoot_core::named;

/// How the elements of a tensor are stored. Quantised types store 32 or 256 neighbours of a row as one block, with
/// scales of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorType {
    F32,
    F16,
    Bf16,
    /// 4 bits and a scale for 32 elements.
    Q4_0,
    /// 4 bits, a scale and a smallest value for 32 elements.
    Q4_1,
    /// 5 bits and a scale for 32 elements.
    Q5_0,
    /// 5 bits, a scale and a smallest value for 32 elements.
    Q5_1,
    /// 8 bits and a scale for 32 elements.
    Q8_0,
    /// 2 bits; 256 elements with 16 scales and smallest values of 4 bits.
    Q2K,
    /// 3 bits; 256 elements with 16 scales of 6 bits.
    Q3K,
    /// 4 bits; 256 elements with 8 scales and smallest values of 6 bits.
    Q4K,
    /// 5 bits; 256 elements with 8 scales and smallest values of 6 bits.
    Q5K,
    /// 6 bits; 256 elements with 16 scales of 8 bits.
    Q6K,
    /// One of 16 numbers, which lie closer around 0, and a scale for 32 elements.
    Iq4Nl,
    /// The same; 256 elements with 8 scales of 6 bits.
    Iq4Xs,
    /// Floats of 4 bits (e2m1) and a power of two for 32 elements.
    Mxfp4,
}

// The names are llama.cpp's.
named!(TensorType {
    F32 = "F32",
    F16 = "F16",
    Bf16 = "BF16",
    Q4_0 = "Q4_0",
    Q4_1 = "Q4_1",
    Q5_0 = "Q5_0",
    Q5_1 = "Q5_1",
    Q8_0 = "Q8_0",
    Q2K = "Q2_K",
    Q3K = "Q3_K",
    Q4K = "Q4_K",
    Q5K = "Q5_K",
    Q6K = "Q6_K",
    Iq4Nl = "IQ4_NL",
    Iq4Xs = "IQ4_XS",
    Mxfp4 = "MXFP4",
});

impl TensorType {
    /// The number that files write.
    pub fn number(self) -> u32 {
        match self {
            TensorType::F32 => 0,
            TensorType::F16 => 1,
            TensorType::Q4_0 => 2,
            TensorType::Q4_1 => 3,
            TensorType::Q5_0 => 6,
            TensorType::Q5_1 => 7,
            TensorType::Q8_0 => 8,
            TensorType::Q2K => 10,
            TensorType::Q3K => 11,
            TensorType::Q4K => 12,
            TensorType::Q5K => 13,
            TensorType::Q6K => 14,
            TensorType::Iq4Nl => 20,
            TensorType::Iq4Xs => 23,
            TensorType::Bf16 => 30,
            TensorType::Mxfp4 => 39,
        }
    }

    pub fn by_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Elements of a block.
    pub const fn block_elements(self) -> usize {
        match self {
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => 1,
            TensorType::Q2K
            | TensorType::Q3K
            | TensorType::Q4K
            | TensorType::Q5K
            | TensorType::Q6K
            | TensorType::Iq4Xs => 256,
            _ => 32,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            TensorType::F32 => 4,
            TensorType::F16 | TensorType::Bf16 => 2,
            TensorType::Q4_0 => 2 + 16,
            TensorType::Q4_1 => 2 + 2 + 16,
            TensorType::Q5_0 => 2 + 4 + 16,
            TensorType::Q5_1 => 2 + 2 + 4 + 16,
            TensorType::Q8_0 => 2 + 32,
            TensorType::Q2K => 16 + 64 + 2 + 2,
            TensorType::Q3K => 32 + 64 + 12 + 2,
            TensorType::Q4K => 2 + 2 + 12 + 128,
            TensorType::Q5K => 2 + 2 + 12 + 32 + 128,
            TensorType::Q6K => 128 + 64 + 16 + 2,
            TensorType::Iq4Nl => 2 + 16,
            TensorType::Iq4Xs => 2 + 2 + 4 + 128,
            TensorType::Mxfp4 => 1 + 16,
        }
    }

    /// Bytes of a row of `columns` elements, which are whole blocks.
    pub fn row_bytes(self, columns: usize) -> usize {
        columns / self.block_elements() * self.block_bytes()
    }
}

/// `one of F32, F16, ...`
pub(super) fn supported() -> String {
    let names: Vec<&str> = TensorType::ALL.into_iter().map(TensorType::name).collect();
    format!("one of {}", names.join(", "))
}

/// The name of a type that is not read, if it has one.
pub(super) fn other_name(number: u32) -> Option<&'static str> {
    Some(match number {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24..=28 => "a type of whole numbers or F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        _ => return None,
    })
}
