//! The weights that a sample's tokens were sampled under, as answers name them.

use serde::Serialize;

use offshoot_engine::{Finish, WeightLabels};

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

impl LabelledSpan {
    /// The weights under which the tokens of a sample were sampled, in order.
    pub fn of(finish: &Finish, labels: &WeightLabels) -> Vec<Self> {
        let ends = finish.weights.iter().skip(1).map(|span| span.from).chain([finish.sampled()]);
        let spans = finish.weights.iter().zip(ends);
        spans.map(|(span, end)| LabelledSpan { version: labels.label(span.version), start: span.from, end }).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use offshoot_core::ids::{AdapterVersion, TokenId, WeightVersion};
    use offshoot_engine::{AdapterSpan, FinishReason, WeightSpan};

    use super::*;

    #[test]
    fn spans_are_called_by_the_labels_of_their_versions() {
        let labels = WeightLabels::default();
        labels.set(WeightVersion(1), "step 7");
        labels.set(WeightVersion(2), "2");
        assert_eq!([0, 1, 2].map(|version| labels.label(WeightVersion(version))), ["0", "step 7", "2"]);
        let mut finish = Finish::empty(FinishReason::Length);
        assert!(LabelledSpan::of(&finish, &labels).is_empty());
        finish.tokens = vec![TokenId(5); 9];
        finish.weights =
            [(1, 0), (2, 4)].map(|(version, from)| WeightSpan { version: WeightVersion(version), from }).into();
        let spans = serde_json::to_value(LabelledSpan::of(&finish, &labels)).expect("keys are strings");
        let expected = json!([{"version": "step 7", "start": 0, "end": 4}, {"version": "2", "start": 4, "end": 9}]);
        assert_eq!(spans, expected);
        assert!(adapter_spans(&finish).is_empty());
        finish.adapters = vec![AdapterSpan { version: AdapterVersion(3), from: 0 }];
        let spans = serde_json::to_value(adapter_spans(&finish)).expect("keys are strings");
        assert_eq!(spans, json!([{"version": "3", "start": 0, "end": 9}]));
    }
}
