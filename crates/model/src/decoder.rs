//! The decoder: the forward pass of all model families, which differ only in the optional parts of their layers. A
//! step's rows may belong to any number of sequences; the attention plans determine which positions each row attends
//! to.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use offshoot_backend::{
    AdapterSlot, Attended, Backend, CopyStore, Dtype, KvDtype, KvShape, LatentHeads, OutputMode, RouteShape, RowToken,
    SampleRequest, Split, StateDtype, StepBatch, StepRequests, StepRows, StepShape,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::LayerIx;
use offshoot_core::out::Stage;
use offshoot_kv::StateRun;
use offshoot_kv::plan::{LatentHints, NewPage, PlanHints};

use super::activations::{Activations, BufferIndices, made_of};
use super::config::{AttentionKind, ModelConfig, ModelFolder, OutputHead};
use super::conversions;
use super::inputs::InputTable;
use super::layer::{Kinds, Layer};
use super::layout::Layout;
use super::loader::{HeldWeights, Loader};
use super::lora::{AdaptedIx, AdaptedLayer, Adapter, StagedAdapter, StepAdapters};
use super::model_weights::ModelWeights;
use super::operands::{LoadedRope, StepOperands, load_ropes};
use super::parts::{Linear, NormLayer};
use super::runner::StepFailure;
use super::update::{CheckedUpdate, WeightForm, no_weights};

/// A loaded model with its activation buffers.
pub struct Decoder<B: Backend> {
    config: ModelConfig,
    /// The compute dtype.
    dtype: Dtype,
    /// Factor of the embeddings.
    embed_scale: Option<f32>,
    /// `None` while they are dropped: nothing is enqueued then.
    weights: Option<Weights<B>>,
    /// Whether the memory of `weights` holds them.
    has_weights: bool,
    /// Weights of an update that has not ended.
    pending: Option<Weights<B>>,
    form: Arc<WeightForm>,
    /// The layers that adapters may change, and what the loaded ones add to each. Updates of the weights leave it.
    adapted: Vec<AdaptedLayer<B>>,
    /// The adapters that are loaded.
    adapters: BTreeSet<AdapterSlot>,
    /// One for each distinct rope of the layers.
    ropes: Vec<LoadedRope<B>>,
    /// The longest sequence that steps may belong to.
    longest: usize,
    /// The largest position of the step loaded last.
    last_position: u32,
    /// For each kind of attention: hints for its plan.
    hints: Vec<PlanHints>,
    /// For each kind of attention: its number of layers.
    layers_by_plan: Vec<usize>,
    kv_bytes_per_token: usize,
    /// The dtype of the states of recurrent layers, if it has some.
    state_dtype: StateDtype,
    /// What steps keep of the tokens' experts; `None`: nothing.
    routes: Option<RouteShape>,
    /// Memory for copies of latents, if some was allocated ([`Decoder::allocate_copies`]).
    copies: Option<[B::Kv; CopyStore::COUNT]>,
    activations: Activations<B>,
}

const LOADED: &str = "no step is submitted while weights are dropped";

/// What a decoder has of its model's tensors.
struct Weights<B: Backend> {
    embed: Arc<B::Matrix>,
    positions: Option<Arc<B::Matrix>>,
    inputs: Option<InputTable<B>>,
    layers: Vec<Layer<B>>,
    final_norm: NormLayer<B>,
    head: Head<B>,
    /// All of these, in the order in which they were loaded.
    held: HeldWeights<B>,
}

/// What follows the final norm.
enum Head<B: Backend> {
    /// The output layer of a generator.
    Tokens {
        /// `None` if it is tied to the embedding table.
        matrix: Option<Arc<B::Matrix>>,
        bias: Option<Arc<B::Vector>>,
        /// Its place, tied or not, among those that adapters may change.
        adapted: AdaptedIx,
    },
    /// The layers of a scorer, with a ReLU between each two.
    Values { inner: Vec<Linear<B>>, last: Linear<B> },
    /// Of an embedder, nothing.
    Hidden,
}

