//! What loading asks of the device for which it reads matrices. Code that finds, checks and stacks tensors is compiled
//! once, against the trait [`MatrixLoader`]; only [`Matrices`] and [`Maps`] know the type of the backend.

use offshoot_backend::{Backend, Dtype, HeldPart, LatentHeads, Split, WeightFormat};
use offshoot_core::error::Result;

/// Takes matrices for a device, one after the other.
pub trait MatrixLoader {
    /// Whether it is the first of those that load a model together.
    fn is_first(&self) -> bool;

    /// Whether it multiplies matrices of this format as they are.
    fn multiplies(&self, format: WeightFormat) -> bool;

    /// As [`Backend::MIXES_DTYPES`].
    fn mixes_dtypes(&self) -> bool;

    /// As [`Backend::ORDERS_INPUTS`].
    fn orders_inputs(&self) -> bool;

    /// As [`Backend::copies_from_devices`].
    fn copies_from_devices(&self) -> bool;

    /// Its name, one line.
    fn describe(&self) -> String;

    /// Loads a matrix that is stacked of these parts.
    fn load(&mut self, parts: &[HeldPart<'_>]) -> Result<()>;
}

/// Matrices that are loaded on a backend.
pub struct Matrices<'a, B: Backend> {
    backend: &'a mut B,
    split: &'a Split,
    /// The inner width of the experts whose matrices they are; `None`: they are no experts'.
    expert_width: Option<usize>,
    /// The matrix whose place the one that is loaded takes.
    old: Option<&'a B::Matrix>,
    /// Experts into whose place the matrices are put one by one.
    experts: Option<&'a B::Experts>,
    /// Matrices that were loaded so far.
    count: usize,
    pub loaded: Vec<B::Matrix>,
}

impl<'a, B: Backend> Matrices<'a, B> {
    pub fn new(backend: &'a mut B, split: &'a Split) -> Self {
        Self { backend, split, expert_width: None, old: None, experts: None, count: 0, loaded: Vec::new() }
    }

    /// A matrix that takes the place of `old`, if there is one.
    pub fn in_place_of(backend: &'a mut B, split: &'a Split, old: Option<&'a B::Matrix>) -> Self {
        Self { old, ..Self::new(backend, split) }
    }

    /// The matrices of experts of this inner width.
    pub fn of_experts(backend: &'a mut B, split: &'a Split, width: usize) -> Self {
        Self { expert_width: Some(width), ..Self::new(backend, split) }
    }

    /// The matrices of experts of this inner width, each of which is put into the place of that of `experts`.
    pub fn into_experts(backend: &'a mut B, split: &'a Split, width: usize, experts: &'a B::Experts) -> Self {
        Self { experts: Some(experts), ..Self::of_experts(backend, split, width) }
    }

    /// Goes on at expert `expert`.
    pub fn at(self, expert: usize) -> Self {
        Self { count: expert, ..self }
    }

    /// The one matrix that was loaded.
    pub fn only(mut self) -> B::Matrix {
        self.loaded.pop().expect("it is loaded unless that is an error")
    }
}

impl<B: Backend> MatrixLoader for Matrices<'_, B> {
    fn is_first(&self) -> bool {
        self.backend.is_first()
    }

    fn multiplies(&self, format: WeightFormat) -> bool {
        match self.expert_width {
            None => self.backend.multiplies(format),
            Some(width) => self.backend.multiplies_experts(format, width),
        }
    }

    fn mixes_dtypes(&self) -> bool {
        B::MIXES_DTYPES
    }

    fn orders_inputs(&self) -> bool {
        B::ORDERS_INPUTS
    }

    fn copies_from_devices(&self) -> bool {
        self.backend.copies_from_devices()
    }

    fn describe(&self) -> String {
        self.backend.describe()
    }

    fn load(&mut self, parts: &[HeldPart<'_>]) -> Result<()> {
        let matrix = match self.old {
            None => self.backend.split_matrix(parts, self.split)?,
            Some(old) => self.backend.replace_matrix(old, parts, self.split)?,
        };
        match self.experts {
            None => self.loaded.push(matrix),
            Some(experts) => self.backend.replace_expert(experts, self.count, matrix)?,
        }
        self.count += 1;
        Ok(())
    }
}

/// The maps of a layer's latents, which become dense and of the compute dtype whatever they are stored as.
pub struct Maps<'a, B: Backend> {
    pub backend: &'a mut B,
    pub heads: LatentHeads,
    /// The compute dtype.
    pub dtype: Dtype,
    pub split: &'a Split,
    /// The maps whose place those take that are loaded.
    pub old: Option<&'a B::LatentMaps>,
    pub loaded: Option<B::LatentMaps>,
}

impl<B: Backend> MatrixLoader for Maps<'_, B> {
    fn is_first(&self) -> bool {
        self.backend.is_first()
    }

    fn multiplies(&self, format: WeightFormat) -> bool {
        format.dense().is_some()
    }

    fn mixes_dtypes(&self) -> bool {
        false
    }

    fn orders_inputs(&self) -> bool {
        B::ORDERS_INPUTS
    }

    fn copies_from_devices(&self) -> bool {
        self.backend.copies_from_devices()
    }

    fn describe(&self) -> String {
        self.backend.describe()
    }

    fn load(&mut self, parts: &[HeldPart<'_>]) -> Result<()> {
        let (heads, dtype, split) = (self.heads, self.dtype, self.split);
        self.loaded = Some(self.backend.latent_maps(parts, heads, dtype, split, self.old)?);
        Ok(())
    }
}
