//! Records of samples from a server: log-probabilities of both modes, the sets that tokens were drawn from, entropies.

use serde_json::{Value, json};

use crate::served::{QUESTION, Served, joined};

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

/// The log-probabilities of a choice's tokens: of a completion, or of a chat.
fn logprobs(choice: &Value) -> Vec<f64> {
    match choice["logprobs"].get("content") {
        Some(Value::Array(tokens)) => tokens.iter().map(|token| token["logprob"].as_f64().expect("a number")).collect(),
        _ => numbers(&choice["logprobs"]["token_logprobs"]),
    }
}

/// Processed log-probabilities follow from the raw ones of the tokens that are kept, divided by the temperature; the
/// raw ones are those of the text scored again.
#[test]
fn log_probabilities_of_both_modes_are_of_one_draw() {
    let served = Served::start(&["--logprobs-mode", "processed_logprobs"]);
    let temperature = 0.7;
    let ask = json!({"prompt": QUESTION, "n": 2, "seed": 4, "max_tokens": 24, "temperature": temperature, "top_k": 8,
        "logprobs": 20, "return_token_ids": true, "return_tokens_as_token_ids": true, "return_kept": "ids",
        "return_entropy": true});
    let processed = served.complete(&ask);
    let raw = served.complete(&joined(&ask, json!({"logprobs_mode": "raw_logprobs"})));
    for (processed, raw) in
        processed["choices"].as_array().expect("a list").iter().zip(raw["choices"].as_array().unwrap())
    {
        assert_eq!((&processed["token_ids"], &processed["kept"]), (&raw["token_ids"], &raw["kept"]));
        let ids = processed["token_ids"].as_array().expect("a list");
        let (drawn, own) = (logprobs(processed), logprobs(raw));
        let (counts, lowest) = (numbers(&processed["kept"]["counts"]), numbers(&processed["kept"]["lowest"]));
        let entropies = numbers(&processed["entropies"]);
        assert_eq!([drawn.len(), own.len(), counts.len(), lowest.len(), entropies.len()], [ids.len(); 5]);
        for (at, id) in ids.iter().enumerate() {
            let kept = processed["kept"]["ids"][at].as_array().expect("few tokens");
            assert!(counts[at] == 8.0 && kept.len() == 8 && kept.contains(id));
            // The 20 likeliest have all that are kept.
            let top = raw["logprobs"]["top_logprobs"][at].as_object().expect("an object");
            let of = |id: &Value| top[&format!("token_id:{id}")].as_f64().expect("a number");
            let sum: f64 = kept.iter().map(|id| (of(id) / temperature).exp()).sum();
            let expected = of(id) / temperature - sum.ln();
            assert!((drawn[at] - expected).abs() < 1e-4, "{} and {expected}", drawn[at]);
            let listed = processed["logprobs"]["top_logprobs"][at].as_object().expect("an object");
            assert_eq!(listed.len(), 8, "only what could be drawn is listed");
            // What is known of the whole distribution bounds its entropy from below.
            let known: f64 = top.values().map(|logprob| logprob.as_f64().unwrap()).map(|one| -one * one.exp()).sum();
            assert!(entropies[at] > known - 1e-4 && entropies[at] < 8.0, "{} of at least {known}", entropies[at]);
        }
        let text = [raw["prompt_token_ids"].as_array().unwrap().clone(), ids.clone()].concat();
        let again = served.complete(&json!({"prompt": text, "echo": true, "max_tokens": 0, "logprobs": 0}));
        let scored = logprobs_behind(&again["choices"][0], text.len() - ids.len());
        assert_eq!(scored, own, "prompts are scored by the model, whatever the mode");
    }
}

fn logprobs_behind(choice: &Value, prompt: usize) -> Vec<f64> {
    let all = choice["logprobs"]["token_logprobs"].as_array().expect("a list");
    numbers(&Value::Array(all[prompt..].to_vec()))
}

#[test]
fn chats_and_streams_have_the_same_records() {
    let served = Served::start(&[]);
    let fields = json!({"n": 2, "seed": 6, "max_tokens": 12, "temperature": 1.2, "top_p": 0.9, "return_token_ids": true,
        "return_kept": "mask", "return_entropy": true, "logprobs_mode": "processed_logprobs"});
    let completion = joined(&fields, json!({"prompt": QUESTION, "logprobs": 0}));
    let chat = json!({"messages": [{"role": "user", "content": "Mia has 3 pens."}], "logprobs": true});
    let of_chat = served.post("/v1/chat/completions", &joined(&fields, chat)).succeeds();
    for choice in of_chat["choices"].as_array().expect("a list") {
        let tokens = choice["token_ids"].as_array().expect("a list").len();
        assert_eq!(logprobs(choice).len(), tokens);
        assert_eq!(choice["kept"]["masks"].as_array().expect("a list").len(), tokens);
        assert_eq!(numbers(&choice["entropies"]).len(), tokens);
    }
    let whole = served.complete(&completion);
    let mut streamed = vec![(Vec::new(), Vec::new(), Vec::new()); 2];
    for chunk in served.stream(&completion).chunks() {
        for choice in chunk["choices"].as_array().expect("a list") {
            let (masks, counts, entropies) = &mut streamed[choice["index"].as_u64().expect("a number") as usize];
            let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
            masks.extend(list(&choice["kept"]["masks"]));
            counts.extend(list(&choice["kept"]["counts"]));
            entropies.extend(list(&choice["entropies"]));
        }
    }
    for (choice, (masks, counts, entropies)) in whole["choices"].as_array().expect("a list").iter().zip(streamed) {
        assert_eq!(choice["kept"]["masks"], Value::Array(masks));
        assert_eq!(choice["kept"]["counts"], Value::Array(counts));
        assert_eq!(choice["entropies"], Value::Array(entropies));
    }
}
