//! The weights that an engine computes with, as its clients see them: which version is in force, an update to others,
//! and which versions, of weights and adapters, each token was sampled or scored under. How an engine changes them
//! between two steps is defined in `updates`; what of a model changes, in `offshoot_model`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use offshoot_core::error::Result;
use offshoot_core::ids::{AdapterVersion, WeightVersion};
use offshoot_model::{CheckedUpdate, TensorSource, UpdateScope, WeightForm};

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
    pub(crate) fn after(&self, update: &CheckedWeights) -> Self {
        let version = self.version.next();
        let label = update.label.clone().unwrap_or_else(|| version.to_string());
        Weights { version, label, identity: update.identity.clone() }
    }
}

/// Labels that are remembered: those of the latest versions.
const MOST_LABELS: usize = 4096;

/// What versions of an engine's weights are called: an answer may name weights that are in force no more. A label is
/// known before the first token of its version is sampled.
#[derive(Debug, Default)]
pub struct WeightLabels(Mutex<BTreeMap<WeightVersion, String>>);

impl WeightLabels {
    /// Calls a version so from now on.
    pub fn set(&self, version: WeightVersion, label: &str) {
        let mut labels = self.lock();
        match label == version.to_string() {
            true => drop(labels.remove(&version)),
            false => drop(labels.insert(version, label.to_owned())),
        }
        while labels.len() > MOST_LABELS {
            labels.pop_first();
        }
    }

    /// What a version is called: its number unless something else was said.
    pub fn label(&self, version: WeightVersion) -> String {
        self.lock().get(&version).cloned().unwrap_or_else(|| version.to_string())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WeightVersion, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// As [`Weights::identity`]. Of no use where only some have changed.
    pub identity: Option<String>,
}

impl WeightsUpdate {
    /// An update to these tensors without a label and an identity.
    pub fn new(source: Arc<dyn TensorSource>, scope: UpdateScope) -> Self {
        WeightsUpdate { source, scope, label: None, identity: None }
    }
}

/// New weights that were checked, for all engines behind a handle.
#[derive(Clone)]
pub(crate) struct CheckedWeights {
    /// `None`: for scripted engines, which have no model.
    pub tensors: Option<Arc<CheckedUpdate<'static>>>,
    label: Option<String>,
    identity: Option<String>,
}

impl CheckedWeights {
    /// Checks `update` by the form of the loaded weights; scripted engines have none.
    pub fn of(update: WeightsUpdate, form: Option<&WeightForm>) -> Result<Self> {
        let WeightsUpdate { source, scope, label, identity } = update;
        let tensors = form.map(|form| form.check_shared(source, scope)).transpose()?.map(Arc::new);
        // Beside tensors that have changed there are others, which nothing identifies.
        let is_whole = tensors.as_ref().is_none_or(|tensors| tensors.is_whole());
        Ok(CheckedWeights { tensors, label, identity: identity.filter(|_| is_whole) })
    }
}

/// The version that the tokens from number `from` on were sampled or scored under, up to the next span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSpan<V> {
    /// The version.
    pub version: V,
    /// Number of the first of these tokens among those of the extend.
    pub from: usize,
}

/// The weights that tokens were sampled or scored under.
pub type WeightSpan = VersionSpan<WeightVersion>;

/// The adapter that tokens were sampled or scored under.
pub type AdapterSpan = VersionSpan<AdapterVersion>;

/// The version that token number `at` was sampled or scored under; `None`: no span has it.
pub fn version_of_token<V: Copy>(spans: &[VersionSpan<V>], at: usize) -> Option<V> {
    spans.iter().rev().find(|span| span.from <= at).map(|span| span.version)
}

/// Takes the spans of all but the first `tokens` tokens, as those of an extend of their own.
pub fn split_versions<V: Copy>(spans: &mut Vec<VersionSpan<V>>, tokens: usize) -> Vec<VersionSpan<V>> {
    let goes_on = version_of_token(spans, tokens).map(|version| VersionSpan { version, from: 0 });
    let later = spans.iter().filter(|span| span.from > tokens);
    let later = later.map(|span| VersionSpan { from: span.from - tokens, ..*span });
    let rest = goes_on.into_iter().chain(later).collect();
    spans.retain(|span| span.from < tokens);
    rest
}

/// Appends the spans of a later extend, whose tokens follow the first `tokens` ones.
pub(crate) fn append_versions<V: Copy + Eq>(spans: &mut Vec<VersionSpan<V>>, tokens: usize, later: &[VersionSpan<V>]) {
    later.iter().for_each(|span| note_version(spans, span.version, tokens + span.from));
}

/// Notes that the token with number `at`, after all noted before, was sampled or scored under `version`.
pub(crate) fn note_version<V: Copy + Eq>(spans: &mut Vec<VersionSpan<V>>, version: V, at: usize) {
    if spans.last().is_none_or(|last| last.version != version) {
        spans.push(VersionSpan { version, from: at });
    }
}

/// What a token is sampled or scored under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub weights: WeightVersion,
    pub adapter: Option<AdapterVersion>,
}

impl Versions {
    /// Notes that the token with number `at`, after all noted before, was sampled or scored under these.
    pub fn note(self, weights: &mut Vec<WeightSpan>, adapters: &mut Vec<AdapterSpan>, at: usize) {
        note_version(weights, self.weights, at);
        if let Some(adapter) = self.adapter {
            note_version(adapters, adapter, at);
        }
    }

    /// Those of token number `at`; `None`: no span has it.
    pub fn of_token(weights: &[WeightSpan], adapters: &[AdapterSpan], at: usize) -> Option<Self> {
        let adapter = version_of_token(adapters, at);
        version_of_token(weights, at).map(|weights| Versions { weights, adapter })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_labels_are_remembered() {
        let labels = WeightLabels::default();
        for version in 0..=MOST_LABELS as u64 {
            labels.set(WeightVersion(version), "x");
        }
        assert_eq!((labels.label(WeightVersion(0)), labels.label(WeightVersion(1))), ("0".to_owned(), "x".to_owned()));
        labels.set(WeightVersion(1), "1");
        assert_eq!(labels.label(WeightVersion(1)), "1");
    }
}
