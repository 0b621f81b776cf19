//! Loads the weights of a decoder, in one walk over its layout ([`Loader`]). What has been loaded is held in the order
//! of that walk ([`HeldWeights`]), so the same walk loads again what changes ([`Loader::again`]): no tensor can be
//! forgotten by one of the two. Which tensors have which shapes is the layout's, how they are stored the source's.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use offshoot_backend::{Backend, Dtype, Elements, ExpertKind, LatentHeads, Split};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::WEIGHTS;

use super::layout::TensorSpec;
use super::lora::{AdaptedIx, AdaptedLayer};
use super::weights::{ExpertStack, Kept, WeightSource, split_vector_of};

/// Loads weights on a backend, or loads those again that have changed.
pub struct Loader<'a, B: Backend> {
    pub backend: &'a mut B,
    source: &'a WeightSource<'a>,
    before: Option<Before<'a, B>>,
    /// Set before the first of what is held is replaced in place: it may be gone from then on.
    replaces: &'a Cell<bool>,
    held: Vec<Held<B>>,
    adapted: Vec<AdaptedLayer<B>>,
}

/// What a decoder has of its weights, in the order of the walk that loads them. The decoder's layers share it.
pub struct HeldWeights<B: Backend>(Vec<Held<B>>);

enum Held<B: Backend> {
    Matrix(Arc<B::Matrix>),
    Vector(Arc<B::Vector>),
    Experts(Arc<B::Experts>),
    LatentMaps(Arc<B::LatentMaps>),
    /// Numbers that ops are called with.
    Values(Arc<[f32]>),
}

impl<B: Backend> Clone for Held<B> {
    fn clone(&self) -> Self {
        match self {
            Held::Matrix(matrix) => Held::Matrix(matrix.clone()),
            Held::Vector(vector) => Held::Vector(vector.clone()),
            Held::Experts(experts) => Held::Experts(experts.clone()),
            Held::LatentMaps(maps) => Held::LatentMaps(maps.clone()),
            Held::Values(values) => Held::Values(values.clone()),
        }
    }
}

/// Which tensors of a layout an update has.
pub enum Changes {
    All,
    /// Their names in the layout.
    Only(HashSet<String>),
}

impl Changes {
    pub fn has(&self, spec: &TensorSpec) -> bool {
        match self {
            Changes::All => true,
            Changes::Only(names) => names.contains(&spec.name),
        }
    }
}

/// What was held before an update, from what the walk comes to next.
struct Before<'a, B: Backend> {
    held: std::slice::Iter<'a, Held<B>>,
    changes: &'a Changes,
}

/// What becomes of one thing that the walk loads.
enum Fate<'a, B: Backend> {
    /// It is loaded for the first time.
    New,
    /// None of its tensors has changed.
    Stays(Held<B>),
    /// All of its tensors have changed.
    Changes(&'a Held<B>),
    /// Some of its tensors have changed.
    ChangesInPart(&'a Held<B>, &'a Changes),
}

const ONE_WALK: &str = "weights are held in the order of the walk that loads them, which is that of an update too";

impl<'a, B: Backend> Loader<'a, B> {
    /// Loads all weights.
    pub fn new(backend: &'a mut B, source: &'a WeightSource<'a>, replaces: &'a Cell<bool>) -> Self {
        Self { backend, source, before: None, replaces, held: Vec::new(), adapted: Vec::new() }
    }

    /// Loads weights that change: what `source` has of `changes` takes the place of what is held.
    pub fn again(
        backend: &'a mut B,
        source: &'a WeightSource<'a>,
        held: &'a HeldWeights<B>,
        changes: &'a Changes,
        replaces: &'a Cell<bool>,
    ) -> Self {
        let before = Some(Before { held: held.0.iter(), changes });
        Self { backend, source, before, replaces, held: Vec::new(), adapted: Vec::new() }
    }

    /// Notes that what comes next replaces something that is held, where weights are replaced in place.
    fn note_replaces(&self) {
        self.replaces.set(self.replaces.get() || B::REPLACES_IN_PLACE);
    }

    /// Whether people are told how far it is: by the first of those that load a model, for the first time.
    pub fn is_noted(&self) -> bool {
        self.backend.is_first() && self.before.is_none()
    }

    /// The compute dtype.
    pub fn compute_dtype(&self) -> Dtype {
        self.source.compute_dtype()
    }

    /// Lists a layer that adapters may change. Its place is the same in every walk over one model.
    pub fn adapts(&mut self, layer: AdaptedLayer<B>) -> AdaptedIx {
        self.adapted.push(layer);
        AdaptedIx::new(self.adapted.len() - 1)
    }

    /// What was loaded, and the layers that adapters may change. Panics if an update has not come to all that was held.
    pub fn loaded(self) -> (HeldWeights<B>, Vec<AdaptedLayer<B>>) {
        assert!(self.before.is_none_or(|before| before.held.len() == 0), "{ONE_WALK}");
        (HeldWeights(self.held), self.adapted)
    }