impl<B: Backend> Head<B> {
    fn load(loader: &mut Loader<'_, B>, layout: &Layout, config: &ModelConfig, dtype: Dtype) -> Result<Self> {
        if let Some((last, inner)) = layout.values.split_last() {
            let inner = made_of(inner, |layer| Linear::load(loader, layer))?;
            return Ok(Head::Values { inner, last: Linear::load(loader, last)? });
        }
        if config.output == OutputHead::Hidden {
            return Ok(Head::Hidden);
        }
        let (one, of_vocab) = (std::slice::from_ref, Split::outputs([config.vocab]));
        let (matrix, bias) = (layout.head.as_ref(), layout.head_bias.as_ref());
        let matrix = matrix.map(|tensor| loader.matrix(one(tensor), None, &of_vocab)).transpose()?;
        let bias = bias.map(|tensor| loader.vector(one(tensor), None, &of_vocab)).transpose()?;
        // The embedding table is whole on every rank.
        let split = if matrix.is_some() { of_vocab } else { Split::Whole };
        let adapted = loader.adapts(AdaptedLayer::of_head(&layout.embed, dtype, split));
        Ok(Head::Tokens { matrix, bias, adapted })
    }
}

impl<B: Backend> Weights<B> {
    /// Loads all weights, or those again that have changed. Returns the layers that adapters may change, too, in whose
    /// tables there is nothing.
    fn load(
        mut loader: Loader<'_, B>,
        layout: &Layout,
        config: &ModelConfig,
        dtype: Dtype,
    ) -> Result<(Self, Vec<AdaptedLayer<B>>)> {
        let (one, kinds) = (std::slice::from_ref, Kinds::of(config));
        let tensors = layout.layers.iter().zip(BufferIndices::of(config, layout)).enumerate();
        let stage = loader.is_noted().then(|| Stage::new("layers of the model", layout.layers.len()));
        let layers = made_of(tensors, |(ix, (tensors, buffers))| {
            let layer = Layer::load(&mut loader, tensors, config, ix, &kinds, buffers)?;
            stage.iter().for_each(Stage::step);
            Ok(layer)
        })?;
        let inputs = layout.inputs.as_ref().zip(config.per_layer_inputs);
        let inputs = inputs.map(|(tensors, inputs)| InputTable::load(&mut loader, tensors, config, inputs, dtype));
        let embed = loader.matrix(one(&layout.embed), None, &Split::Whole)?;
        let positions = layout.positions.as_ref();
        let positions = positions.map(|table| loader.matrix(one(table), None, &Split::Whole)).transpose()?;
        let inputs = inputs.transpose()?;
        let final_norm = NormLayer::load(&mut loader, &layout.final_norm, config.final_norm)?;
        let head = Head::load(&mut loader, layout, config, dtype)?;
        let (held, adapted) = loader.loaded();
        Ok((Self { embed, positions, inputs, layers, final_norm, head, held }, adapted))
    }
}

impl<B: Backend> Decoder<B> {
    /// Loads a folder's model.
    pub fn load(backend: &mut B, folder: &ModelFolder) -> Result<Self> {
        Self::of(backend, &ModelWeights::open(folder)?)
    }

    /// A model with random weights of `dtype`, generated from `seed`.
    pub fn random(backend: &mut B, config: ModelConfig, dtype: Dtype, seed: u64) -> Result<Self> {
        Self::of(backend, &ModelWeights::random(config, dtype, seed))
    }

