//! Updates of the weights of a loaded model: what an update may have ([`WeightForm`]), and one whose names, shapes,
//! types and values have all been checked ([`CheckedUpdate`]), which is the only kind that a model takes. How weights
//! are loaded is left to `loader`, when a model is updated to the engine.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use offshoot_backend::{Dtype, MatrixPart, WeightFormat};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::WEIGHTS;

use super::config::{Difference, ExpertForm, ModelConfig, ModelFolder, Modules};
use super::layout::{LayerTensors, Layout, TensorSpec};
use super::loader::{Changes, codes_in_part};
use super::weights::{self, Check, Checkpoint, Formats, Naming, TensorSource, WeightSource, not_finite};

/// Which tensors an update must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateScope {
    /// All of the model.
    Whole,
    /// At least one; the others stay as they are.
    Changed,
}

/// What is known of the weights of a loaded model, by which updates are checked: on any thread, while steps run.
pub struct WeightForm {
    /// That of the model, with what only its tensors tell.
    config: ModelConfig,
    /// The compute dtype.
    dtype: Dtype,
    /// The names of its tensors as its family publishes them.
    published: Modules,
    formats: Formats,
}

/// An update of which every tensor has been checked. Its source must not change before it is applied.
pub struct CheckedUpdate<'a> {
    pub(super) source: WeightSource<'a>,
    pub(super) layout: Layout,
    pub(super) changes: Changes,
    tensors: usize,
}

impl CheckedUpdate<'_> {
    /// The number of tensors of the model that it has.
    pub fn tensors(&self) -> usize {
        self.tensors
    }

    /// Whether it has all tensors of the model.
    pub fn is_whole(&self) -> bool {
        matches!(self.changes, Changes::All)
    }
}

