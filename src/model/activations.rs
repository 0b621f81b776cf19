//! Every activation of a step, once. Buffers are resized to the step's rows and keep their memory, so that a steady
//! state allocates nothing. Layers of one width share a buffer; each other width has one of its own.

use crate::backend::{ActivationDtype, Backend, Dtype, HeadLayout, StepShape};
use crate::error::Result;

use super::config::{Activation, FeedForward, LayerSpec, ModelConfig, kinds};

pub struct Activations<B: Backend> {
    /// Of all rows of the step.
    pub all: Stream<B>,
    /// `[rows, qkv width]`, one for each kind of heads.
    pub qkv: Vec<B::Buffer>,
    /// Of the rows whose logits are wanted, behind the last attention.
    pub logit_rows: Stream<B>,
    /// `[wanted rows, vocab]`
    pub logits: B::Buffer,
}

/// What runs through the layers, for `R` rows.
pub struct Stream<B: Backend> {
    /// `[R, hidden]`
    pub residual: B::Buffer,
    /// `[R, hidden]`: input of the next linear layer.
    pub normed: B::Buffer,
    /// `[R, q width]`, one for each kind of heads.
    pub attended: Vec<B::Buffer>,
    /// One for each kind of feed-forward part.
    pub inner: Vec<Inner<B>>,
}

/// Inside one kind of feed-forward part.
pub struct Inner<B: Backend> {
    /// `[R, 2 * width]`, gate beside up; `[R, width]` where nothing is gated.
    pub up: B::Buffer,
    /// `[R, width]`; absent where the activation works in place.
    pub gated: Option<B::Buffer>,
}

/// Which of the buffers a layer uses.
#[derive(Clone, Copy)]
pub struct Places {
    pub heads: usize,
    pub inner: usize,
}

impl Places {
    /// Of each layer.
    pub fn of(config: &ModelConfig) -> Vec<Places> {
        let (heads, inner) = (head_kinds(config), inner_kinds(config));
        let of_layer = |layer: &LayerSpec| Places {
            heads: position(&heads, &layer.attention.heads),
            inner: position(&inner, &layer.feed_forward),
        };
        config.layers.iter().map(of_layer).collect()
    }
}

fn position<T: PartialEq>(kinds: &[T], kind: &T) -> usize {
    kinds.iter().position(|other| other == kind).expect("the kinds are those of all layers")
}

fn head_kinds(config: &ModelConfig) -> Vec<HeadLayout> {
    kinds(config.heads())
}

fn inner_kinds(config: &ModelConfig) -> Vec<FeedForward> {
    kinds(config.layers.iter().map(|layer| layer.feed_forward))
}

impl<B: Backend> Activations<B> {
    pub fn new(backend: &mut B, config: &ModelConfig, dtype: Dtype) -> Result<Self> {
        let heads = head_kinds(config);
        let qkv = |heads: &HeadLayout| backend.buffer(heads.qkv_width(), ActivationDtype::Operands(dtype));
        Ok(Self {
            qkv: heads.iter().map(qkv).collect::<Result<_>>()?,
            all: Stream::new(backend, config, dtype)?,
            logit_rows: Stream::new(backend, config, dtype)?,
            logits: backend.buffer(config.vocab, ActivationDtype::Sums)?,
        })
    }

    pub fn resize(&mut self, backend: &mut B, shape: StepShape) -> Result<()> {
        self.all.resize(backend, shape.rows)?;
        self.qkv.iter_mut().try_for_each(|qkv| backend.resize(qkv, shape.rows))?;
        self.logit_rows.resize(backend, shape.logit_rows)?;
        backend.resize(&mut self.logits, shape.logit_rows)
    }

    /// Copies what the rest of a layer behind its attention, over these heads, reads.
    pub fn select_wanted(&mut self, backend: &mut B, heads: usize, step: &B::Step) {
        let (all, logit_rows) = (&self.all, &mut self.logit_rows);
        backend.select_rows(&mut logit_rows.residual, &all.residual, step);
        backend.select_rows(&mut logit_rows.normed, &all.normed, step);
        backend.select_rows(&mut logit_rows.attended[heads], &all.attended[heads], step);
    }
}

impl<B: Backend> Stream<B> {
    fn new(backend: &mut B, config: &ModelConfig, dtype: Dtype) -> Result<Self> {
        let residual = backend.buffer(config.hidden, ActivationDtype::Sums)?;
        let normed = backend.buffer(config.hidden, ActivationDtype::Operands(dtype))?;
        let attended = |heads: &HeadLayout| backend.buffer(heads.q_width(), ActivationDtype::Operands(dtype));
        let attended = head_kinds(config).iter().map(attended).collect::<Result<_>>()?;
        let inner = inner_kinds(config).into_iter().map(|kind| Inner::new(backend, kind, dtype));
        Ok(Self { residual, normed, attended, inner: inner.collect::<Result<_>>()? })
    }

    fn resize(&mut self, backend: &mut B, rows: usize) -> Result<()> {
        let inner = self.inner.iter_mut().flat_map(|inner| std::iter::once(&mut inner.up).chain(&mut inner.gated));
        let buffers = [&mut self.residual, &mut self.normed].into_iter().chain(&mut self.attended);
        buffers.chain(inner).try_for_each(|buffer| backend.resize(buffer, rows))
    }
}

impl<B: Backend> Inner<B> {
    fn new(backend: &mut B, kind: FeedForward, dtype: Dtype) -> Result<Self> {
        let FeedForward::Dense { activation, width, .. } = kind;
        let mut empty = |width| backend.buffer(width, ActivationDtype::Operands(dtype));
        Ok(match activation {
            Activation::GatedSilu => Self { up: empty(2 * width)?, gated: Some(empty(width)?) },
            Activation::Gelu => Self { up: empty(width)?, gated: None },
        })
    }
}
