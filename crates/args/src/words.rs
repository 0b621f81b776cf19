//! The words of options that choose one of a few values, with what the help says of each.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use offshoot_backend::{Dtype, KvDtype, StateDtype};
use offshoot_kv::plan::Planner;
use offshoot_model::{ActivationChoice, MadeFormat};

/// A word, its value, and what the help says of it, which may be nothing.
pub type Word<T> = (&'static str, T, &'static str);

pub const DTYPES: &[Word<Dtype>] = &[("f32", Dtype::F32, ""), ("f16", Dtype::F16, ""), ("bf16", Dtype::Bf16, "")];

pub const KV_DTYPES: &[Word<KvDtype>] = &[
    ("model", KvDtype::Model, "The compute dtype: that of the weights' elements"),
    (
        "fp8",
        KvDtype::Fp8,
        "8 bits (e4m3, no scale): half the memory on Hopper and of latents, and results that differ by its rounding",
    ),
];

pub const STATE_DTYPES: &[Word<StateDtype>] = &[
    ("f32", StateDtype::F32, "32 bits"),
    ("bf16", StateDtype::Bf16, "16 bits: half the memory, and results that differ by its rounding"),
];

pub const MADE_FORMATS: &[Word<MadeFormat>] = &[
    ("fp8", MadeFormat::Fp8, "e4m3 with a scale for each output; activations e4m3 with a scale for each row"),
    (
        "int8",
        MadeFormat::Int8,
        "8-bit integers with a scale for each output; activations 8-bit integers with a scale for each row",
    ),
    (
        "int4",
        MadeFormat::Int4,
        "4-bit integers with a scale for 32 inputs of an output; activations not rounded. The output layer is int8",
    ),
];

pub const ACTIVATIONS: &[Word<ActivationChoice>] = &[
    ("format", ActivationChoice::Format, "What the format says: e4m3, 8-bit integers, or nothing"),
    ("bf16", ActivationChoice::Bf16, "Nothing beyond the model's dtype: weight-only arithmetic"),
];

pub const PLANNERS: &[Word<Planner>] = &[
    ("flat", Planner::Flat, "No sharing: every row reads its whole context alone"),
    (
        "single",
        Planner::SingleLevel,
        "One shared level (the root segments), the rest unshared, as BatchLLM and RelayAttention",
    ),
    ("tree", Planner::Tree, "All levels, one item a node, as Hydragen"),
    (
        "balanced",
        Planner::Balanced,
        "All levels where it pays: folds short or little-shared nodes into their descendants, splits long ones",
    ),
];

/// Reads one of these words.
pub fn one_of<T: Copy + Send + Sync + 'static>(words: &'static [Word<T>]) -> impl TypedValueParser<Value = T> {
    let value = |&(word, _, help): &Word<T>| {
        let value = PossibleValue::new(word);
        if help.is_empty() { value } else { value.help(help) }
    };
    PossibleValuesParser::new(words.iter().map(value)).map(|typed| {
        let known = words.iter().find(|(word, ..)| *word == typed);
        known.expect("`PossibleValuesParser` admits these words alone").1
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::Serialize;

    use super::*;

    #[test]
    fn values_have_one_word_everywhere() {
        fn check<T: Serialize + Debug>(words: &[Word<T>]) {
            for (word, value, _) in words {
                assert_eq!(serde_json::to_value(value).expect("a word"), *word, "{value:?}");
            }
        }
        check(DTYPES);
        check(KV_DTYPES);
        check(STATE_DTYPES);
        check(MADE_FORMATS);
        check(ACTIVATIONS);
        check(PLANNERS);
        assert_eq!(PLANNERS.len(), Planner::ALL.len());
    }
}
