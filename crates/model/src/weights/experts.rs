//! The matrices and biases of experts, one for each, from whichever form a checkpoint stores them in.

use rayon::prelude::*;

use offshoot_backend::{Backend, MatrixPart, QuantSource, QuantView, Split, WeightView};
use offshoot_core::error::Result;

use super::super::layout::{Dim, ExpertMatrices, TensorSpec};
use super::quantised::Check;
use super::{RandomWeights, WeightSource, multiplies_experts, split_vector_of};

impl WeightSource {
    /// A matrix `[out, in]` for each expert of this width; gate is above up.
    pub fn expert_matrices<B: Backend>(
        &self,
        backend: &mut B,
        stored: &ExpertMatrices,
        width: usize,
        split: &Split,
    ) -> Result<Vec<B::Matrix>> {
        let (tensor, transposed) = match stored {
            ExpertMatrices::Separate(experts) => {
                return experts.iter().map(|specs| self.expert_matrix(backend, specs, width, split)).collect();
            }
            ExpertMatrices::Mxfp4 { tensor, alternating } => {
                return self.mxfp4_experts(backend, tensor, *alternating, width, split);
            }
            ExpertMatrices::Stacked(tensor) => (tensor, None),
            ExpertMatrices::Transposed { tensor, alternating } => (tensor, Some(*alternating)),
        };
        match self {
            WeightSource::Checkpoint { checkpoint, .. } => {
                let specs = std::slice::from_ref(tensor);
                let made = checkpoint.made_format(tensor);
                checkpoint.packed(specs, |views| {
                    if made.is_some() && backend.is_first() {
                        checkpoint.refuse_nan(&views[0], tensor)?;
                    }
                    let experts = (0..tensor.shape[0].size).map(|expert| {
                        let view = slice(&views[0], tensor, expert);
                        let turned = transposed.map(|alternating| turned(&view, alternating));
                        let view = match &turned {
                            Some(bytes) => WeightView { rows: view.cols, cols: view.rows, bytes, ..view },
                            None => view,
                        };
                        let part = match made {
                            None => MatrixPart::Dense(view),
                            Some(format) => {
                                let source = QuantSource::Dense(view);
                                MatrixPart::Quantised(QuantView::of(format, view.rows, view.cols, source))
                            }
                        };
                        self.matrix_of(backend, specs, &[part], split, multiplies_experts(width))
                    });
                    experts.collect()
                })
            }
            WeightSource::Random(random) => {
                let (mut rows, mut cols) = (tensor.shape[1], tensor.shape[2]);
                if transposed.is_some() {
                    (rows, cols) = (cols, rows);
                }
                self.random_experts(backend, random, tensor, [rows, cols], width, split)
            }
        }
    }

    /// Experts in blocks of 32 inputs with a scale each.
    fn mxfp4_experts<B: Backend>(
        &self,
        backend: &mut B,
        tensor: &TensorSpec,
        alternating: bool,
        width: usize,
        split: &Split,
    ) -> Result<Vec<B::Matrix>> {
        let count = tensor.shape[0].size;
        match self {
            WeightSource::Checkpoint { checkpoint, .. } => {
                let stored = checkpoint.mxfp4(tensor, Check::on(backend))?;
                let specs = [tensor.clone(), tensor.clone()];
                let matrices = (0..count).map(|expert| {
                    let parts = stored.expert(expert, count, alternating);
                    self.matrix_of(backend, &specs, &parts, split, multiplies_experts(width))
                });
                let matrices = matrices.collect();
                stored.release();
                matrices
            }
            WeightSource::Random(random) => {
                self.random_experts(backend, random, tensor, [tensor.shape[1], tensor.shape[2]], width, split)
            }
        }
    }

    /// `shape`: outputs and inputs of an expert.
    fn random_experts<B: Backend>(
        &self,
        backend: &mut B,
        random: &RandomWeights,
        tensor: &TensorSpec,
        shape: [Dim; 2],
        width: usize,
        split: &Split,
    ) -> Result<Vec<B::Matrix>> {
        let format = random.config.format(tensor, random.dtype);
        let experts = (0..tensor.shape[0].size).map(|expert| {
            let spec = TensorSpec { name: format!("{}.{expert}", tensor.name), shape: shape.to_vec() };
            let part = random.part(&spec, format);
            self.matrix_of(backend, &[spec], &[part], split, multiplies_experts(width))
        });
        experts.collect()
    }

    /// A vector for each expert from `[experts, out]`; `alternating`: gate and up in turn, to be set apart.
    pub fn expert_biases<B: Backend>(
        &self,
        backend: &mut B,
        tensor: &TensorSpec,
        alternating: bool,
        split: &Split,
    ) -> Result<Vec<B::Vector>> {
        let values = self.values(tensor)?;
        let order = order(tensor.cols(), alternating);
        let experts = values.chunks_exact(tensor.cols());
        experts
            .map(|expert| {
                let ordered: Vec<f32> = order.iter().map(|&i| expert[i]).collect();
                split_vector_of(backend, &ordered, split)
            })
            .collect()
    }
}

/// One expert of a tensor of three sizes.
fn slice<'a>(view: &WeightView<'a>, tensor: &TensorSpec, expert: usize) -> WeightView<'a> {
    let (rows, cols) = (tensor.shape[1].size, tensor.shape[2].size);
    let bytes = rows * cols * view.dtype.bytes();
    WeightView { rows, cols, bytes: &view.bytes[expert * bytes..][..bytes], ..*view }
}

/// The bytes of `[in, out]` as `[out, in]`, with gate and up set apart if they alternate.
fn turned(view: &WeightView<'_>, alternating: bool) -> Vec<u8> {
    match view.dtype.bytes() {
        2 => turned_elements::<2>(view, alternating),
        _ => turned_elements::<4>(view, alternating),
    }
}

/// In squares, so that a line of the cache is used whole while it is there. `SIZE`: bytes of an element.
fn turned_elements<const SIZE: usize>(view: &WeightView<'_>, alternating: bool) -> Vec<u8> {
    const SIDE: usize = 64;
    let (from, _) = view.bytes.as_chunks::<SIZE>();
    let order = order(view.cols, alternating);
    let mut turned = vec![[0; SIZE]; from.len()];
    turned.par_chunks_mut(SIDE * view.rows).zip(order.par_chunks(SIDE)).for_each(|(turned, columns)| {
        for first in (0..view.rows).step_by(SIDE) {
            let rows = first..view.rows.min(first + SIDE);
            for (out, &column) in columns.iter().enumerate() {
                for row in rows.clone() {
                    turned[out * view.rows + row] = from[row * view.cols + column];
                }
            }
        }
    });
    turned.into_flattened()
}

/// Where each output lies: all even places come first if gate and up alternate.
fn order(outputs: usize, alternating: bool) -> Vec<usize> {
    match alternating {
        true => (0..outputs).step_by(2).chain((1..outputs).step_by(2)).collect(),
        false => (0..outputs).collect(),
    }
}
