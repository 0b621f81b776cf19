//! One decoder for all families: what distinguishes them was data in `ModelConfig` and is by now a part that is there or not.
//! A step's rows may belong to any number of sequences; the attention plans say who sees what.

use crate::backend::{Attended, Backend, Dtype, HeadKind, KvShape, RowToken, StepBatch, StepShape};
use crate::error::{Error, Result};
use crate::ids::LayerIx;
use crate::plan::{PageTurn, PlanHints};

use super::activations::{Activations, Stream};
use super::config::{ModelConfig, ModelFolder};
use super::layout::{LayerSpec, Layout};
use super::parts::{Linear, Norm};
use super::rope::Rotary;
use super::weights::{Checkpoint, RandomWeights, Source};

pub struct Decoder<B: Backend> {
    config: ModelConfig,
    dtype: Dtype,
    embed: B::Matrix,
    layers: Vec<Layer<B>>,
    final_norm: Norm<B>,
    /// Absent where the embedding table serves.
    head: Option<B::Matrix>,
    head_bias: Option<B::Vector>,
    rotary: Rotary,
    rope: B::Rope,
    /// Whether `rope` is the table of `rotary`: not where the device had no memory for a longer one.
    rope_is_current: bool,
    /// The largest position of the step that was loaded last.
    last_position: u32,
    hints: Vec<PlanHints>,
    kv_element_bytes: usize,
    activations: Activations<B>,
}

struct Layer<B: Backend> {
    attention_norm: Norm<B>,
    qkv: Linear<B>,
    /// Of query heads and of key heads.
    head_norms: Option<[B::Vector; 2]>,
    out: Linear<B>,
    /// Absent where attention and feed-forward share one norm and run in parallel.
    mlp_norm: Option<Norm<B>>,
    up: Linear<B>,
    down: Linear<B>,
    /// Which of the step's plans is its own.
    plan: usize,
}

/// What all layers of a step share.
struct Step<'a, B: Backend> {
    config: &'a ModelConfig,
    rope: &'a B::Rope,
    kv: &'a mut B::Kv,
    loaded: &'a mut B::Step,
}

impl<B: Backend> Decoder<B> {
    /// Reads the weights by memory map. All tensors are checked against config.json before the first is packed.
    pub fn load(backend: &mut B, folder: &ModelFolder) -> Result<Self> {
        let layout = Layout::of(&folder.config);
        let checkpoint = Checkpoint::open(&folder.path)?;
        checkpoint.verify(&layout)?;
        let dtype = checkpoint.dtype(&layout)?;
        Self::build(backend, folder.config.clone(), dtype, &layout, &Source::Checkpoint { checkpoint, dtype })
    }

    /// Weights drawn from `seed`, all of `dtype`.
    pub fn random(backend: &mut B, config: ModelConfig, dtype: Dtype, seed: u64) -> Result<Self> {
        let layout = Layout::of(&config);
        Self::build(backend, config, dtype, &layout, &Source::Random(RandomWeights { dtype, seed }))
    }

