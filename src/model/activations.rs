//! Every activation of a step, once. Buffers are resized to the step's rows and keep their memory, so that a steady state
//! allocates nothing.

use crate::backend::{Backend, Dtype, Holds, StepShape};
use crate::error::Result;

use super::config::{Mlp, ModelConfig};

pub struct Activations<B: Backend> {
    /// Of all rows of the step.
    pub all: Stream<B>,
    /// `[rows, qkv width]`
    pub qkv: B::Buffer,
    /// Of the rows whose logits are wanted, behind the last attention.
    pub wanted: Stream<B>,
    /// `[wanted rows, vocab]`
    pub logits: B::Buffer,
}

/// What runs through the layers, for `R` rows.
pub struct Stream<B: Backend> {
    /// `[R, hidden]`
    pub residual: B::Buffer,
    /// `[R, hidden]`: input of the next linear layer.
    pub normed: B::Buffer,
    /// `[R, q width]`
    pub attended: B::Buffer,
    /// `[R, 2 * intermediate]`, gate beside up; `[R, intermediate]` where nothing is gated.
    pub up: B::Buffer,
    /// `[R, intermediate]`; absent where the activation works in place.
    pub gated: Option<B::Buffer>,
}

impl<B: Backend> Activations<B> {
    pub fn new(backend: &mut B, config: &ModelConfig, dtype: Dtype) -> Result<Self> {
        Ok(Self {
            all: Stream::new(backend, config, dtype)?,
            qkv: backend.buffer(config.heads.qkv_width(), Holds::Operands(dtype))?,
            wanted: Stream::new(backend, config, dtype)?,
            logits: backend.buffer(config.vocab, Holds::Sums)?,
        })
    }

    pub fn resize(&mut self, backend: &mut B, shape: StepShape) -> Result<()> {
        self.all.resize(backend, shape.rows)?;
        backend.resize(&mut self.qkv, shape.rows)?;
        self.wanted.resize(backend, shape.wanted)?;
        backend.resize(&mut self.logits, shape.wanted)
    }

    /// Copies what the rest of a layer behind its attention reads.
    pub fn select_wanted(&mut self, backend: &mut B, step: &B::Step) {
        let (all, wanted) = (&self.all, &mut self.wanted);
        backend.select_rows(&mut wanted.residual, &all.residual, step);
        backend.select_rows(&mut wanted.normed, &all.normed, step);
        backend.select_rows(&mut wanted.attended, &all.attended, step);
    }
}

impl<B: Backend> Stream<B> {
    fn new(backend: &mut B, config: &ModelConfig, dtype: Dtype) -> Result<Self> {
        let residual = backend.buffer(config.hidden, Holds::Sums)?;
        let mut empty = |width| backend.buffer(width, Holds::Operands(dtype));
        let (up, gated) = match config.mlp {
            Mlp::GatedSilu => (2 * config.intermediate, Some(empty(config.intermediate)?)),
            Mlp::Gelu => (config.intermediate, None),
        };
        Ok(Self {
            residual,
            normed: empty(config.hidden)?,
            attended: empty(config.heads.q_width())?,
            up: empty(up)?,
            gated,
        })
    }

    fn resize(&mut self, backend: &mut B, rows: usize) -> Result<()> {
        let buffers = [&mut self.residual, &mut self.normed, &mut self.attended, &mut self.up];
        buffers.into_iter().chain(&mut self.gated).try_for_each(|buffer| backend.resize(buffer, rows))
    }
}
