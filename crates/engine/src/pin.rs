//! Prefixes that stay: a pin is a branch at rest whose pages are never given up. The prefix tree shares them with every
//! branch that begins with its tokens; `scheduler` counts them as taken.

use std::sync::Arc;

use crate::engine::Engine;
use crate::handle::{Command, EngineHandle};
use crate::place::RootOptions;
use crate::request::{Extend, SamplingParams, Stop};
use crate::uniforms::UniformKey;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_kv::Usage;

/// A prefix whose keys and values stay on the device until the last clone is dropped. It keeps its engine alive.
#[derive(Clone)]
pub struct PinnedPrefix(Arc<Pin>);

struct Pin {
    engine: EngineHandle,
    branch: BranchId,
    tokens: usize,
}

impl PinnedPrefix {
    /// Length of the prefix.
    pub fn tokens(&self) -> usize {
        self.0.tokens
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.engine.release(&[self.branch]);
    }
}

impl EngineHandle {
    /// Computes a prefix, unless it is cached, and pins it. Waits until that is done; samples one token, which is
    /// discarded. Pinned pages are taken for all others: a branch that does not fit beside them fails.
    ///
    /// Fails if the prefix leaves no room in the model's context or in the pool.
    pub fn pin(&self, tokens: Vec<TokenId>) -> Result<PinnedPrefix> {
        let (len, context) = (tokens.len(), self.facts().context);
        if len >= context {
            let what = "a pinned prefix with one more token".to_owned();
            return Err(Error::ContextTooLong { what, tokens: len + 1, context });
        }
        let branch = self.root_with(tokens, RootOptions::default())?;
        let pin = Pin { engine: self.clone(), branch, tokens: len };
        self.send(Command::Pin { branch })?;
        let stop = Stop { ignore_eos: true, ..Stop::max_tokens(1) };
        let extend = Extend::sampled(branch, &SamplingParams::greedy(), &stop, UniformKey::root(0, "pin"));
        self.finish(vec![extend])?;
        // Answered in a later turn than the one that pinned: who reads `live` next sees what that one published.
        self.metrics()?;
        Ok(PinnedPrefix(Arc::new(pin)))
    }
}

impl Engine {
    /// Counts the pages of all pins, and has them stored, if pins came or went.
    pub(super) fn count_pins(&mut self) {
        if !std::mem::take(&mut self.scheduler.pins_changed) {
            return;
        }
        let mut usage = Usage::default();
        for segment in self.scheduler.pins().filter_map(|id| self.branches.get(&id)?.kept()) {
            self.cache.prefix.add_path(&mut usage, segment);
        }
        self.cache.pinned_pages = usage.pages();
        self.note_pins();
    }
}
