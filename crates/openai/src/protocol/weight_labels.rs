//! What people and trainers call the versions of a model's weights, as answers name them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use offshoot_core::ids::WeightVersion;
use offshoot_engine::Finish;

/// Labels that are remembered: those of the latest versions.
const MOST_LABELS: usize = 4096;

/// The labels of versions that are called otherwise than by their number.
#[derive(Debug, Default)]
pub struct WeightLabels(Mutex<BTreeMap<WeightVersion, String>>);

/// Tokens of a choice that were sampled under the same weights, as vLLM writes it: those from `start` up to `end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabelledSpan {
    version: String,
    start: usize,
    end: usize,
}

/// The versions of the adapter under which the tokens of a sample were sampled, in order, by their numbers.
pub fn adapter_spans(finish: &Finish) -> Vec<LabelledSpan> {
    let ends = finish.adapters.iter().skip(1).map(|span| span.from).chain([finish.sampled()]);
    let spans = finish.adapters.iter().zip(ends);
    spans.map(|(span, end)| LabelledSpan { version: span.version.to_string(), start: span.from, end }).collect()
}

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

    /// What a version is called.
    pub fn label(&self, version: WeightVersion) -> String {
        self.lock().get(&version).cloned().unwrap_or_else(|| version.to_string())
    }

    /// The weights under which the tokens of a sample were sampled, in order.
    pub fn spans(&self, finish: &Finish) -> Vec<LabelledSpan> {
        let ends = finish.weights.iter().skip(1).map(|span| span.from).chain([finish.sampled()]);
        let spans = finish.weights.iter().zip(ends);
        spans.map(|(span, end)| LabelledSpan { version: self.label(span.version), start: span.from, end }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WeightVersion, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use offshoot_core::ids::{AdapterVersion, TokenId};
    use offshoot_engine::{AdapterSpan, FinishReason, WeightSpan};

    use super::*;

    #[test]
    fn versions_have_labels_and_tokens_versions() {
        let labels = WeightLabels::default();
        labels.set(WeightVersion(1), "step 7");
        labels.set(WeightVersion(2), "2");
        assert_eq!([0, 1, 2].map(|version| labels.label(WeightVersion(version))), ["0", "step 7", "2"]);
        let mut finish = Finish::empty(FinishReason::Length);
        assert!(labels.spans(&finish).is_empty());
        finish.tokens = vec![TokenId(5); 9];
        finish.weights =
            [(1, 0), (2, 4)].map(|(version, from)| WeightSpan { version: WeightVersion(version), from }).into();
        let spans = serde_json::to_value(labels.spans(&finish)).expect("keys are strings");
        let expected = json!([{"version": "step 7", "start": 0, "end": 4}, {"version": "2", "start": 4, "end": 9}]);
        assert_eq!(spans, expected);
        labels.set(WeightVersion(1), "1");
        assert_eq!(labels.label(WeightVersion(1)), "1");
        assert!(adapter_spans(&finish).is_empty());
        finish.adapters = vec![AdapterSpan { version: AdapterVersion(3), from: 0 }];
        let spans = serde_json::to_value(adapter_spans(&finish)).expect("keys are strings");
        assert_eq!(spans, json!([{"version": "3", "start": 0, "end": 9}]));
    }

    #[test]
    fn the_latest_labels_are_remembered() {
        let labels = WeightLabels::default();
        for version in 0..=MOST_LABELS as u64 {
            labels.set(WeightVersion(version), "x");
        }
        assert_eq!((labels.label(WeightVersion(0)), labels.label(WeightVersion(1))), ("0".to_owned(), "x".to_owned()));
    }
}
