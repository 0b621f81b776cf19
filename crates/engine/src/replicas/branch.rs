//! What the router knows of a branch: enough to make it again elsewhere.

use std::borrow::Cow;

use crate::{Continuation, QueueKey, Said, TokenPath};
use offshoot_core::ids::{AdapterVersion, BranchId, TokenId};

use super::prefix::Prefix;

pub struct BranchRecord {
    pub place: QueueKey,
    /// Its tokens when it rested last; an engine's copy shares them.
    pub path: TokenPath,
    /// Its tokens when it was made, or made again.
    pub prefix: Prefix,
    pub home: Option<usize>,
    pub on: On,
    pub is_pin: bool,
    /// Whether `path` is all of it. An extend that fails does not say what it added.
    pub is_known: bool,
}

/// The engines that have a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// None: it can begin on any.
    Nowhere,
    Replica(usize),
    /// All: a pin.
    Everywhere,
}

impl BranchRecord {
    /// Its tokens, and those that this gives it, or has sampled for it already.
    pub fn prefix_with(&self, continuation: &Continuation, said: &Said) -> Prefix {
        let more: Cow<'_, [TokenId]> = match continuation {
            Continuation::Given { tokens, .. } => Cow::Borrowed(tokens),
            Continuation::Sampled { .. } => said.tokens.iter().map(|sampled| sampled.token).collect(),
        };
        match more.is_empty() {
            true => self.prefix.clone(),
            false => Prefix::of(&self.path, &more),
        }
    }

    /// Notes that an engine goes on with this adapter. An engine lets a version of an adapter make way for a newer one
    /// by itself; another one, which may have both, goes on with the newer one, too.
    pub fn note_adapter(&mut self, adapter: AdapterVersion) {
        if let Some(before) = self.path.adapter().filter(|&before| before < adapter) {
            self.path.replace_adapter(before, adapter);
        }
    }

    /// A branch of the same tokens, where this one is.
    pub fn fork(&mut self, branch: BranchId) -> Self {
        BranchRecord {
            place: QueueKey { branch, ..self.place },
            path: self.path.fork(),
            prefix: self.prefix.clone(),
            home: self.home,
            on: match self.on {
                On::Everywhere => On::Nowhere,
                on => on,
            },
            is_pin: false,
            is_known: self.is_known,
        }
    }
}
