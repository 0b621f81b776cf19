//! What the class in config.json's `architectures` computes: whether a model generates or scores ([`ModelRole`]). Other
//! classes, which share a `model_type` with these and, with tied embeddings, even all tensors, are refused by name.

use serde_json::Value;

use offshoot_core::error::Result;
use offshoot_core::setting::SCORER;

use super::super::fields::{Fields, shown};

const NAME: &str = "architectures";

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelRole {
    /// It predicts the next token.
    Generator,
    /// It computes values of texts or of their steps: a reward model or a classifier.
    Scorer,
    /// It makes vectors of texts.
    Embedder,
}

/// How the classes of generators are named.
const GENERATORS: [&str; 3] = ["ForCausalLM", "LMHeadModel", "ForConditionalGeneration"];

/// Parts of the names of scorers' classes, and what these do.
const SCORERS: [(&str, &str); 7] = [
    ("ForSequenceClassification", "which classifies or scores whole texts"),
    ("ForTokenClassification", "which classifies tokens"),
    ("RewardModel", "which scores texts"),
    ("PrmModel", "which scores the steps of a text"),
    ("ForReward", "which scores texts"),
    ("ForScore", "which scores texts"),
    ("WithValueHead", "which values texts"),
];

/// Parts of the names of classes that would be scorers, and why they are not computed; in small letters.
const UNREAD_SCORERS: [(&str, &str); 5] = [
    ("bert", "which reads in both directions"),
    ("longformer", "which reads in both directions"),
    ("bidirectional", "which reads in both directions"),
    ("withgating", "whose score is weighed by a gate that reads the prompt, which is not supported"),
    ("_vl", "which scores pictures"),
];

/// Parts of the names of other classes, and what these do.
const OTHERS: [(&str, &str); 7] = [
    ("ForQuestionAnswering", "which marks answers in texts"),
    ("ForMultipleChoice", "which scores choices"),
    ("Classification", "which classifies"),
    ("ForMaskedLM", "which predicts masked tokens and reads in both directions"),
    ("Embedding", "which makes vectors of texts"),
    ("Retrieval", "which makes vectors of documents"),
    ("ForCausalLMEagle", "which drafts for another model"),
];

/// The classes that a config names.
fn classes<'a>(fields: &Fields<'a>) -> Result<Vec<&'a str>> {
    match fields.value(NAME) {
        Some(Value::Array(classes)) => Ok(classes.iter().filter_map(Value::as_str).collect()),
        Some(Value::String(class)) => Ok(vec![class]),
        Some(other) => Err(fields.error(NAME, "a list of names", shown(other))),
        None => Ok(Vec::new()),
    }
}

/// What a config's class is for. One that is not known counts as a generator, as does none.
pub fn role(fields: &Fields<'_>) -> Result<ModelRole> {
    let classes = classes(fields)?;
    if classes.iter().any(|class| generates(class)) {
        return Ok(ModelRole::Generator);
    }
    Ok(match classes.iter().any(|class| scorer(class).is_some()) {
        true => ModelRole::Scorer,
        false if classes.iter().any(|class| class.ends_with("Model")) => ModelRole::Embedder,
        false => ModelRole::Generator,
    })
}

/// Refuses a config whose class is known not to have this role. A scorer's tensors may come with the class of a
/// generator.
pub fn refuse_others(fields: &Fields<'_>, role: ModelRole) -> Result<()> {
    let classes = classes(fields)?;
    let why = |class: &str| match role {
        ModelRole::Generator => scorer(class).or_else(|| other(class)),
        ModelRole::Scorer => unread_scorer(class).or_else(|| if scorer(class).is_none() { other(class) } else { None }),
        ModelRole::Embedder => unread_scorer(class).or_else(|| scorer(class)),
    };
    let Some((class, what)) = classes.iter().find_map(|class| Some((class, why(class)?))) else { return Ok(()) };
    if classes.iter().any(|class| generates(class)) {
        return Ok(());
    }
    let expected = match role {
        ModelRole::Generator if scorer(class).is_some() => {
            format!("{PREDICTS}; a model that scores stands beside one ({SCORER})")
        }
        ModelRole::Generator => PREDICTS.to_owned(),
        ModelRole::Scorer => {
            "a model that scores texts from left to right, such as \"...ForSequenceClassification\"".to_owned()
        }
        ModelRole::Embedder => "a model that reads texts from left to right, such as \"Qwen3Model\"".to_owned(),
    };
    Err(fields.error(NAME, expected, format!("\"{class}\", {what}")))
}

const PREDICTS: &str = "a model that predicts tokens, such as \"...ForCausalLM\"";

fn generates(class: &str) -> bool {
    GENERATORS.iter().any(|end| class.ends_with(end))
}

/// What a scorer's class does.
fn scorer(class: &str) -> Option<&'static str> {
    SCORERS.iter().find(|(part, _)| class.contains(part)).map(|(_, what)| *what)
}

fn unread_scorer(class: &str) -> Option<&'static str> {
    let class = class.to_lowercase();
    UNREAD_SCORERS.iter().find(|(part, _)| class.contains(part)).map(|(_, why)| *why)
}

/// What a class does that is known to be neither generator nor scorer.
fn other(class: &str) -> Option<&'static str> {
    if generates(class) {
        return None;
    }
    let known = OTHERS.iter().find(|(part, _)| class.contains(part)).map(|(_, what)| *what);
    let bare = || class.ends_with("Model").then_some("which by its name is a model without an output layer for tokens");
    known.or_else(bare)
}
