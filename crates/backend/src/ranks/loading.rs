//! A rank's part of matrices, vectors and experts, and the buffers of activations. How a layer is cut is left to `cut`.

use std::cell::RefCell;

use super::cut::{self, ColumnsOf};
use super::{Place, Portion, Rank, RankBuffer, RankShare, Ranked};
use crate::{ActivationDtype, ExpertKind, HeldPart, Share, Split, WeightFormat, WeightView, with_dense};
use offshoot_core::error::Result;

/// Whether the inputs of experts of this width are divided into so many parts where they are stored as `format`.
pub fn divides_experts(format: WeightFormat, width: usize, parts: usize) -> bool {
    match format {
        WeightFormat::Dense(_) => true,
        WeightFormat::Quantised(format) => width.is_multiple_of(parts * format.group.map_or(1, |group| group as usize)),
        WeightFormat::Blocks(_) => false,
    }
}

impl<B: Ranked> Rank<B> {
    /// Its part of a matrix.
    pub(super) fn load_matrix(&mut self, parts: &[HeldPart<'_>], split: &Split) -> Result<RankShare<B::Matrix>> {
        let Place { number, count, sharing, .. } = *self.place();
        let (portion, of_sum) = (self.portion(split), self.parts());
        let device = &mut self.0;
        let each = match (portion, split) {
            (Portion::Outputs, Split::Outputs(segments)) => {
                let outputs = parts.iter().map(|held| held.part.rows()).sum();
                let own = cut::rows(parts, cut::shares(segments, number, count, sharing));
                vec![with_dense(&own, |own| device.matrix_of_outputs(own, outputs))?]
            }
            (Portion::Inputs, _) => {
                let width = parts[0].part.cols() / count;
                let own = columns(parts, number * width, width)?;
                let own: Vec<_> = own.iter().map(ColumnsOf::part).collect();
                let mut matrix = |own: &[HeldPart<'_>]| with_dense(own, |own| device.matrix(own));
                let mut matrices = match of_sum {
                    1 => vec![matrix(&own)?],
                    of_sum => {
                        let width = width / of_sum;
                        let part = |part: usize| {
                            let columns = columns(&own, part * width, width)?;
                            matrix(&columns.iter().map(ColumnsOf::part).collect::<Vec<_>>())
                        };
                        (0..of_sum).map(part).collect::<Result<_>>()?
                    }
                };
                device.join_parts(&mut matrices)?;
                matrices
            }
            _ => vec![with_dense(parts, |parts| device.matrix(parts))?],
        };
        Ok(RankShare { each, portion })
    }

    /// Its part of a vector.
    pub(super) fn load_vector(&mut self, parts: &[WeightView<'_>], split: &Split) -> Result<B::Vector> {
        let Place { number, count, sharing, .. } = *self.place();
        match (self.portion(split), split) {
            (Portion::Outputs, Split::Outputs(segments)) => {
                self.0.vector(&cut::elements(parts, cut::shares(segments, number, count, sharing)))
            }
            _ => self.0.vector(parts),
        }
    }

    /// Its part of experts.
    pub(super) fn load_experts(
        &mut self,
        matrices: Vec<RankShare<B::Matrix>>,
        biases: Vec<B::Vector>,
        kind: ExpertKind,
    ) -> Result<RankShare<B::Experts>> {
        let portion = matrices.first().map_or(Portion::Whole, |matrix| matrix.portion);
        let mut of_parts: Vec<Vec<B::Matrix>> = Vec::new();
        for matrix in matrices {
            of_parts.resize_with(matrix.each.len(), Vec::new);
            of_parts.iter_mut().zip(matrix.each).for_each(|(experts, matrix)| experts.push(matrix));
        }
        // Of divided inputs a bias is added once, by the first part.
        let is_biased = portion != Portion::Inputs || self.place().number == 0;
        let mut biases = if is_biased { biases } else { Vec::new() };
        let experts = |matrices| self.0.experts(matrices, std::mem::take(&mut biases), kind);
        Ok(RankShare { each: of_parts.into_iter().map(experts).collect::<Result<_>>()?, portion })
    }

    /// A buffer, and those that its share needs beside it.
    pub(super) fn load_buffer(&mut self, width: usize, holds: ActivationDtype, share: Share) -> Result<RankBuffer<B>> {
        let (count, parts) = (self.place().count, self.parts());
        let of_parts = match share {
            Share::Summed { parts, inputs } => {
                let how = self.reduced(inputs);
                self.exchange(|device, fabric, number| device.prepare_sums(fabric, number, parts, how))?;
                parts
            }
            _ => holds,
        };
        let own_width = match share {
            Share::Columns => width / count,
            Share::Heads(heads) => self.heads(heads).qkv_width(),
            Share::Whole | Share::Summed { .. } | Share::Gathered | Share::Parts => width,
        };
        let (number, other_width) = match share {
            Share::Whole | Share::Columns | Share::Heads(_) => (0, 0),
            Share::Summed { .. } => (parts, width),
            // A width that the ranks do not divide is that of matrices which all have whole.
            Share::Gathered => (usize::from(width.is_multiple_of(count)), width / count),
            Share::Parts => (parts - 1, width),
        };
        let part_width = own_width / parts;
        let columns = match share {
            Share::Columns if parts > 1 => Some(RefCell::new(self.0.buffer(part_width, holds)?)),
            _ => None,
        };
        Ok(RankBuffer {
            share,
            own: self.0.buffer(own_width, holds)?,
            parts: (0..number).map(|_| self.0.buffer(other_width, of_parts)).collect::<Result<_>>()?,
            columns,
            part_width,
        })
    }
}

/// `width` columns of each part.
fn columns<'a>(parts: &[HeldPart<'a>], first: usize, width: usize) -> Result<Vec<ColumnsOf<'a>>> {
    parts.iter().map(|part| cut::columns(part, first..first + width)).collect()
}
