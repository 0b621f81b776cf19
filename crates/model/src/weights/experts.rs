//! The matrices and biases of experts, one for each, from whichever form a checkpoint stores them in.

use rayon::prelude::*;

use offshoot_backend::{Backend, Split, WeightView};
use offshoot_core::error::Result;

use super::super::config::StackedForm;
use super::super::layout::{ExpertMatrices, TensorSpec};
use super::matrix_loader::{Matrices, MatrixLoader};
use super::stored::Check;
use super::{WeightSource, dense_part, split_vector_of};

impl WeightSource {
    /// A matrix `[out, in]` for each expert of this width; gate is above up. `alternating`: they are stored in turn.
    pub fn expert_matrices<B: Backend>(
        &self,
        backend: &mut B,
        stored: &ExpertMatrices,
        alternating: bool,
        width: usize,
        split: &Split,
    ) -> Result<Vec<B::Matrix>> {
        let mut loading = Matrices::of_experts(backend, split, width);
        match stored {
            ExpertMatrices::Separate(experts) => {
                experts.iter().try_for_each(|specs| self.stack(&mut loading, specs))?
            }
            ExpertMatrices::Together { tensor, form } => self.load_experts(&mut loading, tensor, *form, alternating)?,
        }
        Ok(loading.loaded)
    }

    fn load_experts(
        &self,
        loader: &mut dyn MatrixLoader,
        tensor: &TensorSpec,
        form: StackedForm,
        alternating: bool,
    ) -> Result<()> {
        let count = tensor.shape[0].size;
        let transposed = form == StackedForm::Transposed;
        match self {
            // Blocks of 32 inputs with a scale each.
            WeightSource::Checkpoint { checkpoint, .. } if form == StackedForm::Mxfp4 => {
                let stored = checkpoint.mxfp4(tensor, Check::by(loader.is_first()))?;
                let specs = [tensor.clone(), tensor.clone()];
                let loaded = (0..count)
                    .try_for_each(|expert| self.load(loader, &specs, &stored.expert(expert, count, alternating)));
                stored.release();
                loaded
            }
            WeightSource::Checkpoint { checkpoint, .. } => {
                let specs = std::slice::from_ref(tensor);
                let made = checkpoint.made_format(tensor);
                checkpoint.packed(specs, &mut |views| {
                    if made.is_some() && loader.is_first() {
                        checkpoint.refuse_nan(&views[0], tensor)?;
                    }
                    (0..count).try_for_each(|expert| {
                        let view = slice(&views[0], tensor, expert);
                        let turned = transposed.then(|| turned(&view, alternating));
                        let view = match &turned {
                            Some(bytes) => WeightView { rows: view.cols, cols: view.rows, bytes, ..view },
                            None => view,
                        };
                        self.load(loader, specs, &[dense_part(view, made)])
                    })
                })
            }
            WeightSource::Random(random) => {
                let (rows, cols) = (tensor.shape[1], tensor.shape[2]);
                let shape = if transposed { [cols, rows] } else { [rows, cols] };
                let format = random.config.format(tensor, random.dtype);
                (0..count).try_for_each(|expert| {
                    let spec = TensorSpec { name: format!("{}.{expert}", tensor.name), shape: shape.to_vec() };
                    let part = random.part(&spec, format);
                    self.load(loader, &[spec], &[part])
                })
            }
        }
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
