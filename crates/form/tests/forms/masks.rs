//! What masks allow: texts of the form, their ends, and nothing else.

use offshoot_core::ids::TokenId;
use offshoot_form::{Form, Forms};
use offshoot_text::Tokenizer;
use serde::de::IgnoredAny;
use serde_json::json;

use crate::mutate::Dice;
use crate::{PADDING, begin, behind, compile, encode, ends, is_person, mask, person, tokenizer, tokens};

/// Texts of allowed tokens, picked by seeds, that end where they may; `None` where one is not over after `most` tokens.
fn texts(form: Form, seeds: u64, most: usize, tokenizer: &Tokenizer) -> Vec<Option<String>> {
    let form = compile(form);
    let mut forms = Forms::new(2);
    let ends = ends(tokenizer);
    let text = |seed| {
        let mut dice = Dice(seed + 1);
        let mut state = begin(&form);
        for _ in 0..most {
            let mask = mask(&mut forms, &mut state);
            assert!(!mask.is_dead_end(), "{:?}", tokenizer.decode(state.tokens()));
            assert_eq!(mask.forced, Some(tokens(&mask)).filter(|all| all.len() == 1).map(|all| all[0]));
            assert_eq!(mask.may_end, tokens(&mask).contains(&ends[0]));
            let others: Vec<TokenId> = tokens(&mask).into_iter().filter(|token| !ends.contains(token)).collect();
            assert_eq!(mask.only_end, mask.may_end && others.is_empty());
            if mask.only_end || (mask.may_end && dice.below(2) == 0) {
                return Some(tokenizer.decode(state.tokens()));
            }
            state.push(others[dice.below(others.len())]);
        }
        None
    };
    (0..seeds).map(text).collect()
}