    fn build(backend: &mut B, config: ModelConfig, dtype: Dtype, layout: &Layout, source: &Source) -> Result<Self> {
        let kinds = config.window_kinds();
        let plan_of = |layer: usize| kinds.iter().position(|kind| *kind == config.windows[layer]);
        let layers = layout.layers.iter().enumerate().map(|(ix, spec)| {
            let plan = plan_of(ix).expect("window_kinds lists the window of every layer");
            Layer::load(backend, source, spec, config.norm.eps(), plan)
        });
        let layers = layers.collect::<Result<_>>()?;
        let rotary = Rotary::new(&config.rope);
        Ok(Self {
            embed: source.matrix(backend, std::slice::from_ref(&layout.embed))?,
            layers,
            final_norm: Norm::load(backend, source, &layout.final_norm, config.norm.eps())?,
            head: layout.head.as_ref().map(|spec| source.matrix(backend, std::slice::from_ref(spec))).transpose()?,
            head_bias: layout
                .head_bias
                .as_ref()
                .map(|spec| source.vector(backend, std::slice::from_ref(spec)))
                .transpose()?,
            rope: backend.rope_table(rotary.table())?,
            rope_is_current: true,
            rotary,
            last_position: 0,
            kv_element_bytes: backend.kv_element_bytes(config.heads, dtype),
            hints: kinds.iter().map(|&window| plan_hints(backend, &config, dtype, window)).collect(),
            activations: Activations::new(backend, &config, dtype)?,
            config,
            dtype,
        })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Of the matrices, and of keys and values, unless they are kept as fp8.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// One per window kind of the layers (full attention: one). `forward` wants a plan for each, in this order.
    pub fn plan_hints(&self) -> &[PlanHints] {
        &self.hints
    }

    pub fn kv_shape(&self, pages: usize) -> KvShape {
        KvShape { layers: self.config.layers, heads: self.config.heads, dtype: self.dtype, pages }
    }

    /// From now on this model's results for a row depend on that row alone, to the last bit, on the backend that it was loaded
    /// with. Steps made before are of no use then.
    pub fn be_deterministic(&mut self, backend: &mut B) {
        backend.be_deterministic();
        for hints in &mut self.hints {
            *hints = PlanHints { tile: backend.tile(), cost: backend.cost_model(), ..*hints };
        }
    }

    pub fn parameters(&self) -> usize {
        self.config.parameters()
    }

    pub fn weight_bytes(&self) -> usize {
        self.config.weight_bytes(self.dtype)
    }

    pub fn kv_bytes_per_token(&self) -> usize {
        self.config.kv_bytes_per_token(self.kv_element_bytes)
    }

    /// A step for `forward` to load.
    pub fn step(&self, backend: &mut B) -> Result<B::Step> {
        backend.step(self.config.heads, self.dtype, self.config.vocab)
    }

    /// Makes room for steps up to this shape: their activations, logits and lists.
    pub fn reserve(&mut self, backend: &mut B, step: &mut B::Step, shape: StepShape) -> Result<()> {
        let shape = backend.reserve(step, shape)?;
        self.activations.resize(backend, shape)
    }

    /// Loads `batch` and enqueues it: its logits are in the buffer returned (`[batch.wanted.len(), vocab]`, as soon as it is
    /// read), its draws can be collected, and the keys and values of all rows are in `kv` for whatever is enqueued after it.
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

    /// The same, enqueued op by op; `observe` is called in each layer once its attention is enqueued, and may enqueue ops that
    /// read the same.
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
        coins: &[f64],
        turns: &[PageTurn],
    ) -> Result<&B::Buffer> {
        self.last_position += 1;
        let shape = backend.advance(step, coins, turns)?;
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

    /// For a loaded step of this shape: its activations, and the rope table up to its last position.
    fn make_room(&mut self, backend: &mut B, shape: StepShape) -> Result<()> {
        self.rope_is_current &= !self.rotary.cover(self.last_position as usize + 1);
        if !self.rope_is_current {
            self.rope = backend.rope_table(self.rotary.table())?;
            self.rope_is_current = true;
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
        let mut step = Step { config: &self.config, rope: &self.rope, kv, loaded };
        let last = self.layers.len() - 1;
        for (ix, layer) in self.layers.iter().enumerate() {
            layer.attend(backend, a, LayerIx::new(ix), &mut step, &mut observe);
            if ix < last {
                layer.transform(backend, &mut a.all);
            }
        }
        if shape.wanted == 0 {
            return;
        }
        // Behind the last attention, no row reads another: only those whose logits are wanted go on.
        a.select_wanted(backend, step.loaded);
        self.layers[last].transform(backend, &mut a.wanted);
        self.final_norm.apply(backend, &mut a.wanted.normed, &a.wanted.residual);
        let head = self.head.as_ref().unwrap_or(&self.embed);
        backend.linear(&mut a.logits, &a.wanted.normed, head, self.head_bias.as_ref());
        if shape.draws {
            backend.sample(&a.logits, step.loaded);
        }
    }

    /// What a backend would panic on. Tokens and lengths come from callers' input, the rest from our own engine.
    fn check(&self, batch: &StepBatch) -> Result<()> {
        let rows = batch.tokens.len();
        let known = batch.tokens.iter().filter_map(|token| match token {
            RowToken::Known(token) => Some(token),
            RowToken::Drawn(_) => None,
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
            && batch.wanted.is_sorted()
            && batch.wanted.last().is_none_or(|&row| (row as usize) < rows)
            && (batch.requests.is_empty() || batch.requests.len() == batch.wanted.len())
            && batch.plans.len() == self.hints.len()
            && batch.plans.iter().zip(&self.hints).all(|(plan, hints)| plan.window == hints.window)
            && batch.plans.iter().all(|plan| plan.row_positions == batch.positions);
        if fits { Ok(()) } else { Err(Error::Internal("a step's rows and plans do not fit each other".to_owned())) }
    }
}

fn plan_hints<B: Backend>(backend: &B, config: &ModelConfig, dtype: Dtype, window: Option<u32>) -> PlanHints {
    let small = |size: usize| u32::try_from(size).expect("config bounds heads far below 2^32");
    PlanHints {
        tile: backend.tile(),
        window,
        q_heads: small(config.heads.q_heads),
        kv_heads: small(config.heads.kv_heads),
        head_dim: small(config.heads.head_dim),
        kv_element_bytes: small(backend.kv_element_bytes(config.heads, dtype)),
        cost: backend.cost_model(),
    }
}

impl<B: Backend> Layer<B> {
    fn load(backend: &mut B, source: &Source, spec: &LayerSpec, eps: f32, plan: usize) -> Result<Self> {
        let head_norms = match &spec.head_norms {
            Some([query, key]) => Some([
                source.vector(backend, std::slice::from_ref(query))?,
                source.vector(backend, std::slice::from_ref(key))?,
            ]),
            None => None,
        };
        Ok(Self {
            attention_norm: Norm::load(backend, source, &spec.attention_norm, eps)?,
            qkv: Linear::load(backend, source, &spec.qkv)?,
            head_norms,
            out: Linear::load(backend, source, &spec.out)?,
            mlp_norm: spec.mlp_norm.as_ref().map(|norm| Norm::load(backend, source, norm, eps)).transpose()?,
            up: Linear::load(backend, source, &spec.up)?,
            down: Linear::load(backend, source, &spec.down)?,
            plan,
        })
    }

    /// `attended = attention(qkv(norm(residual)))`; the new keys and values are stored on the way, and `observe` is told what
    /// attention read.
    fn attend(
        &self,
        backend: &mut B,
        a: &mut Activations<B>,
        ix: LayerIx,
        step: &mut Step<'_, B>,
        observe: &mut impl FnMut(&mut B, Attended<'_, B>),
    ) {
        let heads = step.config.heads;
        self.attention_norm.apply(backend, &mut a.all.normed, &a.all.residual);
        self.qkv.apply(backend, &mut a.qkv, &a.all.normed);
        if let Some([query, key]) = &self.head_norms {
            let eps = step.config.norm.eps();
            backend.head_norm(&mut a.qkv, heads, HeadKind::Query, query, eps);
            backend.head_norm(&mut a.qkv, heads, HeadKind::Key, key, eps);
        }
        backend.rope(&mut a.qkv, heads, step.rope, step.loaded);
        backend.kv_append(step.kv, ix, &a.qkv, step.loaded);
        let scale = 1.0 / (heads.head_dim as f32).sqrt();
        backend.tree_attention(&mut a.all.attended, &a.qkv, step.kv, ix, step.loaded, self.plan, scale);
        observe(backend, Attended { layer: ix, qkv: &a.qkv, kv: step.kv, plan: self.plan, scale });
    }

    /// `residual += out(attended)`, then `residual += mlp(norm(residual))`; without a norm of its own, the feed-forward part
    /// reads what attention read.
    fn transform(&self, backend: &mut B, s: &mut Stream<B>) {
        self.out.add_to(backend, &mut s.residual, &s.attended);
        if let Some(norm) = &self.mlp_norm {
            norm.apply(backend, &mut s.normed, &s.residual);
        }
        self.up.apply(backend, &mut s.up, &s.normed);
        match &mut s.gated {
            Some(gated) => {
                backend.gated_silu(gated, &s.up);
                self.down.add_to(backend, &mut s.residual, gated);
            }
            None => {
                backend.gelu(&mut s.up);
                self.down.add_to(backend, &mut s.residual, &s.up);
            }
        }
    }
}
