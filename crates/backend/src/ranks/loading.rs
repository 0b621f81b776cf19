//! What is loaded once on all ranks: each rank's part of matrices, vectors and experts, and the buffers of activations.
//! How a layer is cut is `cut`'s to say.

use std::sync::{Arc, Mutex};

use super::cut::{self, ColumnsOf};
use super::members::lock;
use super::{Each, Portion, RankBuffer, RankExperts, RankMatrix, RankVector, Ranked, Ranks};
use crate::{ActivationDtype, ExpertKind, MatrixPart, Share, Split, WeightView};
use offshoot_core::error::Result;

/// As each rank's thread changes it.
pub(super) fn shared<T>(each: Vec<T>) -> Each<T> {
    Arc::new(each.into_iter().map(Mutex::new).collect())
}

impl<B: Ranked> Ranks<B> {
    fn each_buffer(&self, width: usize, holds: ActivationDtype) -> Result<Each<B::Buffer>> {
        Ok(shared(self.members.try_each(|rank| rank.backend.buffer(width, holds))?))
    }

    /// Each rank's part of a matrix.
    pub(super) fn load_matrix(&self, parts: &[MatrixPart<'_>], split: &Split) -> Result<RankMatrix<B>> {
        let (count, sharing, portion) = (self.count(), self.sharing, self.portion(split));
        let each = match (portion, split) {
            (Portion::Outputs, Split::Outputs(segments)) => self.members.try_each(|rank| {
                let own = cut::rows(parts, cut::shares(segments, rank.number, count, sharing));
                let outputs = parts.iter().map(MatrixPart::rows).sum();
                Ok(vec![rank.backend.matrix_of_outputs(&own, outputs)?])
            })?,
            (Portion::Inputs, _) => {
                let width = parts[0].cols() / (count * self.parts);
                self.members.try_each(|rank| {
                    let matrix = |part: usize| {
                        let first = (rank.number * self.parts + part) * width;
                        let columns = parts.iter().map(|part| cut::columns(part, first..first + width));
                        let columns = columns.collect::<Result<Vec<_>>>()?;
                        rank.backend.matrix(&columns.iter().map(ColumnsOf::part).collect::<Vec<_>>())
                    };
                    let mut matrices = (0..self.parts).map(matrix).collect::<Result<Vec<_>>>()?;
                    rank.backend.join_parts(&mut matrices)?;
                    Ok(matrices)
                })?
            }
            _ => self.members.try_each(|rank| Ok(vec![rank.backend.matrix(parts)?]))?,
        };
        Ok(RankMatrix { each: Arc::new(each), portion })
    }

    /// Each rank's part of a vector.
    pub(super) fn load_vector(&self, parts: &[WeightView<'_>], split: &Split) -> Result<RankVector<B>> {
        let (count, sharing, portion) = (self.count(), self.sharing, self.portion(split));
        let each = self.members.try_each(|rank| match (portion, split) {
            (Portion::Outputs, Split::Outputs(segments)) => {
                rank.backend.vector(&cut::elements(parts, cut::shares(segments, rank.number, count, sharing)))
            }
            _ => rank.backend.vector(parts),
        })?;
        Ok(RankVector(Arc::new(each)))
    }

    /// Each rank's part of experts.
    pub(super) fn load_experts(
        &self,
        matrices: Vec<RankMatrix<B>>,
        biases: Vec<RankVector<B>>,
        kind: ExpertKind,
    ) -> Result<RankExperts<B>> {
        let portion = matrices.first().map_or(Portion::Whole, |matrix| matrix.portion);
        let mut of_ranks: Vec<Vec<Vec<B::Matrix>>> = (0..self.count()).map(|_| Vec::new()).collect();
        for matrix in matrices {
            let each = Arc::into_inner(matrix.each).expect("a matrix that no op has used has one owner");
            for (rank, parts) in each.into_iter().enumerate() {
                of_ranks[rank].resize_with(parts.len(), Vec::new);
                of_ranks[rank].iter_mut().zip(parts).for_each(|(own, matrix)| own.push(matrix));
            }
        }
        let mut of_biases: Vec<Vec<B::Vector>> = (0..self.count()).map(|_| Vec::new()).collect();
        for bias in biases {
            let each = Arc::into_inner(bias.0).expect("a vector that no op has used has one owner");
            of_biases.iter_mut().zip(each).for_each(|(own, bias)| own.push(bias));
        }
        let given: Vec<_> = of_ranks.into_iter().zip(of_biases).map(|given| Mutex::new(Some(given))).collect();
        let each = self.members.try_each(|rank| {
            let (parts, biases) = lock(&given[rank.number]).take().expect("each rank takes its own once");
            let mut biases = Some(biases);
            let experts = |(part, matrices)| {
                // Of divided inputs a bias is added once.
                let is_biased = portion != Portion::Inputs || (rank.number == 0 && part == 0);
                let biases = if is_biased { biases.take().unwrap_or_default() } else { Vec::new() };
                rank.backend.experts(matrices, biases, kind)
            };
            parts.into_iter().enumerate().map(experts).collect()
        })?;
        Ok(RankExperts { each: Arc::new(each), portion })
    }

    /// A buffer of all ranks, and those that its share needs beside it.
    pub(super) fn load_buffer(&mut self, width: usize, holds: ActivationDtype, share: Share) -> Result<RankBuffer<B>> {
        self.prepare_sums(share, holds)?;
        let (count, parts) = (self.count(), self.parts);
        let of_parts = if let Share::Summed { parts } = share { parts } else { holds };
        let buffers = |number: usize, width: usize| {
            (0..number).map(|_| self.each_buffer(width, of_parts)).collect::<Result<Vec<_>>>()
        };
        let own_width = match share {
            Share::Columns => width / count,
            Share::Heads(heads) => self.heads(heads).qkv_width(),
            Share::Whole | Share::Summed { .. } | Share::Gathered | Share::Parts => width,
        };
        let others = match share {
            Share::Whole | Share::Columns | Share::Heads(_) => Vec::new(),
            Share::Summed { .. } => buffers(parts, width)?,
            // A width that the ranks do not divide is that of matrices which all have whole.
            Share::Gathered => buffers(usize::from(width.is_multiple_of(count)), width / count)?,
            Share::Parts => buffers(parts - 1, width)?,
        };
        let columns = match share {
            Share::Columns if parts > 1 => Some(self.each_buffer(own_width / parts, holds)?),
            _ => None,
        };
        Ok(RankBuffer {
            share,
            holds,
            width: own_width,
            own: self.each_buffer(own_width, holds)?,
            parts: others,
            columns,
        })
    }
}
