use offshoot_core::ids::TokenId;
use offshoot_form::{Form, FormBegin, FormState, Forms};
use serde_json::json;

use crate::{compile, compiler, tokenizer};

#[test]
fn a_walk_over_allowed_tokens_ends_in_a_text_of_the_form() {
    let (compiler, tokenizer) = (compiler(), tokenizer());
    let schema = json!({
        "type": "object",
        "properties": {"name": {"enum": ["ada", "bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": false
    });
    let form = compile(&compiler, Form::Json(schema));
    let mut forms = Forms::new(2);
    for seed in 0..20_u32 {
        let mut state = FormState::begin(form.clone(), &FormBegin::AtOnce);
        let mut sampled: Vec<TokenId> = Vec::new();
        loop {
            let mask = forms.masks(&mut [&mut state]).remove(0).expect("a mask");
            if mask.only_end || (mask.may_end && seed % 2 == 0) {
                break;
            }
            let allowed = mask.allowed.as_ref().expect("the form has begun");
            let tokens: Vec<u32> = (0..allowed.vocab() as u32).filter(|&t| allowed.contains(TokenId(t))).collect();
            assert!(!tokens.is_empty());
            let pick = (seed.wrapping_mul(2_654_435_761).wrapping_add(sampled.len() as u32 * 40_503)) as usize;
            let token = TokenId(tokens[pick % tokens.len()]);
            sampled.push(token);
            state.push(token);
            assert!(sampled.len() < 400);
        }
        let text = tokenizer.decode(&sampled);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(value["age"].as_u64().is_some_and(|age| age < 100), "{text}");
    }
}
