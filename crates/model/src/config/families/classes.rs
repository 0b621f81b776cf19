//! What the class in config.json's `architectures` computes. Only classes that predict the next token are read; others
//! share a `model_type` with them, and with tied embeddings even all their tensors.

use serde_json::Value;

use offshoot_core::error::Result;

use super::super::fields::{Fields, shown};

const NAME: &str = "architectures";

/// How the classes of generators are named.
const GENERATORS: [&str; 3] = ["ForCausalLM", "LMHeadModel", "ForConditionalGeneration"];

/// Parts of the names of other classes, and what these do.
const OTHERS: [(&str, &str); 12] = [
    ("ForSequenceClassification", "which classifies or scores whole texts"),
    ("ForTokenClassification", "which classifies tokens"),
    ("RewardModel", "which scores texts"),
    ("PrmModel", "which scores the steps of a text"),
    ("ForReward", "which scores texts"),
    ("ForQuestionAnswering", "which marks answers in texts"),
    ("ForMultipleChoice", "which scores choices"),
    ("Classification", "which classifies"),
    ("ForMaskedLM", "which predicts masked tokens and reads in both directions"),
    ("Embedding", "which makes vectors of texts"),
    ("Retrieval", "which makes vectors of documents"),
    ("ForCausalLMEagle", "which drafts for another model"),
];

/// Refuses a config whose class is known to predict no tokens. One that is not known counts as a generator, as does
/// none.
pub fn refuse_others(fields: &Fields<'_>) -> Result<()> {
    let classes: Vec<&str> = match fields.value(NAME) {
        Some(Value::Array(classes)) => classes.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(class)) => vec![class],
        Some(other) => return Err(fields.error(NAME, "a list of names", shown(other))),
        None => Vec::new(),
    };
    let Some((class, what)) = classes.iter().find_map(|class| Some((class, purpose(class)?))) else { return Ok(()) };
    if classes.iter().any(|class| is_generator(class)) {
        return Ok(());
    }
    Err(fields.error(NAME, "a model that predicts tokens, such as \"...ForCausalLM\"", format!("\"{class}\", {what}")))
}

fn is_generator(class: &str) -> bool {
    GENERATORS.iter().any(|end| class.ends_with(end))
}

/// What a class does that is known to be no generator.
fn purpose(class: &str) -> Option<&'static str> {
    if is_generator(class) {
        return None;
    }
    let known = OTHERS.iter().find(|(part, _)| class.contains(part)).map(|(_, what)| *what);
    let bare = || class.ends_with("Model").then_some("which by its name is a model without an output layer for tokens");
    known.or_else(bare)
}
