//! Where in a sample the form begins.

use offshoot_core::ids::TokenId;
use offshoot_form::{Form, FormBegin, FormState, Forms};

use crate::{compile, encode, ends, mask, tokenizer, tokens};

fn reasoning(open: Option<&str>, close: &str) -> FormBegin {
    FormBegin::BehindReasoning { open: open.map(str::to_string), close: close.to_string() }
}

/// Whether everything but the ends of a text is allowed.
fn is_free(forms: &mut Forms, state: &mut FormState) -> bool {
    let mask = mask(forms, state);
    let allowed = tokens(&mask);
    mask.forced.is_none()
        && !mask.may_end
        && allowed.len() == mask.allowed.as_ref().unwrap().vocab() - ends(&tokenizer()).len()
}

#[test]
fn a_form_begins_behind_a_mark_of_several_tokens() {
    let close = "</reason>";
    assert!(encode(close).len() > 1, "the bundled tokenizer has no such token");
    let form = compile(Form::Choice(vec!["yes".to_string(), "no".to_string()]));
    let mut forms = Forms::new(1);
    let mut state = FormState::begin(form, &reasoning(None, close));
    for token in encode("let me see {\"a\": </rea </reason>") {
        assert!(is_free(&mut forms, &mut state) && !state.has_begun());
        state.push(token);
    }
    assert!(state.has_begun() && state.tokens().is_empty());
    let first = mask(&mut forms, &mut state);
    let texts = tokens(&first).iter().map(|token| tokenizer().decode(&[*token])).collect::<Vec<_>>();
    assert!(
        texts.iter().all(|text| !text.is_empty() && ("yes".starts_with(text) || "no".starts_with(text))),
        "{texts:?}"
    );
    for token in encode("yes") {
        state.push(token);
    }
    assert!(mask(&mut forms, &mut state).only_end);
}

/// The mark's bytes may be cut by tokens that have others, too.
#[test]
fn a_mark_may_share_its_tokens_with_the_text_around_it() {
    let tokenizer = tokenizer();
    let form = compile(Form::Choice(vec!["yes".to_string()]));
    let is_word = |bytes: &[u8]| bytes.len() >= 2 && bytes.iter().all(u8::is_ascii_lowercase);
    let mut all = (0..tokenizer.vocab_size()).map(TokenId::new);
    let word = all.find(|token| is_word(tokenizer.token_bytes(*token))).expect("a token of several letters");
    let last = *tokenizer.token_bytes(word).last().expect("it has letters") as char;
    let mut state = FormState::begin(form, &reasoning(None, &format!("{last}!")));
    state.push(word);
    assert!(!state.has_begun());
    state.push(encode("!")[0]);
    assert!(state.has_begun());
}

#[test]
fn a_sample_opens_its_reasoning_or_begins_its_form() {
    let tokenizer = tokenizer();
    let form = compile(Form::Choice(vec!["yes".to_string()]));
    let end = ends(&tokenizer)[0];
    // The only special tokens of the bundled model serve as marks of one token.
    let mark = tokenizer.decode_with_special(&[end]);
    let opening = |open: &str| FormState::begin(form.clone(), &reasoning(Some(open), "#"));
    let mut forms = Forms::new(1);

    let mut state = opening(&mark);
    let both = mask(&mut forms, &mut state);
    let alone = mask(&mut forms, &mut FormState::begin(form.clone(), &FormBegin::AtOnce));
    let expected: Vec<TokenId> = {
        let mut all = tokens(&alone);
        all.push(end);
        all.sort();
        all
    };
    assert_eq!(tokens(&both), expected);
    assert!(!both.may_end && !both.only_end);

    let mut begun = state.clone();
    begun.push(tokens(&alone)[0]);
    assert!(begun.has_begun() && begun.tokens().len() == 1);

    state.push(end);
    assert!(!state.has_begun() && is_free(&mut forms, &mut state));
    encode("well #").into_iter().for_each(|token| state.push(token));
    assert!(state.has_begun());
    assert_eq!(tokens(&mask(&mut forms, &mut state)), tokens(&alone));
}

#[test]
fn an_opening_mark_of_several_tokens_is_spelled_in_any_way() {
    let form = compile(Form::Choice(vec!["yes".to_string()]));
    let mut forms = Forms::new(1);
    let mut state = FormState::begin(form, &reasoning(Some("<so>"), "</so>"));
    for token in encode("<so>") {
        assert!(!state.has_begun());
        assert!(tokens(&mask(&mut forms, &mut state)).contains(&token));
        state.push(token);
    }
    assert!(is_free(&mut forms, &mut state));
    encode("hm</so>").into_iter().for_each(|token| state.push(token));
    assert!(state.has_begun());
}

/// Before it, no token ends the text: not in the analysis, and not behind a message to a tool, which no form has.
#[test]
fn a_form_begins_in_the_final_channel() {
    let form = compile(Form::Choice(vec!["yes".to_string()]));
    let mut forms = Forms::new(1);
    let mut state = FormState::begin(form, &FormBegin::FinalChannel);
    let head = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.add \
                <|message|>{}<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>";
    for token in encode(head) {
        assert!(is_free(&mut forms, &mut state) && !state.has_begun());
        state.push(token);
    }
    assert!(state.has_begun());
    assert!(!is_free(&mut forms, &mut state));
}
