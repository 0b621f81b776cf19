//! One decoder for all families: what distinguishes them was data in `ModelConfig` and is by now a part that is there
//! or not. A step's rows may belong to any number of sequences; the attention plans say who sees what.

use crate::backend::{
    Attended, Backend, Dtype, HeadKind, HeadLayout, KvShape, RowToken, StepBatch, StepShape, WeightFormat,
};
use crate::error::{Error, Result};
use crate::ids::LayerIx;
use crate::plan::{NewPage, PlanHints};

use super::activations::{Activations, Places, Stream};
use super::config::{
    self, AttentionKind, AttentionSpec, LayerNorms, LayerSpec, ModelConfig, ModelFolder, RopeConfig, kinds,
};
use super::layout::{LayerTensors, Layout};
use super::parts::{FeedForward, Linear, Norm};
use super::rope::Rotary;
use super::weights::{Checkpoint, RandomWeights, Source};

pub struct Decoder<B: Backend> {
    config: ModelConfig,
    weights: WeightFormat,
    dtype: Dtype,
    embed: B::Matrix,
    layers: Vec<Layer<B>>,
    final_norm: Norm<B>,
    /// Absent where the embedding table serves.
    head: Option<B::Matrix>,
    head_bias: Option<B::Vector>,
    /// One for each rope of the layers.
    ropes: Vec<Rope<B>>,
    /// The largest position of the step that was loaded last.
    last_position: u32,
    /// One for each kind of attention, and how many layers have it.
    hints: Vec<PlanHints>,
    layers_by_plan: Vec<usize>,
    kv_bytes_per_token: usize,
    activations: Activations<B>,
}

/// A table that reaches all positions in use, on the host and where the ops read it.
struct Rope<B: Backend> {
    rotary: Rotary,
    table: B::Rope,
    /// Whether `table` is that of `rotary`: false where the device had no memory for a longer one.
    is_current: bool,
}

struct Layer<B: Backend> {
    attention_norm: Norm<B>,
    attention: Attention<B>,
    /// Absent where attention and feed-forward share one norm and run in parallel.
    feed_forward_norm: Option<Norm<B>>,
    feed_forward: FeedForward<B>,
    places: Places,
}

struct Attention<B: Backend> {
    heads: HeadLayout,
    scale: f32,
    qkv: Linear<B>,
    /// Of query heads and of key heads.
    head_norms: Option<HeadNorms<B>>,
    out: Linear<B>,
    /// Which of the step's plans, and of the model's ropes, is its own.
    plan: usize,
    rope: usize,
}

struct HeadNorms<B: Backend> {
    query: B::Vector,
    key: B::Vector,
    eps: f32,
}

/// What layers share by kind: the attention plans of a step, and the ropes.
struct Kinds {
    attention: Vec<AttentionKind>,
    ropes: Vec<RopeConfig>,
}

/// What all layers of a step share.
struct Step<'a, B: Backend> {
    ropes: &'a [Rope<B>],
    kv: &'a mut B::Kv,
    loaded: &'a mut B::Step,
}

impl<B: Backend> Decoder<B> {
    /// Reads the weights by memory map. All tensors are checked against config.json before the first is packed.
    pub fn load(backend: &mut B, folder: &ModelFolder) -> Result<Self> {
        let layout = Layout::of(&folder.config);
        let checkpoint = Checkpoint::open(&folder.path)?;
        checkpoint.verify(&layout)?;
        let weights = checkpoint.format(&layout)?;
        let source = Source::Checkpoint { checkpoint, dtype: weights.compute_dtype() };
        Self::build(backend, folder.config.clone(), weights, &layout, &source)
    }

    /// Weights sampled from `seed`, all of `dtype`.
    pub fn random(backend: &mut B, config: ModelConfig, dtype: Dtype, seed: u64) -> Result<Self> {
        let layout = Layout::of(&config);
        let source = Source::Random(RandomWeights { dtype, seed });
        Self::build(backend, config, WeightFormat::Dense(dtype), &layout, &source)
    }

