//! Low-rank adapters (LoRA) of a decoder: which linear layers adapters change ([`AdaptedLayer`]), how one is loaded
//! beside those in use and put in its slot ([`StagedAdapter`]), and what a step says of its rows' adapters. `adapter`
//! reads an adapter and compares it with a model, `peft` its configuration; `offshoot_backend::lora` defines the sums.

mod adapter;
mod peft;

pub use adapter::{Adapter, AdapterTensor};

use offshoot_backend::{AdapterSlot, Backend, Dtype, LoraPiece, LoraShape, LoraWeights, OutputMode, Split, StepRows};
use offshoot_core::error::Result;

use super::config::module_of;
use super::layout::{HEAD, LinearTensors, TensorSpec};

/// A linear layer as adapters see it, and what the loaded ones add to it.
pub struct AdaptedLayer<B: Backend> {
    /// The modules that are stacked in it, by their names in the layout, each once.
    modules: Vec<String>,
    shape: LoraShape,
    /// How ranks divide the layer.
    split: Split,
    /// `None` until an adapter has something for the layer.
    table: Option<B::Lora>,
}

/// The place of a layer among those that adapters may change.
#[derive(Clone, Copy, Debug)]
pub struct AdaptedIx(usize);

impl AdaptedIx {
    pub fn new(ix: usize) -> Self {
        Self(ix)
    }
}

/// The adapters of the rows that a layer computes.
pub struct StepAdapters<'a, B: Backend> {
    /// The layers that adapters may change; `None`: no row of the step has an adapter.
    layers: Option<&'a [AdaptedLayer<B>]>,
    rows: StepRows,
    step: &'a B::Step,
}

impl<B: Backend> Clone for StepAdapters<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for StepAdapters<'_, B> {}

impl<'a, B: Backend> StepAdapters<'a, B> {
    /// `layers`: all that adapters may change; `None`: no row of the step has an adapter.
    pub fn of(layers: Option<&'a [AdaptedLayer<B>]>, rows: StepRows, step: &'a B::Step) -> Self {
        Self { layers, rows, step }
    }

    /// Whether they may add something to this layer.
    pub fn add_to(&self, layer: AdaptedIx) -> bool {
        self.table(layer).is_some()
    }

    fn table(&self, layer: AdaptedIx) -> Option<&'a B::Lora> {
        self.layers?[layer.0].table.as_ref()
    }

    /// `Backend::linear` of this layer, with what adapters add.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    pub fn linear(
        &self,
        layer: AdaptedIx,
        backend: &mut B,
        out: &mut B::Buffer,
        x: &B::Buffer,
        w: &B::Matrix,
        bias: Option<&B::Vector>,
        mode: OutputMode,
    ) {
        match self.table(layer) {
            Some(table) => backend.linear_with_lora(out, x, w, bias, mode, table, self.rows, self.step),
            None => backend.linear(out, x, w, bias, mode),
        }
    }
}

impl<B: Backend> AdaptedLayer<B> {
    /// The layer of these tensors. `dtype`: the compute dtype.
    pub fn of(tensors: &LinearTensors, dtype: Dtype) -> Self {
        let (mut modules, mut pieces) = (Vec::<String>::new(), Vec::new());
        for weight in &tensors.weights {
            let module = module_of(&weight.name).to_owned();
            // Keys that are values too are stacked twice.
            let part = modules.iter().position(|known| *known == module).unwrap_or_else(|| {
                modules.push(module);
                modules.len() - 1
            });
            pieces.push(LoraPiece { part, rows: 0..weight.rows() });
        }
        let stacked = LoraShape { dtype, inputs: tensors.weights[0].cols(), parts: modules.len(), pieces };
        let shape = match &tensors.rows {
            None => stacked,
            Some(rows) => LoraShape { pieces: stacked.cut(rows.iter().cloned()), ..stacked },
        };
        Self { modules, shape, split: tensors.split.clone(), table: None }
    }

    /// The output layer. `embed`: the embedding table, which has its shape.
    pub fn of_head(embed: &TensorSpec, dtype: Dtype, split: Split) -> Self {
        let pieces = vec![LoraPiece { part: 0, rows: 0..embed.rows() }];
        let shape = LoraShape { dtype, inputs: embed.cols(), parts: 1, pieces };
        Self { modules: vec![HEAD.to_owned()], shape, split, table: None }
    }

    /// Puts `term` in a slot, or empties it.
    pub fn set(&mut self, backend: &mut B, slot: AdapterSlot, term: Option<B::LoraTerm>) {
        if let Some(table) = &mut self.table {
            backend.set_lora(table, slot, term);
        }
    }
}

/// An adapter in the backend's memory, in no slot yet: for each layer that adapters may change what it adds there.
pub struct StagedAdapter<B: Backend>(Vec<Option<StagedTerm<B>>>);

struct StagedTerm<B: Backend> {
    /// The layer's table, if it has had none.
    table: Option<B::Lora>,
    term: B::LoraTerm,
}

impl<B: Backend> StagedAdapter<B> {
    /// `layers`: those of the model, in their order. The adapter was checked against the model.
    pub fn load(backend: &mut B, layers: &[AdaptedLayer<B>], adapter: &Adapter) -> Result<Self> {
        let mut staged = Vec::new();
        for layer in layers {
            let parts: Vec<Option<LoraWeights<'_>>> =
                layer.modules.iter().map(|module| adapter.weights(module)).collect();
            staged.push(match parts.iter().any(Option::is_some) {
                false => None,
                true => Some(StagedTerm::load(backend, layer, &parts)?),
            });
        }
        Ok(Self(staged))
    }

    pub fn put(self, backend: &mut B, layers: &mut [AdaptedLayer<B>], slot: AdapterSlot) {
        for (layer, staged) in layers.iter_mut().zip(self.0) {
            let term = staged.map(|StagedTerm { table, term }| {
                if table.is_some() {
                    layer.table = table;
                }
                term
            });
            layer.set(backend, slot, term);
        }
    }
}

impl<B: Backend> StagedTerm<B> {
    fn load(backend: &mut B, layer: &AdaptedLayer<B>, parts: &[Option<LoraWeights<'_>>]) -> Result<Self> {
        let mut table = None;
        let known = match &layer.table {
            Some(known) => known,
            None => table.insert(backend.lora(&layer.shape, &layer.split)?),
        };
        let term = backend.lora_term(known, parts)?;
        Ok(Self { table, term })
    }
}
