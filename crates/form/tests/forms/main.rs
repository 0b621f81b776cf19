//! Forms over the bundled model's tokenizer: masks, forks, marks of reasoning, refusals.

mod begins;
mod call_texts;
mod calls;
mod forks;
mod limits;
mod masks;
#[path = "../../examples/measure/mutate.rs"]
mod mutate;
mod refusals;
mod validate;

use std::path::Path;
use std::sync::Arc;

use offshoot_core::ids::TokenId;
use offshoot_form::{CompiledForm, Form, FormBegin, FormCompiler, FormState, Forms, StateMask};
use offshoot_text::{AddSpecial, Tokenizer};
use serde_json::{Value, json};

/// Ids of the model past the tokenizer's.
const PADDING: usize = 3;

/// The bundled model's tokenizer.
fn tokenizer() -> Arc<Tokenizer> {
    let folder = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo");
    Arc::new(Tokenizer::load(&folder).expect("the bundled model has a tokenizer"))
}

fn ends(tokenizer: &Tokenizer) -> Vec<TokenId> {
    vec![tokenizer.eos().expect("the bundled model names an end of text")]
}

fn compiler() -> FormCompiler {
    let tokenizer = tokenizer();
    let (ends, vocab) = (ends(&tokenizer), tokenizer.vocab_size() + PADDING);
    FormCompiler::new(tokenizer, ends, vocab)
}

fn compile(form: Form) -> Arc<CompiledForm> {
    compiler().compile(&Arc::new(form)).expect("the form compiles")
}

fn begin(form: &Arc<CompiledForm>) -> FormState {
    FormState::begin(form.clone(), &FormBegin::AtOnce)
}

fn mask(forms: &mut Forms, state: &mut FormState) -> Arc<StateMask> {
    forms.masks(&mut [state]).remove(0).expect("a mask")
}

/// The tokens that a mask allows.
fn tokens(mask: &StateMask) -> Vec<TokenId> {
    let allowed = mask.allowed.as_ref().expect("not all tokens are allowed");
    (0..allowed.vocab()).map(TokenId::new).filter(|token| allowed.contains(*token)).collect()
}

fn encode(text: &str) -> Vec<TokenId> {
    tokenizer().encode(text, AddSpecial::No).expect("a text has tokens")
}

/// The state behind a text, each token of which the form must allow.
fn behind(form: &Arc<CompiledForm>, text: &str) -> FormState {
    let mut state = begin(form);
    let mut forms = Forms::new(1);
    for token in encode(text) {
        assert!(tokens(&mask(&mut forms, &mut state)).contains(&token), "{text}: token {token}");
        state.push(token);
    }
    state
}

/// A schema with objects, lists, choices and limits.
fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false
    })
}

/// Whether the schema `person` accepts a text.
fn is_person(text: &str) -> bool {
    let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(text) else { return false };
    let names: Vec<&str> = fields.keys().map(String::as_str).collect();
    names == ["name", "age", "tags"]
        && fields["name"].as_str().is_some_and(|name| (1..=12).contains(&name.chars().count()))
        && fields["age"].as_u64().is_some_and(|age| age <= 120)
        && fields["tags"].as_array().is_some_and(|tags| {
            tags.len() <= 3 && tags.iter().all(|tag| ["red", "green", "blue"].map(Value::from).contains(tag))
        })
}
