//! Checks that chunking changes no bit of a model's logits: runs a text in one step and in steps of odd sizes. On
//! backends that do not guarantee this, only checks that logits are finite.

use std::fmt;

use offshoot_backend::Backend;
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;

use super::super::decoder::Decoder;
use super::super::sequence::Sequence;

/// Chunk sizes that do not align with pages or tiles; the last one repeats.
const CHUNKS: [usize; 6] = [1, 2, 5, 3, 17, 7];

/// The result of the check, printable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkReport {
    pub tokens: usize,
    /// Logits whose bits differ, over all positions.
    pub different: usize,
    /// Whether the backend guarantees equal bits (see `backend`).
    pub promised: bool,
    /// Logits that are NaN or infinite.
    pub not_finite: usize,
}

impl ChunkReport {
    pub fn passes(&self) -> bool {
        (self.different == 0 || !self.promised) && self.not_finite == 0
    }
}

/// Compares the logits of every position of `tokens`, bit by bit.
pub fn chunks<B: Backend>(backend: &mut B, model: &mut Decoder<B>, tokens: &[TokenId]) -> Result<ChunkReport> {
    let rows = |chunk: &[TokenId]| 0..u32::try_from(chunk.len()).expect("a step has fewer than 2^32 rows");
    let whole = Sequence::new(backend, model, tokens.len())?.extend(tokens, rows(tokens))?;
    let mut sequence = Sequence::new(backend, model, tokens.len())?;
    let (mut chunked, mut left) = (Vec::with_capacity(whole.len()), tokens);
    let mut sizes = CHUNKS.iter().chain(std::iter::repeat(&CHUNKS[CHUNKS.len() - 1]));
    while !left.is_empty() {
        let size = sizes.next().map_or(left.len(), |&size| size.min(left.len()));
        let (chunk, rest) = left.split_at(size);
        chunked.extend(sequence.extend(chunk, rows(chunk))?);
        left = rest;
    }
    let different = whole.iter().zip(&chunked).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let not_finite = whole.iter().filter(|logit| !logit.is_finite()).count();
    Ok(ChunkReport { tokens: tokens.len(), different, promised: backend.tile() > 1, not_finite })
}

impl fmt::Display for ChunkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.not_finite > 0 {
            return write!(
                f,
                "{} logits of {} tokens are not finite: the weights hold NaN or infinity",
                self.not_finite, self.tokens
            );
        }
        match self.different {
            0 => write!(f, "{} tokens in one step and in chunks: the same bits", self.tokens),
            n if !self.promised => {
                write!(
                    f,
                    "{} tokens in one step and in chunks: {n} logits differ in bits, which this device may do",
                    self.tokens
                )
            }
            n => write!(f, "{} tokens in one step and in chunks: {n} logits differ", self.tokens),
        }
    }
}
