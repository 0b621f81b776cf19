//! `echo` with `logprobs` in `offshoot batch`: the prompt's own log-probabilities stand before those of the sample.

use serde_json::{Value, json};

use crate::batch_desk::*;

fn floats(value: &Value) -> Vec<Option<f64>> {
    value.as_array().expect("a list").iter().map(Value::as_f64).collect()
}

#[test]
fn an_echoed_prompt_has_its_log_probabilities() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ask = |id: &str, more: Value| {
        let mut body = json!({"prompt": QUESTION, "max_tokens": 6, "temperature": 0, "logprobs": 2});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        completions(id, body)
    };
    let answers = answers(
        folder.path(),
        &[
            ask("plain", json!({})),
            ask("echo", json!({"echo": true, "n": 2})),
            ask("prompt", json!({"echo": true, "max_tokens": 0})),
            ask("bare", json!({"echo": true, "max_tokens": 0, "logprobs": null})),
            ask("chosen", json!({"echo": true, "max_tokens": 1, "logprobs": 0})),
        ],
    );
    let choice = |answer: usize, index: usize| &answers[answer]["response"]["body"]["choices"][index];
    let usage = |answer: usize, key: &str| answers[answer]["response"]["body"]["usage"][key].as_u64().expect("a count");
    let (plain, echo) = (choice(0, 0), choice(1, 0));
    assert_eq!(echo, &{
        let mut second = choice(1, 1).clone();
        second["index"] = json!(0);
        second
    });
    let given = usage(1, "prompt_tokens") as usize;
    let (own, all) = (floats(&plain["logprobs"]["token_logprobs"]), floats(&echo["logprobs"]["token_logprobs"]));
    assert_eq!(all.len(), given + own.len());
    assert_eq!(all[given..], own, "the sample's own are as without the prompt");
    assert!(all[0].is_none() && echo["logprobs"]["top_logprobs"][0].is_null(), "nothing is before the first");
    assert!(all[1..].iter().all(|logprob| logprob.is_some_and(|logprob| logprob <= 0.0)));
    for (at, top) in echo["logprobs"]["top_logprobs"].as_array().expect("a list").iter().enumerate().skip(1) {
        let top = top.as_object().expect("an object");
        assert!((1..=3).contains(&top.len()), "two, and the token itself: {top:?}");
        let best = top.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
        assert!(all[at].is_some_and(|own| own <= best), "{at}: {top:?}");
        assert!(top.values().any(|logprob| logprob.as_f64() == all[at]), "{at}: {top:?}");
    }
    let (text, offsets) = (echo["text"].as_str().expect("a text"), echo["logprobs"]["text_offset"].as_array());
    let (offsets, tokens) = (offsets.expect("a list"), echo["logprobs"]["tokens"].as_array().expect("a list"));
    assert!(text.starts_with(QUESTION) && text.len() > QUESTION.len());
    for (offset, token) in offsets.iter().zip(tokens).skip(1) {
        let rest: String = text.chars().skip(offset.as_u64().expect("a count") as usize).collect();
        assert!(rest.starts_with(token.as_str().expect("a text")), "{token} at {offset}");
    }
    // As in a prompt that is longer by what was sampled: the model is asked the same either way.
    assert_eq!(choice(2, 0)["text"], QUESTION);
    assert_eq!(floats(&choice(2, 0)["logprobs"]["token_logprobs"]), all[..given]);
    assert_eq!((usage(2, "completion_tokens"), choice(2, 0)["finish_reason"].as_str()), (0, Some("length")));
    assert!(choice(3, 0)["text"] == QUESTION && choice(3, 0)["logprobs"].is_null());
    let chosen = floats(&choice(4, 0)["logprobs"]["token_logprobs"]);
    assert_eq!(chosen[..given], all[..given]);
    assert!(choice(4, 0)["logprobs"]["top_logprobs"][1].as_object().expect("an object").len() == 1);
}

/// Without `echo`, the prompt's own come in vLLM's form; the texts are those of the same request without them.
#[test]
fn prompt_logprobs_are_those_of_the_echoed_prompt() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ask = |id: &str, more: Value| {
        let mut body = json!({"prompt": QUESTION, "max_tokens": 6, "temperature": 0, "stop": [".", 20]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        completions(id, body)
    };
    let answers = answers(
        folder.path(),
        &[
            ask("own", json!({"prompt_logprobs": 1, "return_token_ids": true})),
            ask("echoed", json!({"echo": true, "logprobs": 1})),
            ask("bare", json!({"prompt_logprobs": 0, "max_tokens": 0})),
        ],
    );
    let choice = |answer: usize| &answers[answer]["response"]["body"]["choices"][0];
    let (own, echoed) = (choice(0), choice(1));
    let ids = own["prompt_token_ids"].as_array().expect("a list");
    let list = own["prompt_logprobs"].as_array().expect("a list");
    let expected = floats(&echoed["logprobs"]["token_logprobs"]);
    assert!(list.len() == ids.len() && list[0].is_null());
    for (at, (id, entry)) in ids.iter().zip(list).enumerate().skip(1) {
        assert_eq!(entry[id.to_string()]["logprob"].as_f64(), expected[at], "{at}");
        let best = entry.as_object().expect("an object").values().find(|token| token["rank"] == 1);
        assert!(best.is_some_and(|best| best["logprob"].as_f64() >= expected[at]), "{at}: {entry}");
    }
    let sampled = format!("{QUESTION}{}", own["text"].as_str().expect("a text"));
    assert_eq!(echoed["text"], sampled);
    assert_eq!(own["token_ids"].as_array().map(Vec::len), Some(expected.len() - ids.len()));
    let bare = choice(2)["prompt_logprobs"].as_array().expect("a list");
    assert_eq!(
        (bare.len(), &choice(2)["text"], &choice(2)["finish_reason"]),
        (list.len(), &json!(""), &json!("length"))
    );
}

/// What a sample was drawn with is what its text is scored with as a prompt.
#[test]
fn a_sampled_text_scored_as_a_prompt_has_the_same_log_probabilities() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let body = json!({"prompt": QUESTION, "max_tokens": 8, "ignore_eos": true, "logprobs": 0, "echo": true, "seed": 1});
    let sampled = answers(folder.path(), &[completions("sampled", body)]);
    let first = &sampled[0]["response"]["body"]["choices"][0];
    let body = json!({"prompt": first["text"], "max_tokens": 0, "logprobs": 0, "echo": true});
    let scored = answers(folder.path(), &[completions("scored", body)]);
    let second = &scored[0]["response"]["body"]["choices"][0];
    assert_eq!(first["logprobs"]["tokens"], second["logprobs"]["tokens"], "this text is encoded as it was sampled");
    assert_eq!(first["logprobs"]["token_logprobs"], second["logprobs"]["token_logprobs"]);
}