#[test]
fn texts_of_allowed_tokens_have_the_form() {
    let tokenizer = tokenizer();
    let check = |form: Form, least: usize, accepts: &dyn Fn(&str) -> bool| {
        let found = texts(form, 40, 300, &tokenizer);
        let over: Vec<&String> = found.iter().flatten().collect();
        assert!(over.len() >= least, "{} of 40 are over", over.len());
        for text in over {
            assert!(accepts(text), "{text:?}");
        }
    };
    check(Form::Json(person()), 30, &is_person);
    // Its numbers may be larger than those that are read.
    check(Form::JsonObject, 1, &|text| text.starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok());
    let choices = ["yes", "no", "not at all", ""].map(str::to_string).to_vec();
    check(Form::Choice(choices.clone()), 40, &|text| choices.iter().any(|choice| choice == text));
    check(Form::Regex("^[a-c]{2,5}-[0-9]{1,3}$".to_string()), 40, &|text| {
        let Some((word, number)) = text.split_once('-') else { return false };
        (2..=5).contains(&word.len())
            && word.bytes().all(|byte| (b'a'..=b'c').contains(&byte))
            && (1..=3).contains(&number.len())
            && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let sums = "start: number (\"+\" number)*\nnumber: /[1-9][0-9]{0,3}/";
    check(Form::Lark(sums.to_string()), 30, &|text| text.split('+').all(|number| number.parse::<u16>().is_ok()));
}

#[test]
fn json_has_a_blank_behind_commas_and_colons_or_none() {
    let form = compile(Form::Json(person()));
    let mut forms = Forms::new(1);
    let compact = r#"{"name":"Ada","age":36,"tags":["red","blue"]}"#;
    let spaced = compact.replace(':', ": ").replace(',', ", ");
    for text in [compact.to_owned(), compact.replace(':', ": "), spaced] {
        assert!(mask(&mut forms, &mut behind(&form, &text)).only_end, "{text}");
    }
    let none_behind = ["", "{", r#"{"name""#, r#"{"name": "#, r#"{"name": "Ada""#, r#"{"name": "Ada", "#];
    for (form, texts) in [(form, &none_behind[..]), (compile(Form::JsonObject), &["", "{", r#"{"a": "#, r#"{"a": ["#])]
    {
        for text in texts {
            let allowed = tokens(&mask(&mut forms, &mut behind(&form, text)));
            for white in [" ", "\n", "\t", "\r"] {
                assert!(!allowed.contains(&encode(white)[0]), "{white:?} behind {text:?}");
            }
        }
    }
}

#[test]
fn a_schema_chooses_other_white_space() {
    let with = |options: serde_json::Value| {
        let mut schema = person();
        schema["x-guidance"] = options;
        compile(Form::Json(schema))
    };
    let mut forms = Forms::new(1);
    let value = json!({"name": "Ada", "age": 36, "tags": ["red", "blue"]});
    let indented = serde_json::to_string_pretty(&value).unwrap();
    for options in [json!({"whitespace_flexible": true}), json!({"whitespace_pattern": r" |\n {0,8}"})] {
        let form = with(options);
        for text in [value.to_string(), indented.clone()] {
            assert!(mask(&mut forms, &mut behind(&form, &text)).only_end, "{text}");
        }
    }
    let form = with(json!({"item_separator": r",\n", "key_separator": " : "}));
    let text = value.to_string().replace(',', ",\n").replace(':', " : ");
    assert!(mask(&mut forms, &mut behind(&form, &text)).only_end, "{text}");
}

#[test]
fn ends_special_tokens_and_padding_are_in_no_text() {
    let tokenizer = tokenizer();
    let form = compile(Form::JsonObject);
    let mut forms = Forms::new(1);
    for text in ["", "{", "{\"a", "{\"a\": ["] {
        let allowed = tokens(&mask(&mut forms, &mut behind(&form, text)));
        let bad = |token: &&TokenId| tokenizer.is_special(**token) || token.ix() >= tokenizer.vocab_size();
        assert_eq!(allowed.iter().find(bad), None, "{text}");
    }
    let mask = mask(&mut forms, &mut behind(&form, "{}"));
    assert_eq!(tokens(&mask), ends(&tokenizer));
    assert_eq!(mask.forced, Some(ends(&tokenizer)[0]));
    assert_eq!(mask.allowed.as_ref().map(|set| set.vocab()), Some(tokenizer.vocab_size() + PADDING));
}

#[test]
fn a_token_that_is_not_allowed_is_a_dead_end() {
    let form = compile(Form::JsonObject);
    let mut forms = Forms::new(1);
    let padding = TokenId::new(tokenizer().vocab_size() + 1);
    for token in [encode("x")[0], padding] {
        let mut state = behind(&form, "{");
        state.push(token);
        assert!(mask(&mut forms, &mut state).is_dead_end());
        state.push(encode("}")[0]);
        assert!(mask(&mut forms, &mut state).is_dead_end());
    }
    let mut state = behind(&form, "{}");
    state.push(ends(&tokenizer())[0]);
    assert!(mask(&mut forms, &mut state).only_end, "an end stands behind the text");
}

#[test]
fn a_token_is_forced_where_its_bytes_are_spelled_in_one_way() {
    let form = compile(Form::Choice(vec!["Q".to_string()]));
    let mut forms = Forms::new(1);
    let first = mask(&mut forms, &mut begin(&form));
    assert_eq!(first.forced, Some(encode("Q")[0]));
    assert!(!first.may_end && !first.only_end);
}

#[test]
fn a_grammar_may_name_the_end_of_the_text() {
    let tokenizer = tokenizer();
    let end = ends(&tokenizer)[0];
    let a = encode("a")[0];
    let mut forms = Forms::new(1);
    // By its number, by its name, and as what ends a rule's text.
    let name = String::from_utf8_lossy(tokenizer.token_bytes(end)).into_owned();
    for last in [format!("<[{}]>", end.0), name] {
        let form = compile(Form::Lark(format!("start: \"a\" {last}")));
        let first = mask(&mut forms, &mut begin(&form));
        assert_eq!((tokens(&first), first.may_end), (vec![a], false), "{last}");
        let mut state = behind(&form, "a");
        let second = mask(&mut forms, &mut state);
        assert_eq!((tokens(&second), second.forced), (vec![end], Some(end)), "{last}");
        assert!(second.may_end && second.only_end, "{last}");
        state.push(end);
        assert!(mask(&mut forms, &mut state).only_end, "{last}");
    }
    let form = compile(Form::Lark("start: \"a\" rest\nrest[stop=\"\"]: /[b-d]*/".to_owned()));
    let found = mask(&mut forms, &mut behind(&form, "abc"));
    assert!(found.may_end && !found.only_end && tokens(&found).contains(&end));
    // Behind an end nothing comes: no text goes on there.
    let form = compile(Form::Lark(format!("start: \"a\" <[{}]> \"b\"", end.0)));
    assert!(mask(&mut forms, &mut behind(&form, "a")).is_dead_end());
}