    fn build(
        backend: &mut B,
        config: ModelConfig,
        weights: WeightFormat,
        layout: &Layout,
        source: &Source,
    ) -> Result<Self> {
        let dtype = weights.compute_dtype();
        let kinds = Kinds::of(&config);
        let tensors = layout.layers.iter().zip(&config.layers).zip(Places::of(&config));
        let layers =
            tensors.map(|((tensors, spec), places)| Layer::load(backend, source, tensors, spec, &kinds, places));
        let layers = layers.collect::<Result<_>>()?;
        let one = std::slice::from_ref;
        Ok(Self {
            embed: source.matrix(backend, one(&layout.embed))?,
            layers,
            final_norm: Norm::load(backend, source, &layout.final_norm, config.final_norm)?,
            head: layout.head.as_ref().map(|tensor| source.matrix(backend, one(tensor))).transpose()?,
            head_bias: layout.head_bias.as_ref().map(|tensor| source.vector(backend, one(tensor))).transpose()?,
            ropes: kinds.ropes.iter().map(|rope| Rope::new(backend, rope)).collect::<Result<_>>()?,
            last_position: 0,
            kv_bytes_per_token: config.kv_bytes_per_token(|heads| backend.kv_element_bytes(heads, dtype)),
            hints: kinds.attention.iter().map(|&kind| plan_hints(backend, dtype, kind)).collect(),
            layers_by_plan: kinds.attention.iter().map(|&kind| config.layers_of(kind)).collect(),
            activations: Activations::new(backend, &config, dtype)?,
            config,
            weights,
            dtype,
        })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How the matrices of its layers are stored.
    pub fn weights(&self) -> WeightFormat {
        self.weights
    }

    /// The compute dtype, and that of keys and values unless they are kept as fp8.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// One for each kind of attention (heads and window) of the layers. `forward` wants a plan for each, in this order.
    pub fn plan_hints(&self) -> &[PlanHints] {
        &self.hints
    }

    /// How many layers go by each of the plans.
    pub fn layers_by_plan(&self) -> &[usize] {
        &self.layers_by_plan
    }

    pub fn kv_shape(&self, pages: usize) -> KvShape {
        KvShape { heads: self.config.heads().collect(), dtype: self.dtype, pages }
    }

    /// From now on this model's results for a row depend on that row alone, to the last bit, on the backend that it was
    /// loaded with. Steps made before are of no use then.
    pub fn set_batch_invariant(&mut self, backend: &mut B) {
        backend.set_batch_invariant();
        for hints in &mut self.hints {
            *hints = PlanHints { tile: backend.tile(), cost: backend.cost_model(), ..*hints };
        }
    }

    pub fn parameters(&self) -> usize {
        self.config.parameters()
    }

    pub fn weight_bytes(&self) -> usize {
        self.config.weight_bytes(self.weights)
    }

    pub fn kv_bytes_per_token(&self) -> usize {
        self.kv_bytes_per_token
    }

    /// A step for `forward` to load.
    pub fn step(&self, backend: &mut B) -> Result<B::Step> {
        let heads: Vec<_> = self.config.attention_kinds().iter().map(|kind| kind.heads).collect();
        backend.step(&heads, self.dtype, self.config.vocab)
    }

    /// Makes room for steps up to this shape: their activations, logits and lists.
    pub fn reserve(&mut self, backend: &mut B, step: &mut B::Step, shape: StepShape) -> Result<()> {
        let shape = backend.reserve(step, shape)?;
        self.activations.resize(backend, shape)
    }

    /// Loads `batch` and enqueues it: its logits are in the buffer returned (`[batch.logit_rows.len(), vocab]`, as soon
    /// as it is read), its samples can be collected, and the keys and values of all rows are in `kv` for whatever is
    /// enqueued after it.
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

    /// The same, enqueued op by op; `observe` is called in each layer once its attention is enqueued, and may enqueue
    /// ops that read the same.
    pub fn forward_observed(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        step: &mut B::Step,
        batch: StepBatch,
        observe: impl FnMut(&mut B, Attended<'_, B>),
    ) -> Result<&B::Buffer> {
        let shape = self.load_batch(backend, step, batch)?;
        self.make_room(backend, shape)?;
        backend.run_once(step, shape, |backend, step| {
            self.ops(backend, kv, step, shape, observe);
            Ok(())
        })?;
        Ok(&self.activations.logits)
    }

    fn load_batch(&mut self, backend: &mut B, step: &mut B::Step, batch: StepBatch) -> Result<StepShape> {
        self.check(&batch)?;
        self.last_position = batch.positions.iter().copied().max().unwrap_or(0);
        backend.load(step, batch)
    }

    /// The step that is loaded, one token further; see `StepBatch::advance`.
    pub fn advance(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        step: &mut B::Step,
        uniforms: &[f64],
        new_pages: &[NewPage],
    ) -> Result<&B::Buffer> {
        self.last_position += 1;
        let shape = backend.advance(step, uniforms, new_pages)?;
        self.enqueue(backend, kv, step, shape)
    }

    fn enqueue(&mut self, backend: &mut B, kv: &mut B::Kv, step: &mut B::Step, shape: StepShape) -> Result<&B::Buffer> {
        self.make_room(backend, shape)?;
        backend.run(step, shape, |backend, step| {
            self.ops(backend, kv, step, shape, |_, _| {});
            Ok(())
        })?;
        Ok(&self.activations.logits)
    }

    /// For a loaded step of this shape: its activations, and the rope tables up to its last position.
    fn make_room(&mut self, backend: &mut B, shape: StepShape) -> Result<()> {
        for rope in &mut self.ropes {
            rope.cover(backend, self.last_position as usize + 1)?;
        }
        self.activations.resize(backend, shape)
    }

    fn ops(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        loaded: &mut B::Step,
        shape: StepShape,
        mut observe: impl FnMut(&mut B, Attended<'_, B>),
    ) {
        let a = &mut self.activations;
        backend.embed(&mut a.all.residual, &self.embed, loaded);
        let mut step = Step { ropes: &self.ropes, kv, loaded };
        let last = self.layers.len() - 1;
        for (ix, layer) in self.layers.iter().enumerate() {
            layer.attend(backend, a, LayerIx::new(ix), &mut step, &mut observe);
            if ix < last {
                layer.transform(backend, &mut a.all);
            }
        }
        if shape.logit_rows == 0 {
            return;
        }
        // Behind the last attention, no row reads another: only those whose logits are wanted go on.
        a.select_wanted(backend, self.layers[last].places.heads, step.loaded);
        self.layers[last].transform(backend, &mut a.logit_rows);
        self.final_norm.apply(backend, &mut a.logit_rows.normed, &a.logit_rows.residual);
        let head = self.head.as_ref().unwrap_or(&self.embed);
        backend.linear(&mut a.logits, &a.logit_rows.normed, head, self.head_bias.as_ref());
        if shape.samples {
            backend.sample(&a.logits, step.loaded);
        }
    }

    /// What a backend would panic on. Tokens and lengths come from callers' input, the rest from our own engine.
    fn check(&self, batch: &StepBatch) -> Result<()> {
        let rows = batch.tokens.len();
        let known = batch.tokens.iter().filter_map(|token| match token {
            RowToken::Known(token) => Some(token),
            RowToken::Sampled(_) => None,
        });
        if let Some(token) = known.into_iter().find(|token| token.ix() >= self.config.vocab) {
            let expected = format!("below the model's vocabulary of {}", self.config.vocab);
            return Err(Error::value("token id", expected, token.to_string()));
        }
        if let Some(&last) = batch.positions.iter().find(|&&position| position as usize >= self.config.context) {
            let (what, context) = ("a sequence".to_owned(), self.config.context);
            return Err(Error::ContextTooLong { what, tokens: last as usize + 1, context });
        }
        let fits = rows > 0
            && batch.positions.len() == rows
            && batch.slots.len() == rows
            && batch.logit_rows.is_sorted()
            && batch.logit_rows.last().is_none_or(|&row| (row as usize) < rows)
            && (batch.requests.is_empty() || batch.requests.len() == batch.logit_rows.len())
            && batch.plans.len() == self.hints.len()
            && batch.plans.iter().zip(&self.hints).all(|(plan, hints)| plan.window == hints.window)
            && batch.plans.iter().all(|plan| plan.row_positions == batch.positions);
        if fits { Ok(()) } else { Err(Error::Internal("a step's rows and plans do not fit each other".to_owned())) }
    }
}

fn plan_hints<B: Backend>(backend: &B, dtype: Dtype, kind: AttentionKind) -> PlanHints {
    let small = |size: usize| u32::try_from(size).expect("config bounds heads far below 2^32");
    let AttentionKind { heads, window } = kind;
    PlanHints {
        tile: backend.tile(),
        window,
        q_heads: small(heads.q_heads),
        kv_heads: small(heads.kv_heads),
        head_dim: small(heads.head_dim),
        kv_element_bytes: small(backend.kv_element_bytes(heads, dtype)),
        cost: backend.cost_model(),
    }
}

impl Kinds {
    fn of(config: &ModelConfig) -> Self {
        let ropes = kinds(config.layers.iter().map(|layer| &layer.attention.rope));
        Self { attention: config.attention_kinds(), ropes: ropes.into_iter().cloned().collect() }
    }

    fn plan(&self, spec: &AttentionSpec) -> usize {
        let kind = spec.kind();
        self.attention.iter().position(|other| *other == kind).expect("the kinds are those of all layers")
    }

    fn rope(&self, spec: &AttentionSpec) -> usize {
        self.ropes.iter().position(|other| *other == spec.rope).expect("the kinds are those of all layers")
    }
}

impl<B: Backend> Rope<B> {
    fn new(backend: &mut B, config: &RopeConfig) -> Result<Self> {
        let rotary = Rotary::new(config);
        Ok(Self { table: backend.rope_table(rotary.table())?, rotary, is_current: true })
    }

    fn cover(&mut self, backend: &mut B, positions: usize) -> Result<()> {
        self.is_current &= !self.rotary.cover(positions);
        if !self.is_current {
            self.table = backend.rope_table(self.rotary.table())?;
            self.is_current = true;
        }
        Ok(())
    }
}

impl<B: Backend> Layer<B> {
    fn load(
        backend: &mut B,
        source: &Source,
        tensors: &LayerTensors,
        spec: &LayerSpec,
        kinds: &Kinds,
        places: Places,
    ) -> Result<Self> {
        let (attention_norm, feed_forward_norm) = match spec.norms {
            LayerNorms::Sequential { attention, feed_forward } => (attention, Some(feed_forward)),
            LayerNorms::Parallel(norm) => (norm, None),
        };
        let feed_forward_norm = tensors.feed_forward_norm.as_ref().zip(feed_forward_norm);
        let config::FeedForward::Dense { activation, .. } = spec.feed_forward;
        Ok(Self {
            attention_norm: Norm::load(backend, source, &tensors.attention_norm, attention_norm)?,
            attention: Attention::load(backend, source, tensors, &spec.attention, kinds)?,
            feed_forward_norm: feed_forward_norm
                .map(|(tensors, norm)| Norm::load(backend, source, tensors, norm))
                .transpose()?,
            feed_forward: FeedForward::Dense {
                activation,
                up: Linear::load(backend, source, &tensors.up)?,
                down: Linear::load(backend, source, &tensors.down)?,
            },
            places,
        })
    }

    /// `attended = attention(qkv(norm(residual)))`; the new keys and values are stored on the way, and `observe` is
    /// told what attention read.
    fn attend(
        &self,
        backend: &mut B,
        a: &mut Activations<B>,
        ix: LayerIx,
        step: &mut Step<'_, B>,
        observe: &mut impl FnMut(&mut B, Attended<'_, B>),
    ) {
        let Attention { heads, scale, plan, .. } = self.attention;
        let (qkv, attended) = (&mut a.qkv[self.places.heads], &mut a.all.attended[self.places.heads]);
        self.attention_norm.apply(backend, &mut a.all.normed, &a.all.residual);
        self.attention.qkv.apply(backend, qkv, &a.all.normed);
        if let Some(HeadNorms { query, key, eps }) = &self.attention.head_norms {
            backend.head_norm(qkv, heads, HeadKind::Query, query, *eps);
            backend.head_norm(qkv, heads, HeadKind::Key, key, *eps);
        }
        backend.rope(qkv, heads, &step.ropes[self.attention.rope].table, step.loaded);
        backend.kv_append(step.kv, ix, qkv, step.loaded);
        backend.tree_attention(attended, qkv, step.kv, ix, step.loaded, plan, scale);
        observe(backend, Attended { layer: ix, qkv, kv: step.kv, plan, scale });
    }

    /// `residual += out(attended)`, then `residual += feed_forward(norm(residual))`; without a norm of its own, the
    /// feed-forward part reads what attention read.
    fn transform(&self, backend: &mut B, s: &mut Stream<B>) {
        self.attention.out.add_to(backend, &mut s.residual, &s.attended[self.places.heads]);
        if let Some(norm) = &self.feed_forward_norm {
            norm.apply(backend, &mut s.normed, &s.residual);
        }
        self.feed_forward.add_to(backend, &mut s.residual, &s.normed, &mut s.inner[self.places.inner]);
    }
}

impl<B: Backend> Attention<B> {
    fn load(
        backend: &mut B,
        source: &Source,
        tensors: &LayerTensors,
        spec: &AttentionSpec,
        kinds: &Kinds,
    ) -> Result<Self> {
        let head_norms = match (&tensors.head_norms, spec.head_norm) {
            (Some([query, key]), Some(eps)) => Some(HeadNorms {
                query: source.vector(backend, std::slice::from_ref(query))?,
                key: source.vector(backend, std::slice::from_ref(key))?,
                eps,
            }),
            _ => None,
        };
        Ok(Self {
            heads: spec.heads,
            scale: spec.scale,
            qkv: Linear::load(backend, source, &tensors.qkv)?,
            head_norms,
            out: Linear::load(backend, source, &tensors.out)?,
            plan: kinds.plan(spec),
            rope: kinds.rope(spec),
        })
    }
}