impl WeightForm {
    /// `formats`: how each matrix is stored that was loaded; `None`: they are random.
    pub(super) fn new(config: ModelConfig, dtype: Dtype, published: Modules, formats: Formats) -> Arc<Self> {
        Arc::new(Self { config, dtype, published, formats })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Checks an update: every name is known, what `scope` needs is there, shapes and types are right, and all numbers
    /// are finite, in the dtype that they get, too. This reads all tensors.
    ///
    /// # Errors
    ///
    /// One sentence: the tensor, what is expected of it, and what was found.
    pub fn check<'a>(&self, tensors: &'a dyn TensorSource, scope: UpdateScope) -> Result<CheckedUpdate<'a>> {
        self.check_of(tensors, scope)
    }

    /// Checks an update as `check` does; what comes of it keeps the tensors alive.
    ///
    /// # Errors
    ///
    /// Those of `check`.
    pub fn check_shared(&self, tensors: Arc<dyn TensorSource>, scope: UpdateScope) -> Result<CheckedUpdate<'static>> {
        self.check_of(tensors, scope)
    }

    fn check_of<'a, T: TensorSource + Clone + 'a>(&self, tensors: T, scope: UpdateScope) -> Result<CheckedUpdate<'a>> {
        if let Some(folder) = tensors.gguf() {
            return self.check_gguf(folder);
        }
        let mut names = tensors.names();
        names.sort_unstable();
        if names.is_empty() {
            return Err(Error::format(tensors.place(None), "expected at least one tensor, found none"));
        }
        if !self.config.formats.is_empty() {
            let expected = "the GGUF file of another version of the model, as the loaded one is of GGUF";
            return Err(Error::tensor(tensors.place(Some(names[0])), names[0], expected, "a tensor of another kind"));
        }
        let (config, layout, naming) = self.stored_as(&names);
        let checkpoint = Checkpoint::of_update(tensors.clone(), &config, naming);
        checkpoint.refuse_unknown(&layout, &names)?;
        let (mut all, mut there): (Vec<&TensorSpec>, HashSet<&str>) = (layout.tensors().collect(), HashSet::new());
        // Some tensors are read twice.
        all.retain(|spec| there.insert(&spec.name));
        let coded = checkpoint.coded_modules();
        there.retain(|name| checkpoint.has_some_of(name, &coded));
        if scope == UpdateScope::Changed {
            all.retain(|spec| there.contains(spec.name.as_str()));
        }
        if all.is_empty() {
            let expected = "at least one tensor of the loaded model";
            return Err(Error::tensor(tensors.place(Some(names[0])), names[0], expected, "others alone"));
        }
        let matrices: HashSet<&str> = layout.matrices().map(|spec| spec.name.as_str()).collect();
        let check = |spec: &&TensorSpec| match matrices.contains(spec.name.as_str()) {
            true => self.check_matrix(&checkpoint, spec),
            false => self.check_vector(&checkpoint, spec),
        };
        // The first in the layout's order, whichever is found first.
        let fault = all.par_iter().map(check).find_first(Result::is_err);
        fault.unwrap_or(Ok(()))?;
        let changes = match all.len() == layout_names(&layout) {
            true => Changes::All,
            false => Changes::Only(all.iter().map(|spec| spec.name.clone()).collect()),
        };
        self.check_stacks(&checkpoint, &layout, &changes)?;
        let (tensors, update) = (all.len(), Some(self.formats.clone()));
        let (dtype, converts) = (self.dtype, self.config.compute.is_some());
        let source = WeightSource::Checkpoint { checkpoint: Box::new(checkpoint), dtype, converts, update };
        Ok(CheckedUpdate { source, layout, changes, tensors })
    }

    /// The model as tensors of these names store it: the experts may come in another form than those that were loaded.
    fn stored_as(&self, names: &[&str]) -> (ModelConfig, Layout, Naming) {
        let mut forms = vec![self.config.modules];
        if self.config.has_experts() {
            forms.push(weights::stored_modules(self.published, names.iter().copied()));
            if matches!(self.published.experts, ExpertForm::Separate { .. }) {
                forms.push(self.published.with_stacked_experts());
            }
            forms.push(self.published);
        }
        let stored = |modules: Modules| {
            let config = ModelConfig { modules, ..self.config.clone() };
            let layout = Layout::of(&config);
            let (naming, known) = Naming::matching(names, &layout, config.modules.outside);
            (known, (config, layout, naming))
        };
        // Of equals the first: the last that `max_by_key` comes to.
        let stored = forms.into_iter().rev().map(stored).max_by_key(|(known, _)| *known);
        stored.expect("the loaded form is one").1
    }

    /// The whole of a GGUF model takes the place of one whose tensors are stored alike.
    fn check_gguf(&self, folder: &ModelFolder) -> Result<CheckedUpdate<'static>> {
        let (checkpoint, config, layout, dtype) = weights::open_verified(folder)?;
        self.check_config(&config, &folder.path)?;
        let differs = |spec: &&TensorSpec| {
            let [loaded, new] = [&self.config, &config].map(|config| config.formats.get(&spec.name));
            loaded != new
        };
        if let Some(spec) = layout.tensors().find(differs) {
            let said = |config: &ModelConfig| match config.formats.get(&spec.name) {
                Some(format) => format.to_string(),
                None => "no GGUF format".to_owned(),
            };
            let expected = format!("{}, as the loaded model stores it", said(&self.config));
            return Err(Error::tensor(&folder.path, &spec.name, expected, said(&config)));
        }
        if dtype != self.dtype {
            let found = format!("{dtype}");
            return Err(Error::field(&folder.path, "compute dtype", self.dtype.to_string(), found));
        }
        let tensors = layout_names(&layout);
        let source = WeightSource::Checkpoint { checkpoint, dtype, converts: config.compute.is_some(), update: None };
        Ok(CheckedUpdate { source, layout, changes: Changes::All, tensors })
    }

    /// Checks that another version of the model, whose configuration `path` has, computes the same.
    ///
    /// # Errors
    ///
    /// The first field that differs.
    pub fn check_config(&self, other: &ModelConfig, path: &Path) -> Result<()> {
        match self.config.difference(other) {
            None => Ok(()),
            Some(Difference { field, loaded, other }) => {
                Err(Error::field(path, field, format!("{loaded}, as of the loaded model"), other))
            }
        }
    }

    fn check_matrix(&self, checkpoint: &Checkpoint<'_>, spec: &TensorSpec) -> Result<()> {
        let stored = checkpoint.matrix(spec, Check::Values)?;
        let part = stored.part();
        let expected = match (self.format(&spec.name), part.format()) {
            (None, WeightFormat::Dense(_)) if self.has_mxfp4_experts_where(spec) => {
                "MXFP4 blocks and scales".to_owned()
            }
            (Some(WeightFormat::Dense(_)), WeightFormat::Dense(_)) | (None, _) => String::new(),
            (Some(before), now) if before == now => String::new(),
            (Some(before), _) => before.to_string(),
        };
        if !expected.is_empty() {
            let expected = format!("{expected}, as the loaded checkpoint stores it");
            return Err(checkpoint.wrong(spec, expected, part.format().to_string()));
        }
        match part {
            MatrixPart::Dense(view) => {
                let becomes = self.becomes(spec, view.dtype);
                checkpoint.refuse_not_finite(spec, not_finite(&view, becomes), becomes)
            }
            MatrixPart::Device(view) => {
                let becomes = self.becomes(spec, view.dtype);
                checkpoint.refuse_not_finite(spec, view.bytes.not_finite(view.dtype, becomes)?, becomes)
            }
            // Their values are checked as they are found.
            MatrixPart::Quantised(_) | MatrixPart::Random(_) | MatrixPart::Blocks(_) => Ok(()),
        }
    }

    /// The dtype that a dense matrix of `dtype` gets.
    fn becomes(&self, spec: &TensorSpec, dtype: Dtype) -> Dtype {
        match (&self.formats, self.config.compute) {
            (Some(_), None) => self.format(&spec.name).and_then(WeightFormat::dense).unwrap_or(self.dtype),
            (None, None) => dtype,
            (_, Some(_)) => self.dtype,
        }
    }

    fn check_vector(&self, checkpoint: &Checkpoint<'_>, spec: &TensorSpec) -> Result<()> {
        let (_, view) = checkpoint.find(spec)?;
        checkpoint.refuse_not_finite(spec, not_finite(&view, Dtype::F32), Dtype::F32)
    }

    /// How the loaded matrix of this name in the layout is stored; `None`: it is not known by it.
    pub(super) fn format(&self, name: &str) -> Option<WeightFormat> {
        self.formats.as_ref()?.get(name).copied()
    }

    /// Whether the loaded checkpoint stores experts in blocks, under another name than this one of experts.
    fn has_mxfp4_experts_where(&self, spec: &TensorSpec) -> bool {
        let is_of_experts = spec.shape.len() == 3;
        is_of_experts
            && self.formats.is_some()
            && Layout::of(&self.config).layers.iter().any(|layer| layer.mxfp4().next().is_some())
    }

    /// Checks what is stacked: all parts are of one dtype or become so, and codes are replaced together.
    fn check_stacks(&self, checkpoint: &Checkpoint<'_>, layout: &Layout, changes: &Changes) -> Result<()> {
        for stack in layout.layers.iter().flat_map(stacks) {
            let changed = stack.iter().filter(|spec| changes.has(spec)).count();
            let is_code = |spec: &TensorSpec| match self.format(&spec.name) {
                Some(format) => format.dense().is_none(),
                None => self.config.format(spec, self.dtype).dense().is_none(),
            };
            if changed > 0 && changed < stack.len() && stack.iter().any(is_code) {
                return Err(codes_in_part(&stack, changes));
            }
        }
        if self.formats.is_some() || self.config.compute.is_some() {
            return Ok(());
        }
        // Parts are loaded as they are stored.
        for stack in layout.layers.iter().flat_map(LayerTensors::stacks) {
            let there: Vec<TensorSpec> = stack.iter().filter(|spec| changes.has(spec)).cloned().collect();
            checkpoint.verify_stack(&there)?;
        }
        Ok(())
    }
}

/// What becomes one matrix, or one mixture's experts, in a layer.
fn stacks(layer: &LayerTensors) -> Vec<Vec<TensorSpec>> {
    let experts = layer.experts.iter().flat_map(|experts| [&experts.up, &experts.down]);
    let experts: Vec<Vec<TensorSpec>> = experts.map(|matrices| matrices.tensors().cloned().collect()).collect();
    let of_experts: HashSet<&str> = experts.iter().flatten().map(|spec| spec.name.as_str()).collect();
    let stacks = layer.stacks().into_iter().filter(|stack| !of_experts.contains(stack[0].name.as_str()));
    let stacks: Vec<Vec<TensorSpec>> = stacks.map(<[TensorSpec]>::to_vec).collect();
    stacks.into_iter().chain(experts.clone()).collect()
}

/// The number of tensors of a layout, each counted once.
fn layout_names(layout: &Layout) -> usize {
    layout.tensors().map(|spec| spec.name.as_str()).collect::<HashSet<_>>().len()
}

/// The error of a step for which there are no weights.
pub fn no_weights() -> Error {
    let expected = "an update of all weights before the next step";
    Error::value(format!("the model's {WEIGHTS}"), expected, "none: they were dropped, or an update failed midway")
}
