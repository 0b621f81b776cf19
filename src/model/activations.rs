//! Every activation of a step, once. Buffers are resized to the step's rows and keep their memory, so that a steady state
//! allocates nothing.

use crate::backend::Backend;
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
    pub fn new(backend: &mut B, config: &ModelConfig) -> Result<Self> {
        Ok(Self {
            all: Stream::new(backend, config)?,
            qkv: backend.buffer(0, config.heads.qkv_width())?,
            wanted: Stream::new(backend, config)?,
            logits: backend.buffer(0, config.vocab)?,
        })
    }

    pub fn resize(&mut self, backend: &mut B, rows: usize, wanted: usize) -> Result<()> {
        self.all.resize(backend, rows)?;
        backend.resize(&mut self.qkv, rows)?;
        self.wanted.resize(backend, wanted)?;
        backend.resize(&mut self.logits, wanted)
    }

    /// Copies what the rest of a layer behind its attention reads.
    pub fn select_wanted(&mut self, backend: &mut B, rows: &[u32]) {
        let (all, wanted) = (&self.all, &mut self.wanted);
        backend.select_rows(&mut wanted.residual, &all.residual, rows);
        backend.select_rows(&mut wanted.normed, &all.normed, rows);
        backend.select_rows(&mut wanted.attended, &all.attended, rows);
    }
}

impl<B: Backend> Stream<B> {
    fn new(backend: &mut B, config: &ModelConfig) -> Result<Self> {
        let mut empty = |width| backend.buffer(0, width);
        let (up, gated) = match config.mlp {
            Mlp::GatedSilu => (2 * config.intermediate, Some(empty(config.intermediate)?)),
            Mlp::Gelu => (config.intermediate, None),
        };
        Ok(Self {
            residual: empty(config.hidden)?,
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
