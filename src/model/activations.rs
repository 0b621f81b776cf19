//! Every activation of a step, once. Buffers are resized to the step's rows and keep their memory, so that a steady state
//! allocates nothing.

use crate::backend::Backend;
use crate::error::Result;

use super::config::{Mlp, ModelConfig};

/// `R` rows in the step, `W` rows whose logits are wanted.
pub struct Activations<B: Backend> {
    /// `[R, hidden]`
    pub residual: B::Buffer,
    /// `[R, hidden]`: input of the next linear layer.
    pub normed: B::Buffer,
    /// `[R, qkv width]`
    pub qkv: B::Buffer,
    /// `[R, q width]`
    pub attended: B::Buffer,
    /// `[R, 2 * intermediate]`, gate beside up; `[R, intermediate]` where nothing is gated.
    pub up: B::Buffer,
    /// `[R, intermediate]`; absent where the activation works in place.
    pub gated: Option<B::Buffer>,
    /// `[W, hidden]`
    pub last: B::Buffer,
    /// `[W, hidden]`
    pub last_normed: B::Buffer,
    /// `[W, vocab]`
    pub logits: B::Buffer,
}

impl<B: Backend> Activations<B> {
    pub fn new(backend: &mut B, config: &ModelConfig) -> Result<Self> {
        let mut empty = |width| backend.buffer(0, width);
        let (up, gated) = match config.mlp {
            Mlp::GatedSilu => (2 * config.intermediate, Some(empty(config.intermediate)?)),
            Mlp::Gelu => (config.intermediate, None),
        };
        Ok(Self {
            residual: empty(config.hidden)?,
            normed: empty(config.hidden)?,
            qkv: empty(config.heads.qkv_width())?,
            attended: empty(config.heads.q_width())?,
            up: empty(up)?,
            gated,
            last: empty(config.hidden)?,
            last_normed: empty(config.hidden)?,
            logits: empty(config.vocab)?,
        })
    }

    pub fn resize(&mut self, backend: &mut B, rows: usize, wanted: usize) -> Result<()> {
        let by_row = [&mut self.residual, &mut self.normed, &mut self.qkv, &mut self.attended, &mut self.up];
        for buffer in by_row.into_iter().chain(&mut self.gated) {
            backend.resize(buffer, rows)?;
        }
        for buffer in [&mut self.last, &mut self.last_normed, &mut self.logits] {
            backend.resize(buffer, wanted)?;
        }
        Ok(())
    }
}