    /// What becomes of what is made of these tensors.
    fn fate<'s>(&mut self, specs: impl Iterator<Item = &'s TensorSpec>) -> Fate<'a, B> {
        let Some(before) = &mut self.before else { return Fate::New };
        let held = before.held.next().expect(ONE_WALK);
        let (mut some, mut all) = (false, true);
        for spec in specs {
            let has = before.changes.has(spec);
            (some, all) = (some || has, all && has);
        }
        match (some, all) {
            (false, _) => Fate::Stays(held.clone()),
            (true, true) => Fate::Changes(held),
            (true, false) => Fate::ChangesInPart(held, before.changes),
        }
    }

    /// The matrices of `specs` stacked into one: all rows, or these.
    pub fn matrix(
        &mut self,
        specs: &[TensorSpec],
        rows: Option<&[std::ops::Range<usize>]>,
        split: &Split,
    ) -> Result<Arc<B::Matrix>> {
        let (source, fate) = (self.source, self.fate(specs.iter()));
        let matrix = match fate {
            Fate::New => Arc::new(source.matrix(self.backend, specs, rows, split, None, None)?),
            Fate::Stays(held) => matrix_of(&held).clone(),
            Fate::Changes(held) => {
                self.note_replaces();
                let old = Some(&**matrix_of(held));
                Arc::new(source.matrix(self.backend, specs, rows, split, old, None)?)
            }
            Fate::ChangesInPart(held, changes) => {
                let old = &**matrix_of(held);
                let read = self.backend.read_matrix(old, split)?.ok_or_else(|| codes_in_part(specs, changes))?;
                let kept = Kept { elements: &whole_stack(read, specs, rows), changes };
                self.note_replaces();
                Arc::new(source.matrix(self.backend, specs, rows, split, Some(old), Some(&kept))?)
            }
        };
        self.held.push(Held::Matrix(matrix.clone()));
        Ok(matrix)
    }

    /// The maps of a layer's latents, dense and of the compute dtype.
    pub fn latent_maps(&mut self, spec: &TensorSpec, heads: LatentHeads, split: &Split) -> Result<Arc<B::LatentMaps>> {
        let old = match self.fate(std::iter::once(spec)) {
            Fate::New => None,
            Fate::Stays(held) => {
                self.held.push(held.clone());
                return Ok(maps_of(&held).clone());
            }
            Fate::Changes(held) | Fate::ChangesInPart(held, _) => Some(&**maps_of(held)),
        };
        if old.is_some() {
            self.note_replaces();
        }
        let maps = Arc::new(self.source.latent_maps(self.backend, spec, heads, split, old)?);
        self.held.push(Held::LatentMaps(maps.clone()));
        Ok(maps)
    }

    /// The vectors of `specs`, concatenated: all elements, or these.
    pub fn vector(
        &mut self,
        specs: &[TensorSpec],
        elements: Option<&[std::ops::Range<usize>]>,
        split: &Split,
    ) -> Result<Arc<B::Vector>> {
        let (source, fate) = (self.source, self.fate(specs.iter()));
        let vector = match fate {
            Fate::New => Arc::new(source.split_vector(self.backend, specs, elements, split, None, None)?),
            Fate::Stays(held) => vector_of(&held).clone(),
            Fate::Changes(held) => {
                self.note_replaces();
                let old = Some(&**vector_of(held));
                Arc::new(source.split_vector(self.backend, specs, elements, split, old, None)?)
            }
            Fate::ChangesInPart(held, changes) => {
                let old = &**vector_of(held);
                let read = self.backend.read_vector(old, split)?;
                let column = Elements { rows: read.cols, cols: 1, ..read };
                let kept = Kept { elements: &whole_stack(column, specs, elements), changes };
                self.note_replaces();
                Arc::new(source.split_vector(self.backend, specs, elements, split, Some(old), Some(&kept))?)
            }
        };
        self.held.push(Held::Vector(vector.clone()));
        Ok(vector)
    }

    /// A vector that `make` makes of each element of a tensor.
    pub fn made_vector(
        &mut self,
        spec: &TensorSpec,
        split: &Split,
        make: impl Fn(f32) -> f32,
    ) -> Result<Arc<B::Vector>> {
        self.vector_of(spec, split, |values| values.into_iter().map(make).collect())
    }

    /// A vector that `make` makes of all elements of a tensor.
    pub fn vector_of(
        &mut self,
        spec: &TensorSpec,
        split: &Split,
        make: impl FnOnce(Vec<f32>) -> Vec<f32>,
    ) -> Result<Arc<B::Vector>> {
        let old = match self.fate(std::iter::once(spec)) {
            Fate::New => None,
            Fate::Stays(held) => {
                self.held.push(held.clone());
                return Ok(vector_of(&held).clone());
            }
            Fate::Changes(held) | Fate::ChangesInPart(held, _) => Some(&**vector_of(held)),
        };
        let values = make(self.source.values(spec)?);
        if old.is_some() {
            self.note_replaces();
        }
        let vector = Arc::new(split_vector_of(self.backend, &values, split, old)?);
        self.held.push(Held::Vector(vector.clone()));
        Ok(vector)
    }

    /// A vector of numbers that are no tensor's. An update writes them again, as a device may have dropped them with
    /// the weights.
    pub fn constant(&mut self, values: &[f32]) -> Result<Arc<B::Vector>> {
        self.split_constant(values, &Split::Whole)
    }

    /// Such a vector, which ranks divide.
    pub fn split_constant(&mut self, values: &[f32], split: &Split) -> Result<Arc<B::Vector>> {
        let old = match self.fate(std::iter::empty()) {
            Fate::New => None,
            Fate::Stays(held) => Some(vector_of(&held).clone()),
            Fate::Changes(held) | Fate::ChangesInPart(held, _) => Some(vector_of(held).clone()),
        };
        let vector = Arc::new(split_vector_of(self.backend, values, split, old.as_deref())?);
        self.held.push(Held::Vector(vector.clone()));
        Ok(vector)
    }

    /// The elements of a tensor, with which ops are called.
    pub fn values(&mut self, spec: &TensorSpec) -> Result<Arc<[f32]>> {
        let values = match self.fate(std::iter::once(spec)) {
            Fate::New => self.source.values(spec)?.into(),
            Fate::Stays(held) => values_of(&held).clone(),
            Fate::Changes(held) | Fate::ChangesInPart(held, _) => {
                let values: Arc<[f32]> = self.source.values(spec)?.into();
                if values != *values_of(held) {
                    self.backend.forget_steps();
                }
                values
            }
        };
        self.held.push(Held::Values(values.clone()));
        Ok(values)
    }

    /// The matrices of a mixture's experts, and their biases.
    pub fn experts(&mut self, stack: &ExpertStack<'_>, kind: ExpertKind) -> Result<Arc<B::Experts>> {
        let (source, fate) = (self.source, self.fate(stack.matrices.tensors().chain(stack.bias)));
        let (old, changes) = match fate {
            Fate::New => {
                let experts = Arc::new(source.experts(self.backend, stack, kind)?);
                self.held.push(Held::Experts(experts.clone()));
                return Ok(experts);
            }
            Fate::Stays(held) => {
                self.held.push(held.clone());
                return Ok(experts_of(&held).clone());
            }
            Fate::Changes(held) => (experts_of(held), &Changes::All),
            Fate::ChangesInPart(held, changes) => (experts_of(held), changes),
        };
        let experts = match B::REPLACES_IN_PLACE {
            true => {
                self.note_replaces();
                source.experts_in_place(self.backend, stack, old, changes)?;
                old.clone()
            }
            false => Arc::new(source.experts_beside(self.backend, stack, kind, old, changes)?),
        };
        self.held.push(Held::Experts(experts.clone()));
        Ok(experts)
    }
}

