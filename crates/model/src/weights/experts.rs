//! The matrices and biases of experts, one for each, from whichever form a checkpoint stores them in.

use rayon::prelude::*;

use offshoot_backend::{Backend, Elements, ExpertKind, HeldPart, MatrixPart, Split, WeightView};
use offshoot_core::error::Result;

use super::super::config::StackedForm;
use super::super::layout::{ExpertMatrices, TensorSpec};
use super::super::loader::{Changes, codes_in_part};
use super::matrix_loader::{Matrices, MatrixLoader};
use super::stored::Check;
use super::{Kept, WeightSource, dense_part, split_vector_of};

/// The matrices of a mixture's experts, and their biases, as they are stored and as they are divided.
#[derive(Clone, Copy)]
pub struct ExpertStack<'a> {
    pub matrices: &'a ExpertMatrices,
    /// `[experts, out]`
    pub bias: Option<&'a TensorSpec>,
    /// Whether gate and up are stored in turn.
    pub alternating: bool,
    /// The inner width of an expert.
    pub width: usize,
    pub split: &'a Split,
}

impl WeightSource<'_> {
    /// A matrix `[out, in]` for each expert, of which gate is above up, and its bias.
    pub fn experts<B: Backend>(
        &self,
        backend: &mut B,
        stack: &ExpertStack<'_>,
        kind: ExpertKind,
    ) -> Result<B::Experts> {
        let mut loading = Matrices::of_experts(backend, stack.split, stack.width);
        self.expert_matrices(&mut loading, stack)?;
        let matrices = loading.loaded;
        let biases = stack.bias.map(|bias| self.expert_biases(backend, bias, stack)).transpose()?;
        backend.experts(matrices, biases.unwrap_or_default(), kind)
    }

    /// Puts what changes of experts into the place of `old`, one after another.
    pub fn experts_in_place<B: Backend>(
        &self,
        backend: &mut B,
        stack: &ExpertStack<'_>,
        old: &B::Experts,
        changes: &Changes,
    ) -> Result<()> {
        match stack.matrices {
            ExpertMatrices::Separate(experts) => {
                for (expert, specs) in experts.iter().enumerate() {
                    let changed = specs.iter().filter(|spec| changes.has(spec)).count();
                    if changed > 0 {
                        let kept = match changed == specs.len() {
                            true => None,
                            false => Some(read(backend, stack, old, expert, changes)?.0),
                        };
                        let kept = kept.as_ref().map(|elements| Kept { elements, changes });
                        let loading = Matrices::into_experts(backend, stack.split, stack.width, old);
                        self.stack(&mut loading.at(expert), specs, kept.as_ref())?;
                    }
                }
            }
            ExpertMatrices::Together { tensor, .. } if changes.has(tensor) => {
                let mut loading = Matrices::into_experts(backend, stack.split, stack.width, old);
                self.expert_matrices(&mut loading, stack)?;
            }
            ExpertMatrices::Together { .. } => {}
        }
        let Some(bias) = stack.bias.filter(|bias| changes.has(bias)) else { return Ok(()) };
        let biases = self.expert_biases(backend, bias, stack)?;
        let mut biases = biases.into_iter().enumerate();
        biases.try_for_each(|(expert, bias)| backend.replace_expert_bias(old, expert, bias))
    }

    /// Experts that take the place of `old`, with what stays of these.
    pub fn experts_beside<B: Backend>(
        &self,
        backend: &mut B,
        stack: &ExpertStack<'_>,
        kind: ExpertKind,
        old: &B::Experts,
        changes: &Changes,
    ) -> Result<B::Experts> {
        let mut matrices = Vec::new();
        match stack.matrices {
            ExpertMatrices::Separate(experts) => {
                for (expert, specs) in experts.iter().enumerate() {
                    let kept = match specs.iter().all(|spec| changes.has(spec)) {
                        true => None,
                        false => Some(read(backend, stack, old, expert, changes)?.0),
                    };
                    let kept = kept.as_ref().map(|elements| Kept { elements, changes });
                    let mut loading = Matrices::of_experts(backend, stack.split, stack.width);
                    self.stack(&mut loading, specs, kept.as_ref())?;
                    matrices.push(loading.only());
                }
            }
            ExpertMatrices::Together { tensor, .. } if changes.has(tensor) => {
                let mut loading = Matrices::of_experts(backend, stack.split, stack.width);
                self.expert_matrices(&mut loading, stack)?;
                matrices = loading.loaded;
            }
            ExpertMatrices::Together { tensor, .. } => {
                for expert in 0..tensor.shape[0].size {
                    let (elements, _) = read(backend, stack, old, expert, changes)?;
                    let part = MatrixPart::Dense(elements.view());
                    matrices.push(backend.split_matrix(&[HeldPart { part, becomes: None }], stack.split)?);
                }
            }
        }
        let biases = match stack.bias {
            None => Vec::new(),
            Some(bias) if changes.has(bias) => self.expert_biases(backend, bias, stack)?,
            Some(bias) => {
                let mut load = |expert| {
                    let (_, values) = read(backend, stack, old, expert, changes)?;
                    split_vector_of(backend, &values, stack.split, None)
                };
                (0..bias.shape[0].size).map(&mut load).collect::<Result<_>>()?
            }
        };
        backend.experts(matrices, biases, kind)
    }

    fn expert_matrices(&self, loader: &mut dyn MatrixLoader, stack: &ExpertStack<'_>) -> Result<()> {
        match stack.matrices {
            ExpertMatrices::Separate(experts) => experts.iter().try_for_each(|specs| self.stack(loader, specs, None)),
            ExpertMatrices::Together { tensor, form } => self.load_experts(loader, tensor, *form, stack.alternating),
        }
    }

    fn load_experts(
        &self,
        loader: &mut dyn MatrixLoader,
        tensor: &TensorSpec,
        form: StackedForm,
        alternating: bool,
    ) -> Result<()> {
        let count = tensor.shape[0].size;
        let transposed = matches!(form, StackedForm::Transposed { .. });
        match self {
            // Blocks of 32 inputs with a scale each.
            WeightSource::Checkpoint { checkpoint, .. } if form == StackedForm::Mxfp4 => {
                let stored = checkpoint.mxfp4(tensor, self.check(loader))?;
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
                    if made.is_some() && self.check(loader) == Check::Values {
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

    /// A vector for each expert from `[experts, out]`; gate and up in turn are set apart.
    fn expert_biases<B: Backend>(
        &self,
        backend: &mut B,
        tensor: &TensorSpec,
        stack: &ExpertStack<'_>,
    ) -> Result<Vec<B::Vector>> {
        let values = self.values(tensor)?;
        let order = order(tensor.cols(), stack.alternating);
        let experts = values.chunks_exact(tensor.cols());
        experts
            .map(|expert| {
                let ordered: Vec<f32> = order.iter().map(|&i| expert[i]).collect();
                split_vector_of(backend, &ordered, stack.split, None)
            })
            .collect()
    }
}

/// What a device has of an expert, and of its bias.
fn read<B: Backend>(
    backend: &mut B,
    stack: &ExpertStack<'_>,
    old: &B::Experts,
    expert: usize,
    changes: &Changes,
) -> Result<(Elements, Vec<f32>)> {
    backend.read_expert(old, expert, stack.split)?.ok_or_else(|| {
        let specs: Vec<TensorSpec> = stack.matrices.tensors().chain(stack.bias).cloned().collect();
        codes_in_part(&specs, changes)
    })
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
