//! What a branch's matcher takes beside what all share, by an allocator that counts. A test binary of its own, so that
//! nothing else allocates meanwhile.

#[path = "../examples/measure/memory.rs"]
mod memory;

use std::path::Path;
use std::sync::Arc;

use offshoot_core::ids::TokenId;
use offshoot_form::{Form, FormBegin, FormCompiler, FormState, Forms};
use offshoot_text::{AddSpecial, Tokenizer};
use serde_json::json;

/// The most that a matcher of a text of typical length takes.
const MOST: usize = 16 << 10;
/// The most for each byte of a long text.
const MOST_PER_BYTE: usize = 64;
/// Branches that fork.
const FORKS: usize = 64;

/// A text of typical length, and a long one. (One test, so that nothing else allocates meanwhile.)
#[test]
fn a_matcher_of_a_text_of_typical_length_takes_16_kilobytes_at_most() {
    let (bytes, counted) = bytes_of_a_matcher(2);
    assert!((500..MOST).contains(&bytes), "{bytes} bytes each");
    assert!((bytes / 2..2 * bytes).contains(&counted), "{counted} bytes counted, {bytes} held");
    let (long, counted) = bytes_of_a_matcher(160);
    let text = text(160).len();
    assert!((bytes..MOST_PER_BYTE * text).contains(&long), "{long} bytes each, of a text of {text} bytes");
    assert!((long / 2..2 * long).contains(&counted), "{counted} bytes counted, {long} held");
}

fn text(steps: usize) -> String {
    let steps: Vec<&str> =
        ["Three are eaten: nine are left.", "Two are sold: seven are left."].into_iter().cycle().take(steps).collect();
    json!({"question": "How many apples are left if three of twelve are eaten and two are sold?", "steps": steps,
        "answer": 7})
    .to_string()
}

/// Bytes that a matcher of such a text holds, and those that are counted for it.
fn bytes_of_a_matcher(steps: usize) -> (usize, usize) {
    let folder = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo");
    let tokenizer = Arc::new(Tokenizer::load(&folder).expect("the bundled model has a tokenizer"));
    let ends: Vec<TokenId> = tokenizer.eos().into_iter().collect();
    let compiler = FormCompiler::new(tokenizer.clone(), ends, tokenizer.vocab_size());
    let schema = json!({"type": "object", "properties": {
        "question": {"type": "string"}, "steps": {"type": "array", "items": {"type": "string"}},
        "answer": {"type": "number"}
    }, "required": ["question", "steps", "answer"], "additionalProperties": false});
    let form = compiler.compile(&Arc::new(Form::Json(schema))).expect("it compiles");
    let text = text(steps);

    let mut forms = Forms::new(1).with_bounds(0, usize::MAX);
    let mut parent = FormState::begin(form.clone(), &FormBegin::AtOnce);
    tokenizer.encode(&text, AddSpecial::No).expect("a text").iter().for_each(|token| parent.push(*token));
    forms.masks(&mut [&mut parent]).remove(0).expect("a mask");
    let mut other = FormState::begin(form, &FormBegin::AtOnce);
    let mut forks = vec![parent.clone(); FORKS];
    let before = memory::live();
    for fork in &mut forks {
        // No mask is kept but the last ones, so that each fork computes its own.
        forms.masks(&mut [&mut other]).remove(0).expect("a mask");
        forms.masks(&mut [fork]).remove(0).expect("a mask");
    }
    let bytes = (memory::live() - before) / FORKS;
    let counted = forms.counts().matcher_bytes / (FORKS + 1);
    (bytes, counted)
}