fn matrix_of<B: Backend>(held: &Held<B>) -> &Arc<B::Matrix> {
    if let Held::Matrix(matrix) = held { matrix } else { panic!("{ONE_WALK}") }
}

fn vector_of<B: Backend>(held: &Held<B>) -> &Arc<B::Vector> {
    if let Held::Vector(vector) = held { vector } else { panic!("{ONE_WALK}") }
}

fn experts_of<B: Backend>(held: &Held<B>) -> &Arc<B::Experts> {
    if let Held::Experts(experts) = held { experts } else { panic!("{ONE_WALK}") }
}

fn maps_of<B: Backend>(held: &Held<B>) -> &Arc<B::LatentMaps> {
    if let Held::LatentMaps(maps) = held { maps } else { panic!("{ONE_WALK}") }
}

fn values_of<B: Backend>(held: &Held<B>) -> &Arc<[f32]> {
    if let Held::Values(values) = held { values } else { panic!("{ONE_WALK}") }
}

/// What was read of a selection of rows, as a stack of all rows of `specs`; others are zeros.
fn whole_stack(read: Elements, specs: &[TensorSpec], rows: Option<&[std::ops::Range<usize>]>) -> Elements {
    let Some(rows) = rows else { return read };
    let all = specs.iter().map(|spec| if spec.shape.len() == 1 { spec.cols() } else { spec.rows() }).sum();
    let mut whole = Elements::zeros(read.dtype, all, read.cols);
    let mut first = 0;
    for rows in rows {
        let (own, view) = (first..first + rows.len(), read.view());
        let bytes = read.row_bytes(own.clone());
        whole.put(rows.start, 0..read.cols, offshoot_backend::WeightView { rows: own.len(), bytes, ..view });
        first = own.end;
    }
    whole
}

/// The error for a stack of codes of which an update has a part only.
pub fn codes_in_part(specs: &[TensorSpec], changes: &Changes) -> Error {
    let names = |has: bool| {
        let named = specs.iter().filter(|spec| changes.has(spec) == has).map(|spec| format!("`{}`", spec.name));
        named.collect::<Vec<_>>().join(", ")
    };
    let expected = format!("{} with {}, as they share one matrix of codes", names(false), names(true));
    Error::value(format!("an update of {WEIGHTS}"), expected, format!("{} alone", names(true)))
}
