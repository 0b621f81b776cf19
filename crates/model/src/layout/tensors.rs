//! Tensors by name and shape, alone and stacked, of which a layout is made.

use std::ops::Range;

use offshoot_backend::Split;

use crate::config::Norm;

/// The module of the tokens' embeddings.
pub const EMBEDDING: &str = "model.embed_tokens";
/// The module of the norm before the output layer.
pub const FINAL_NORM: &str = "model.norm";
/// The module of the output layer.
pub const HEAD: &str = "lm_head";
/// The field of the width of the residual stream.
pub const HIDDEN: &str = "hidden_size";

/// A size and the field of config.json it comes from.
#[derive(Clone, Copy, Debug)]
pub struct Dim {
    pub size: usize,
    pub field: &'static str,
}

/// A number `[]`, a vector `[n]`, a matrix `[out, in]`, or the matrices of all experts `[experts, .., ..]`.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    pub name: String,
    pub shape: Vec<Dim>,
}

/// Matrices that are stacked into one, and their biases (all or none).
#[derive(Clone, Debug)]
pub struct LinearTensors {
    pub weights: Vec<TensorSpec>,
    pub biases: Vec<TensorSpec>,
    /// Which rows of the stack the layer has, in its order; `None`: all as they are stored.
    pub rows: Option<Vec<Range<usize>>>,
    /// How ranks divide the matrix.
    pub split: Split,
}

/// The tensors of a norm.
#[derive(Clone, Debug)]
pub struct NormTensors {
    pub weight: TensorSpec,
    pub bias: Option<TensorSpec>,
}

/// The weights of the norms of queries and of keys: one vector, or one for each head.
#[derive(Clone, Debug)]
pub struct HeadNormTensors {
    pub query: Vec<TensorSpec>,
    /// `None` if the layer projects no keys.
    pub key: Option<Vec<TensorSpec>>,
}

impl TensorSpec {
    pub fn elements(&self) -> usize {
        self.shape.iter().map(|dim| dim.size).product()
    }

    /// The product of all sizes but the last.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).map(|dim| dim.size).product()
    }

    pub fn cols(&self) -> usize {
        self.shape.last().map_or(1, |dim| dim.size)
    }

    /// Whether it is the table of the tokens' embeddings.
    pub fn is_embedding(&self) -> bool {
        self.name == format!("{EMBEDDING}.weight")
    }

    /// Whether its outputs are added to the residual stream.
    pub fn writes_residual(&self) -> bool {
        self.shape.len() > 1 && self.shape[self.shape.len() - 2].field == HIDDEN
    }

    /// For example `[4096, 11008] (hidden_size, intermediate_size)`.
    pub fn describe_shape(&self) -> String {
        let sizes: Vec<usize> = self.shape.iter().map(|dim| dim.size).collect();
        let fields: Vec<&str> = self.shape.iter().map(|dim| dim.field).collect();
        format!("{sizes:?} ({})", fields.join(", "))
    }
}

impl LinearTensors {
    /// These tensors, divided by `split`.
    pub fn split(self, split: Split) -> Self {
        Self { split, ..self }
    }

    /// Every tensor once: keys that are values too are stacked twice.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        once(&self.weights).chain(once(&self.biases)).collect::<Vec<_>>().into_iter()
    }
}

/// The tensors that differ from the one before them.
fn once(stacked: &[TensorSpec]) -> impl Iterator<Item = &TensorSpec> {
    stacked.iter().enumerate().filter(|(i, spec)| *i == 0 || stacked[i - 1].name != spec.name).map(|(_, spec)| spec)
}

impl NormTensors {
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

pub fn vector(name: &str, size: Dim) -> TensorSpec {
    TensorSpec { name: name.to_owned(), shape: vec![size] }
}

pub fn matrix(module: &str, rows: Dim, cols: Dim) -> TensorSpec {
    TensorSpec { name: format!("{module}.weight"), shape: vec![rows, cols] }
}

pub fn norm(module: &str, norm: Norm, width: Dim) -> NormTensors {
    let part = |name: &str| vector(&format!("{module}.{name}"), width);
    NormTensors { weight: part("weight"), bias: norm.has_bias().then(|| part("bias")) }
}

pub fn linear(modules: &[(String, Dim)], cols: Dim, bias: bool) -> LinearTensors {
    let biased = if bias { modules } else { &[] };
    LinearTensors {
        weights: modules.iter().map(|(module, rows)| matrix(module, *rows, cols)).collect(),
        biases: biased.iter().map(|(module, rows)| vector(&format!("{module}.bias"), *rows)).collect(),
        rows: None,
        split: Split::Whole,
    }
}
