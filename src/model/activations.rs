//! The activation buffers of a step. They are resized to the step's rows and keep their memory, so that steady decoding
//! allocates nothing. Layers share one buffer per distinct width.

use crate::backend::{ActivationDtype, Backend, Dtype, HeadLayout, StepShape};
use crate::error::Result;

use super::config::{Activation, FeedForward, LayerSpec, ModelConfig, kind_index, kinds};

/// All activation buffers of a decoder.
pub struct Activations<B: Backend> {
    /// For all rows of the step.
    pub all: StreamBuffers<B>,
    /// `[rows, qkv width]`, one for each kind of heads.
    pub qkv: Vec<B::Buffer>,
    /// For the rows whose logits are computed, after the last attention.
    pub logit_rows: StreamBuffers<B>,
    /// `[logit rows, vocab]`
    pub logits: B::Buffer,
}

/// The residual stream of `R` rows, and the buffers of the blocks that read and write it.
pub struct StreamBuffers<B: Backend> {
    /// `[R, hidden]`
    pub residual: B::Buffer,
    /// `[R, hidden]`: input of the next linear layer.
    pub normed: B::Buffer,
    /// `[R, q width]`, one for each kind of heads.
    pub attended: Vec<B::Buffer>,
    /// One for each kind of feed-forward block.
    pub inner: Vec<InnerBuffers<B>>,
}

/// The buffers inside a feed-forward block.
pub struct InnerBuffers<B: Backend> {
    /// Gated: `[R, 2 * width]`, gate and up side by side. Else `[R, width]`.
    pub up: B::Buffer,
    /// `[R, width]`; `None` if the activation works in place.
    pub gated: Option<B::Buffer>,
}

/// Indices of the buffers that a layer uses.
#[derive(Clone, Copy)]
pub struct BufferIndices {
    /// Of `Activations::qkv` and `StreamBuffers::attended`.
    pub heads: usize,
    /// Of `StreamBuffers::inner`.
    pub inner: usize,
}

impl BufferIndices {
    /// Those of each layer.
    pub fn of(config: &ModelConfig) -> Vec<BufferIndices> {
        let (heads, inner) = (head_kinds(config), inner_kinds(config));
        let of_layer = |layer: &LayerSpec| BufferIndices {
            heads: kind_index(&heads, &layer.attention.heads),
            inner: kind_index(&inner, &layer.feed_forward),
        };
        config.layers.iter().map(of_layer).collect()
    }
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
            all: StreamBuffers::new(backend, config, dtype)?,
            logit_rows: StreamBuffers::new(backend, config, dtype)?,
            logits: backend.buffer(config.vocab, ActivationDtype::Sums)?,
        })
    }

    pub fn resize(&mut self, backend: &mut B, shape: StepShape) -> Result<()> {
        self.all.resize(backend, shape.rows)?;
        self.qkv.iter_mut().try_for_each(|qkv| backend.resize(qkv, shape.rows))?;
        self.logit_rows.resize(backend, shape.logit_rows)?;
        backend.resize(&mut self.logits, shape.logit_rows)
    }

    /// Copies the rows whose logits are computed, as far as the rest of a layer after its attention reads them.
    /// `heads`: the layer's `BufferIndices::heads`.
    pub fn select_logit_rows(&mut self, backend: &mut B, heads: usize, step: &B::Step) {
        let (all, logit_rows) = (&self.all, &mut self.logit_rows);
        backend.select_rows(&mut logit_rows.residual, &all.residual, step);
        backend.select_rows(&mut logit_rows.normed, &all.normed, step);
        backend.select_rows(&mut logit_rows.attended[heads], &all.attended[heads], step);
    }
}

impl<B: Backend> StreamBuffers<B> {
    fn new(backend: &mut B, config: &ModelConfig, dtype: Dtype) -> Result<Self> {
        let residual = backend.buffer(config.hidden, ActivationDtype::Sums)?;
        let normed = backend.buffer(config.hidden, ActivationDtype::Operands(dtype))?;
        let attended = |heads: &HeadLayout| backend.buffer(heads.q_width(), ActivationDtype::Operands(dtype));
        let attended = head_kinds(config).iter().map(attended).collect::<Result<_>>()?;
        let inner = inner_kinds(config).into_iter().map(|kind| InnerBuffers::new(backend, kind, dtype));
        Ok(Self { residual, normed, attended, inner: inner.collect::<Result<_>>()? })
    }

    fn resize(&mut self, backend: &mut B, rows: usize) -> Result<()> {
        let inner = self.inner.iter_mut().flat_map(|inner| std::iter::once(&mut inner.up).chain(&mut inner.gated));
        let buffers = [&mut self.residual, &mut self.normed].into_iter().chain(&mut self.attended);
        buffers.chain(inner).try_for_each(|buffer| backend.resize(buffer, rows))
    }
}

impl<B: Backend> InnerBuffers<B> {
    fn new(backend: &mut B, kind: FeedForward, dtype: Dtype) -> Result<Self> {
        let FeedForward::Dense { activation, width, .. } = kind;
        let mut empty = |width| backend.buffer(width, ActivationDtype::Operands(dtype));
        Ok(match activation {
            Activation::GatedSilu => Self { up: empty(2 * width)?, gated: Some(empty(width)?) },
            Activation::Gelu => Self { up: empty(width)?, gated: None },
        })
    }
}