    /// Loads what a backend has of these weights.
    pub fn of(backend: &mut B, weights: &ModelWeights) -> Result<Self> {
        let ModelWeights { config, dtype, layout, source, .. } = weights;
        let (config, dtype) = (config.clone(), *dtype);
        let form = weights.form()?;
        if backend.is_first() {
            conversions::note(backend, weights, &form);
        }
        let kinds = Kinds::of(&config);
        // Before the weights: a backend refuses mixtures that it does not take before it has loaded one.
        let activations = Activations::new(backend, &config, layout, dtype)?;
        let (loaded, adapted) = Weights::load(Loader::new(backend, source, &Cell::new(false)), layout, &config, dtype)?;
        Ok(Self {
            embed_scale: config.embed_scale.map(|scale| scale.in_dtype(dtype)),
            weights: Some(loaded),
            has_weights: true,
            pending: None,
            form,
            adapted,
            adapters: BTreeSet::new(),
            ropes: load_ropes(backend, &kinds.ropes, config.context)?,
            longest: config.context,
            last_position: 0,
            kv_bytes_per_token: config.kv_bytes_per_token_on(backend, dtype),
            hints: kinds.attention.iter().map(|&kind| plan_hints(backend, dtype, kind, config.latents())).collect(),
            state_dtype: StateDtype::default(),
            routes: None,
            copies: None,
            layers_by_plan: kinds.attention.iter().map(|&kind| config.layers_of(kind)).collect(),
            activations,
            config,
            dtype,
        })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What updates of the weights are checked by.
    pub fn weight_form(&self) -> Arc<WeightForm> {
        self.form.clone()
    }

    /// Whether weights are loaded.
    pub fn has_weights(&self) -> bool {
        self.has_weights
    }

    /// Drops the weights; `keeps_memory`: their memory stays, for an update.
    pub fn drop_weights(&mut self, keeps_memory: bool) {
        self.has_weights = false;
        if !keeps_memory {
            self.weights = None;
        }
    }

    /// Puts the tensors of an update in the place of those that are loaded. Errors: see
    /// [`StepRunner::apply_update`](super::StepRunner::apply_update).
    pub fn update(&mut self, backend: &mut B, update: &CheckedUpdate<'_>) -> Result<()> {
        let loaded = self.load_update(backend, update);
        self.end_update(loaded.is_ok());
        loaded
    }

    /// The first half of [`Decoder::update`]: loads the tensors of an update. Where weights are replaced in place, the
    /// old ones are gone once the first of them is.
    pub(super) fn load_update(&mut self, backend: &mut B, update: &CheckedUpdate<'_>) -> Result<()> {
        let CheckedUpdate { source, layout, changes, .. } = update;
        if !self.has_weights && !update.is_whole() {
            return Err(no_weights());
        }
        let replaces = Cell::new(false);
        let loader = match &self.weights {
            Some(weights) => Loader::again(backend, source, &weights.held, changes, &replaces),
            None => Loader::new(backend, source, &replaces),
        };
        let loaded = Weights::load(loader, layout, &self.config, self.dtype);
        self.has_weights &= !replaces.get();
        // The layers that adapters may change are those of the model: they keep what is loaded in them.
        let (weights, _) = loaded?;
        self.pending = Some(weights);
        Ok(())
    }

    /// The second half of [`Decoder::update`]: the new weights are in force if all devices have loaded them, else the
    /// old ones if they are still there.
    pub(super) fn end_update(&mut self, is_loaded: bool) {
        let pending = self.pending.take();
        if is_loaded && pending.is_some() {
            (self.weights, self.has_weights) = (pending, true);
        }
    }

    /// The compute dtype; also that of keys and values unless they are fp8.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Hints for each kind of attention (heads, window and page group) of the layers. `forward` takes one plan for
    /// each, in this order.
    pub fn plan_hints(&self) -> &[PlanHints] {
        &self.hints
    }

    /// The number of layers that use each plan.
    pub fn layers_by_plan(&self) -> &[usize] {
        &self.layers_by_plan
    }

    /// Sets the memory for copies of latents, and plans accordingly.
    pub(super) fn set_copies(&mut self, copies: Option<[B::Kv; CopyStore::COUNT]>) {
        for latents in self.hints.iter_mut().filter_map(|hints| hints.latents.as_mut()) {
            latents.has_copies = copies.is_some();
        }
        self.copies = copies;
    }

    /// The memory for keys and values, with no room for states.
    pub fn kv_shape(&self, pages: usize) -> KvShape {
        let mut shape = self.config.kv_shape(self.dtype, pages);
        shape.states.dtype = self.state_dtype;
        shape.routes = self.routes;
        shape
    }

    /// Keeps the experts of each token beside its keys and values, or not, in memory that is allocated from now on, and
    /// in steps that are run from now on.
    ///
    /// # Errors
    ///
    /// Those of [`ModelConfig::route_shape`].
    pub fn keep_routes(&mut self, keeps: bool) -> Result<()> {
        self.routes = if keeps { Some(self.config.route_shape()?) } else { None };
        Ok(())
    }

    /// What steps keep of the tokens' experts.
    pub fn routes(&self) -> Option<RouteShape> {
        self.routes
    }

    /// Stores states in `dtype`, in memory that is allocated from now on.
    pub fn set_state_dtype(&mut self, dtype: StateDtype) {
        self.state_dtype = dtype;
    }

    /// Stores keys and values in `kv` on the backend it was loaded with, in memory that is allocated from now on.
    pub fn set_kv_dtype(&mut self, backend: &mut B, kv: KvDtype) {
        kv.set_on(backend, self.config.stored_heads(), self.dtype);
        self.kv_bytes_per_token = self.config.kv_bytes_per_token_on(backend, self.dtype);
        self.set_hints(backend);
    }

    /// Makes this model batch-invariant on the backend it was loaded with. Steps made before become invalid.
    pub fn set_batch_invariant(&mut self, backend: &mut B) {
        backend.set_batch_invariant();
        self.set_hints(backend);
    }

    fn set_hints(&mut self, backend: &B) {
        let kinds = Kinds::of(&self.config).attention;
        let latents = self.config.latents();
        self.hints = kinds.iter().map(|&kind| plan_hints(backend, self.dtype, kind, latents)).collect();
    }

    /// Sets the longest sequence that steps will belong to, which decides which factors a longrope uses: keys stored
    /// before stay as they are. At first it is the model's context. Returns whether the factors change.
    pub fn set_longest(&mut self, backend: &mut B, tokens: usize) -> Result<bool> {
        let mut ropes = self.config.attention().filter_map(|attention| attention.rope.as_ref());
        let changes = ropes.any(|rope| rope.differs_by_length(self.longest, tokens));
        if changes {
            self.ropes = load_ropes(backend, &Kinds::of(&self.config).ropes, tokens)?;
        }
        self.longest = tokens;
        Ok(changes)
    }

    pub fn kv_bytes_per_token(&self) -> usize {
        self.kv_bytes_per_token
    }

    /// An empty step, for `forward`. Of a model with latent attention its last plans are those of copies.
    pub fn step(&self, backend: &mut B) -> Result<B::Step> {
        let mut heads: Vec<_> = self.config.attention_kinds().iter().map(|kind| kind.heads).collect();
        if let Some(latents) = self.config.latents() {
            heads.extend(CopyStore::ALL.map(|_| latents.expanded()));
        }
        backend.step(&heads, self.dtype, self.config.outputs())
    }

    /// Allocates what steps up to this shape need: activations, logits and the integers of the step.
    pub fn reserve(&mut self, backend: &mut B, step: &mut B::Step, shape: StepShape) -> Result<()> {
        let shape = backend.reserve(step, shape)?;
        let states: Vec<_> = self.config.states().collect();
        backend.reserve_state_scratch(&states, self.dtype, shape.rows)?;
        self.activations.resize(backend, shape)
    }

    /// Loads and enqueues `batch`. Returns the buffer of its logits or, of a scorer, its values:
    /// `[batch.logit_rows.len(), outputs]`; reading it waits for the step. Samples can be collected from `step`. Work
    /// enqueued later finds the keys and values of all rows in `kv`. Errors: a token or position out of range, or a
    /// shortage of memory.
    pub fn forward(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        step: &mut B::Step,
        batch: StepBatch,
    ) -> Result<&B::Buffer> {
        let shape = self.load_batch(backend, step, batch)?;
        self.enqueue(backend, kv, step, shape)
    }

    /// Does what `forward` does, with `observe` called in each layer after its attention is enqueued; it may enqueue
    /// ops that read the attention's operands.
    pub fn forward_observed(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        step: &mut B::Step,
        batch: StepBatch,
        observe: impl FnMut(&mut B, Attended<'_, B>),
    ) -> Result<&B::Buffer> {
        let shape = self.load_batch(backend, step, batch)?;
        backend.run_once(step, shape, |backend, step| self.ops(backend, kv, step, shape, observe))?;
        Ok(&self.activations.output)
    }

    /// The first half of `forward`: loads `batch` and makes room for it. Nothing is computed, also after an error.
    pub fn load_batch(&mut self, backend: &mut B, step: &mut B::Step, batch: StepBatch) -> Result<StepShape> {
        let checked = check(&self.config, &self.hints, &batch).and_then(|()| self.check_adapters(&batch));
        let loaded = checked.and_then(|()| {
            self.last_position = batch.positions.iter().copied().max().unwrap_or(0);
            backend.load(step, batch)
        });
        self.make_room(backend, step, loaded)
    }

    /// Advances the loaded step by one token per row (see `StepBatch::advance`); `enqueue` follows. Nothing is
    /// computed, also after an error.
    pub fn load_advanced(
        &mut self,
        backend: &mut B,
        step: &mut B::Step,
        uniforms: &[f64],
        new_pages: &[NewPage],
    ) -> Result<StepShape> {
        self.last_position += 1;
        let loaded = backend.advance(step, uniforms, new_pages);
        self.make_room(backend, step, loaded)
    }

    /// The second half of `forward`, and what follows `load_advanced`: enqueues the loaded step, of that shape. After
    /// an error any of its ops may have been computed: of the states that the step changes none is to be read again.
    pub fn enqueue(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        step: &mut B::Step,
        shape: StepShape,
    ) -> Result<&B::Buffer> {
        backend.run(step, shape, |backend, step| self.ops(backend, kv, step, shape, |_, _| {}))?;
        Ok(&self.activations.output)
    }

    /// Makes room for the loaded step: resizes activations and extends rope tables to its last position. Then all
    /// devices that compute the model run it, or none does.
    fn make_room(&mut self, backend: &mut B, step: &mut B::Step, loaded: Result<StepShape>) -> Result<StepShape> {
        let loaded = loaded.and_then(|shape| {
            self.ropes.iter_mut().try_for_each(|rope| rope.cover(backend, self.last_position as usize + 1))?;
            self.activations.resize(backend, shape)?;
            Ok(shape)
        });
        agreed(backend, step, loaded)
    }

    /// Samples by the late requests of the step that was enqueued last, one for each row of its logits.
    ///
    /// # Errors
    ///
    /// The device lacks memory for requests or results, or fails.
    pub fn sample_late(
        &mut self,
        backend: &mut B,
        step: &mut B::Step,
        requests: Vec<SampleRequest>,
    ) -> Result<(), StepFailure> {
        let loaded = backend.load_requests(step, requests);
        agreed(backend, step, loaded).map_err(StepFailure::before)?;
        let sampled = backend.sample_late(&self.activations.output, step);
        sampled.map_err(|error| StepFailure { error, has_begun: true })
    }

    fn check_adapters(&self, batch: &StepBatch) -> Result<()> {
        match batch.adapters.iter().flatten().find(|slot| !self.adapters.contains(slot)) {
            None => Ok(()),
            Some(slot) => {
                Err(Error::Internal(format!("a row of a step names adapter {}, which is not loaded", slot.number())))
            }
        }
    }

    /// Loads an adapter's weights beside those in use: no step sees them before [`Decoder::put_adapter`].
    ///
    /// # Errors
    ///
    /// The adapter is not one for this model, the model is a scorer, or memory is short; nothing has changed.
    pub fn stage_adapter(&self, backend: &mut B, adapter: &Adapter) -> Result<StagedAdapter<B>> {
        if self.config.is_scorer() {
            return Err(Error::value("the model of an adapter", "one that predicts tokens", "a scorer"));
        }
        adapter.check(&self.config)?;
        StagedAdapter::load(backend, &self.adapted, adapter)
    }

    /// Puts a staged adapter in a slot, in place of what is there; steps that were enqueued before still see that.
    pub fn put_adapter(&mut self, backend: &mut B, slot: AdapterSlot, staged: StagedAdapter<B>) {
        staged.put(backend, &mut self.adapted, slot);
        self.adapters.insert(slot);
    }

    /// Empties a slot: no later step may name it. Returns whether there was an adapter.
    pub fn remove_adapter(&mut self, backend: &mut B, slot: AdapterSlot) -> bool {
        let was_loaded = self.adapters.remove(&slot);
        if was_loaded {
            self.adapted.iter_mut().for_each(|layer| layer.set(backend, slot, None));
        }
        was_loaded
    }

    fn ops(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        loaded: &mut B::Step,
        shape: StepShape,
        mut observe: impl FnMut(&mut B, Attended<'_, B>),
    ) -> Result<()> {
        let (a, weights) = (&mut self.activations, self.weights.as_ref().expect(LOADED));
        let adapted = shape.adapters.then_some(&*self.adapted);
        backend.embed(&mut a.all.residual, &weights.embed, loaded);
        if let Some(scale) = self.embed_scale {
            backend.scale(&mut a.all.residual, scale);
        }
        if let Some(positions) = &weights.positions {
            backend.add_positions(&mut a.all.residual, positions, loaded);
        }
        if let Some(inputs) = &weights.inputs {
            let adapters = StepAdapters::of(adapted, StepRows::All, loaded);
            inputs.fill(backend, &mut a.all, loaded, adapters);
        }
        let (copies, absorbs, copies_shape) = (self.copies.as_mut(), shape.absorbs, shape.copies);
        let mut step = StepOperands { ropes: &self.ropes, kv, copies, absorbs, copies_shape, loaded, adapted };
        let last = weights.layers.len() - 1;
        // The number of the next layer whose experts are kept.
        let mut kept = 0;
        let keeps = |layer: &Layer<B>| self.routes.is_some() && layer.has_experts();
        // After the last attention rows are independent: continue only with those whose logits are computed, unless the
        // experts of all are kept.
        let continues_all = keeps(&weights.layers[last]);
        for (ix, layer) in weights.layers.iter().enumerate() {
            layer.attend(backend, a, &mut step, &mut observe);
            if ix < last || continues_all {
                layer.transform(backend, &mut a.all, step.adapters(StepRows::All));
            }
            if keeps(layer) {
                let routes = &a.all.mixtures[layer.buffers.mixture].routes;
                backend.keep_routes(step.kv, LayerIx::new(kept), routes, step.loaded);
                kept += 1;
            }
        }
        if shape.logit_rows == 0 {
            return Ok(());
        }
        let adapters = step.adapters(StepRows::Logits);
        match continues_all {
            true => backend.select_rows(&mut a.logit_rows.residual, &a.all.residual, step.loaded),
            false => {
                let reads_normed = weights.layers[last].reads_normed_again();
                a.select_logit_rows(backend, weights.layers[last].buffers.heads, reads_normed, step.loaded);
                weights.layers[last].transform(backend, &mut a.logit_rows, adapters);
            }
        }
        weights.final_norm.apply(backend, &mut a.logit_rows.normed, &a.logit_rows.residual);
        let out = &mut a.output;
        match &weights.head {
            Head::Tokens { matrix, bias, adapted } => {
                let (x, head) = (&a.logit_rows.normed, matrix.as_ref().unwrap_or(&weights.embed));
                adapters.linear(*adapted, backend, out, x, head, bias.as_deref(), OutputMode::Replace);
            }
            Head::Values { inner, last } => {
                let mut x = &a.logit_rows.normed;
                for (layer, inner) in inner.iter().zip(&mut a.value_layers) {
                    layer.apply(backend, inner, x, adapters);
                    backend.relu(inner);
                    x = inner;
                }
                last.apply(backend, out, x, adapters);
            }
            Head::Hidden => {
                // The norm once more, as sums, which are not rounded: it is added to zeros.
                backend.select_rows(out, &a.all.residual, step.loaded);
                backend.scale(out, 0.0);
                weights.final_norm.add_to(backend, out, &a.logit_rows.residual);
            }
        }
        let has_logits = !matches!(self.config.output, OutputHead::Values(_) | OutputHead::Hidden);
        if let Some(scale) = self.config.logit_scale.filter(|_| has_logits) {
            backend.scale(out, scale);
        }
        if let Some(cap) = self.config.final_softcap.filter(|_| has_logits) {
            backend.softcap(out, cap);
        }
        match (shape.samples, &weights.head) {
            (false, _) => Ok(()),
            (true, Head::Tokens { .. }) => {
                backend.sample(out, step.loaded);
                Ok(())
            }
            (true, Head::Values { .. } | Head::Hidden) => backend.keep_values(out, step.loaded),
        }
    }
}

/// What was loaded here, if every device that computes the model has loaded it.
fn agreed<B: Backend, T>(backend: &mut B, step: &mut B::Step, loaded: Result<T>) -> Result<T> {
    match (backend.agree(step, loaded.is_ok()), loaded) {
        (false, Ok(_)) => Err(Error::Internal("another device of the model cannot load the step".to_owned())),
        (_, loaded) => loaded,
    }
}

/// Checks what a backend would panic on. Token ids and lengths come from the input of callers; other errors are
/// bugs.
fn check(config: &ModelConfig, hints: &[PlanHints], batch: &StepBatch) -> Result<()> {
    let rows = batch.tokens.len();
    let known = batch.tokens.iter().filter_map(|token| match token {
        RowToken::Known(token) => Some(token),
        RowToken::Sampled(_) => None,
    });
    if let Some(token) = known.into_iter().find(|token| token.ix() >= config.vocab) {
        let expected = format!("below the model's vocabulary of {}", config.vocab);
        return Err(Error::value("token id", expected, token.to_string()));
    }
    if let Some(&last) = batch.positions.iter().find(|&&position| position as usize >= config.context) {
        let (what, context) = ("a sequence".to_owned(), config.context);
        return Err(Error::ContextTooLong { what, tokens: last as usize + 1, context });
    }
    let fits = rows > 0
        && batch.positions.len() == rows
        && batch.slots.iter().all(|slots| slots.len() == rows)
        && batch.logit_rows.is_sorted()
        && batch.logit_rows.last().is_none_or(|&row| (row as usize) < rows)
        && batch.requests.fit(batch.logit_rows.len())
        && match &batch.requests {
            StepRequests::None => true,
            StepRequests::Values => config.is_scorer(),
            StepRequests::Given(_) | StepRequests::Late => !config.is_scorer(),
        }
        && batch.expansions.is_some() == config.latents().is_some()
        && batch.plans.len() == hints.len() + if batch.expansions.is_some() { CopyStore::COUNT } else { 0 }
        && batch.plans.iter().zip(hints).all(|(plan, hints)| (plan.window, plan.group) == (hints.window, hints.group))
        && batch.plans.iter().all(|plan| plan.group.ix() < batch.slots.len())
        && (batch.adapters.is_empty() || batch.adapters.len() == rows)
        && batch.plans.iter().all(|plan| plan.row_positions == batch.positions)
        && (config.states().next().is_none() || covers(&batch.state_runs, rows));
    if fits { Ok(()) } else { Err(Error::Internal("a step's rows and plans do not fit each other".to_owned())) }
}

/// Whether the runs have each row once.
fn covers(runs: &[StateRun], rows: usize) -> bool {
    let mut next = 0;
    let mut sorted: Vec<_> = runs.iter().map(|run| run.rows.clone()).collect();
    sorted.sort_unstable_by_key(|rows| rows.start);
    sorted.into_iter().all(|rows| !rows.is_empty() && rows.start == std::mem::replace(&mut next, rows.end))
        && next as usize == rows
}

/// Hints for the plans of one kind of attention.
fn plan_hints<B: Backend>(backend: &B, dtype: Dtype, kind: AttentionKind, latents: Option<LatentHeads>) -> PlanHints {
    let small = |size: usize| u32::try_from(size).expect("config bounds heads far below 2^32");
    let AttentionKind { heads, window, group } = kind;
    PlanHints {
        tile: backend.attention_tile(heads, dtype, window),
        group,
        window,
        q_heads: small(heads.q_heads),
        kv_heads: small(heads.kv_heads),
        head_dim: small(heads.head_dim),
        kv_element_bytes: small(backend.kv_element_bytes(heads, dtype)),
        latents: latents.map(|latents| LatentHints {
            nope: small(latents.nope),
            rope: small(latents.rope),
            value: small(latents.value),
            tile: backend.attention_tile(latents.expanded(), dtype, window),
            copy_element_bytes: small(backend.kv_element_bytes(latents.expanded(), dtype)),
            has_copies: false,
        }),
        cost: backend.cost_model(),
    }
}
