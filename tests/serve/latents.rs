//! A server of a model with latent attention: answers in a form, calls of tools, scores of prompts and a scorer, read
//! from latents alone and from copies of them.

use serde_json::{Value, json};

use crate::latent::latent_model;
use crate::served::{Served, joined};

/// Of several tiles of attention: less than one is never read from copies.
const PROMPT: &str = "Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\n\
    Answer: Then Mia has 3 + 4 = 7 pens.\n\n\
    Question: Tom has 8 maps and finds 5 more. How many maps does Tom have now?\n\
    Answer: Then Tom has 8 + 5 = 13 maps.\n\nQuestion: Zoe has 9 cups and loses 2. How many cups does Zoe have now?\n\
    Answer: Then Zoe has";

fn choices(answer: &Value) -> &Vec<Value> {
    answer["choices"].as_array().expect("a list")
}

/// Numbers that are those of another server, but for rounding; `null` is `null`.
fn assert_near(found: &Value, expected: &Value) {
    let numbers = |list: &Value| list.as_array().expect("a list").clone();
    let (found, expected) = (numbers(found), numbers(expected));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        let near = match (found.as_f64(), expected.as_f64()) {
            (Some(found), Some(expected)) => (found - expected).abs() < 1e-3,
            _ => found == expected,
        };
        assert!(near, "{found}, not {expected}");
    }
}

/// Samples of a prompt that is scored, whose answer has a form; and the scores themselves.
fn scored_prompts(served: &Served) -> Value {
    let form = json!({"guided_regex": "[0-9]{2}(px|em) = [a-f]{3,9}"});
    let asks = json!({"prompt": PROMPT, "n": 8, "seed": 3, "max_tokens": 60, "echo": true, "logprobs": 2});
    served.complete(&joined(&asks, form))
}

/// Calls of a tool, by the model's template.
fn calls(served: &Served) -> Value {
    let properties = json!({"who": {"enum": ["Mia", "Tom"]}, "pens": {"type": "integer", "minimum": 0, "maximum": 99}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["who", "pens"],
        "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "count", "parameters": parameters}});
    let chat = json!({
        "messages": [{"role": "user", "content": "Mia has 3 pens. How many pens?"}], "tools": [tool], "n": 8, "seed": 3,
        "max_tokens": 300, "tool_choice": "required", "parallel_tool_calls": false,
    });
    served.post("/v1/chat/completions", &chat).succeeds()
}

#[test]
fn forms_tools_and_scores_are_alike_from_latents_and_from_copies() {
    let (model, scorer) = (latent_model(), latent_model());
    let text = json!({"plain": {"text": "{{question}}{{answer}}", "special_tokens": true, "read": {"end": {}}}});
    let form = json!({"text": text, "output": {"words": {"good": [" +"], "bad": [" -"]}}});
    std::fs::write(scorer.path().join("scorer.json"), form.to_string()).expect("the folder is writable");
    let [path, scorer] = [&model, &scorer].map(|folder| folder.path().to_str().expect("UTF-8"));
    let of = ["--model", path, "--name", "latent", "--scorer", scorer, "--scorer-name", "reward"];
    let [latents, copies] = ["0", "16"].map(|size| Served::start(&[&of[..], &["--latent-copies", size]].concat()));

    let [expected, found] = [&latents, &copies].map(scored_prompts);
    assert_eq!(choices(&expected).len(), 8);
    for (expected, found) in choices(&expected).iter().zip(choices(&found)) {
        let answer =
            expected["text"].as_str().and_then(|text| text.strip_prefix(PROMPT)).expect("the prompt is echoed");
        let (size, name) = answer.split_once(" = ").unwrap_or_else(|| panic!("{answer:?} has the form"));
        assert!(
            ["px", "em"].contains(&&size[2..]) && name.bytes().all(|byte| (b'a'..=b'f').contains(&byte)),
            "{answer}"
        );
        assert_eq!((&found["text"], &found["finish_reason"]), (&expected["text"], &json!("stop")));
        assert_near(&found["logprobs"]["token_logprobs"], &expected["logprobs"]["token_logprobs"]);
    }

    let [expected, found] = [&latents, &copies].map(calls);
    for (expected, found) in choices(&expected).iter().zip(choices(&found)) {
        let function = &expected["message"]["tool_calls"][0]["function"];
        assert_eq!((&function["name"], &expected["finish_reason"]), (&json!("count"), &json!("tool_calls")));
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().expect("a text")).expect("JSON");
        assert!(arguments["pens"].as_u64().is_some_and(|pens| pens < 100), "{arguments}");
        assert_eq!(&found["message"]["tool_calls"][0]["function"], function);
    }

    // The scorer computes what the model does: the same weights, of which two words are read.
    let words = json!({"model": "latent", "prompt": PROMPT, "choices": [" +", " -"]});
    let of_words = latents.complete(&words);
    let logprob = |ix: usize| of_words["choices"][ix]["score"]["logprob"].as_f64().expect("a number");
    let good = 1.0 / (1.0 + (logprob(1) - logprob(0)).exp());
    for served in [&latents, &copies] {
        let pooled = served.post("/pooling", &json!({"input": PROMPT})).succeeds();
        let found = pooled["data"][0]["data"][1].as_f64().expect("a number");
        assert!((found - good).abs() < 1e-3, "{found}, not {good}");
    }

    let expanded = "offshoot_engine_latent_tokens_expanded_total";
    assert_eq!(latents.metric(expanded), 0.0);
    assert!(copies.metric(expanded) > 0.0 && copies.metric("offshoot_engine_latent_copies_held") > 0.0);
}
