//! The weights that an engine computes with, as its clients see them: which version is in force, an update to others,
//! and which version each token was sampled or scored under. How an engine changes them between two steps is defined in
//! `updates`; what of a model changes, in `offshoot_model`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use offshoot_core::ids::WeightVersion;
use offshoot_model::{TensorSource, UpdateScope};

/// The weights in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Rises by one with each update.
    pub version: WeightVersion,
    /// For people and programs outside: the version as a number unless something else is said.
    pub label: String,
    /// Identifies the weights among all that there are, as [`PrefixStoreOptions::weights`] does; `None`: nothing does,
    /// and what is computed with them is kept in no prefix store.
    ///
    /// [`PrefixStoreOptions::weights`]: crate::PrefixStoreOptions::weights
    pub identity: Option<String>,
}

impl Weights {
    /// Those that an engine is started with.
    pub(crate) fn first(identity: Option<String>) -> Self {
        Weights { version: WeightVersion::FIRST, label: WeightVersion::FIRST.to_string(), identity }
    }

    /// Those in force after `update`.
    pub(crate) fn after(&self, update: &WeightsUpdate) -> Self {
        let version = self.version.next();
        let label = update.label.clone().unwrap_or_else(|| version.to_string());
        // Beside the tensors that have changed there are others, which nothing identifies.
        let identity = update.identity.clone().filter(|_| update.scope == UpdateScope::Whole);
        Weights { version, label, identity }
    }
}

/// New weights for an engine.
#[derive(Clone)]
pub struct WeightsUpdate {
    /// The tensors.
    pub source: Arc<dyn TensorSource>,
    /// Whether they are all tensors of the model or only those that have changed.
    pub scope: UpdateScope,
    /// As [`Weights::label`]; `None`: the new version as a number.
    pub label: Option<String>,
    /// As [`Weights::identity`]: for a folder what a launch from it would say. Of no use where only some have changed.
    pub identity: Option<String>,
}

impl WeightsUpdate {
    /// An update to these tensors without a label and an identity.
    pub fn new(source: Arc<dyn TensorSource>, scope: UpdateScope) -> Self {
        WeightsUpdate { source, scope, label: None, identity: None }
    }
}

/// The weights that the tokens from number `from` on were sampled or scored under, up to the next span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightSpan {
    /// The version of these weights.
    pub version: WeightVersion,
    /// Number of the first of these tokens among those of the extend.
    pub from: usize,
}

/// Notes that the token with number `at`, after all noted before, was sampled or scored under `version`.
pub(crate) fn note_weights(spans: &mut Vec<WeightSpan>, version: WeightVersion, at: usize) {
    if spans.last().is_none_or(|last| last.version != version) {
        spans.push(WeightSpan { version, from: at });
    }
}
