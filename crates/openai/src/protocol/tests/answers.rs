//! Whole answers: the shapes that OpenAI and vLLM document, field by field.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::{AnswerHead, AnyName, PromptCandidates, PromptResults, response};
use super::*;
use offshoot_engine::TokenRecords;
use offshoot_text::reasoning::{ReasoningSplitter, TextStart};

fn answer(request: &ProtocolRequest, candidates: &[PromptCandidates]) -> Value {
    let head =
        AnswerHead { id: "x".to_owned(), created: 7, system_fingerprint: "fp_1".to_owned(), ..AnswerHead::default() };
    serde_json::to_value(response(request, candidates, &head, tokenizer())).expect("JSON")
}

fn drawn(request: &ProtocolRequest, texts: &[&str], end: FinishReason) -> PromptCandidates {
    let sample = |text: &&str| events(request, 0, &encode(text), end.clone()).1;
    let drawn = texts.iter().map(sample).collect();
    PromptCandidates { drawn, scored: scores(request, 0), ..PromptCandidates::default() }
}

#[test]
fn prompt_logprobs_have_vllms_form() {
    let request = request(Endpoint::Completions, json!({"prompt": "ab c", "prompt_logprobs": 2, "n": 2}));
    let answer = answer(&request, &[drawn(&request, &[" d", " e"], FinishReason::Length)]);
    for choice in answer["choices"].as_array().expect("a list") {
        let list = choice["prompt_logprobs"].as_array().expect("a list");
        assert_eq!(list.len(), request.prompts[0].tokens.len());
        assert!(list[0].is_null(), "nothing is before the first token");
        for (token, entry) in request.prompts[0].tokens.iter().zip(list).skip(1) {
            let entry = entry.as_object().expect("an object");
            assert_eq!(entry.len(), 2, "the token itself is the likeliest");
            let own = &entry[&token.to_string()];
            assert_eq!((&own["rank"], entry.keys().next()), (&json!(1), Some(&token.to_string())));
            let text = String::from_utf8_lossy(tokenizer().token_bytes(*token));
            assert_eq!(own["decoded_token"], *text);
        }
        assert!(choice["logprobs"].is_null());
    }
}

#[test]
fn prompt_logprobs_may_be_a_flag_as_pydantic_reads_it() {
    for (flag, most) in [(true, 1), (false, 0)] {
        let asked = request(Endpoint::Chat, json!({"messages": messages("a"), "prompt_logprobs": flag}));
        assert_eq!(asked.prompt_logprobs, Some(most));
    }
}

#[test]
fn a_chat_has_its_prompt_fields_once() {
    let body = json!({"messages": messages("a"), "prompt_logprobs": 0, "return_token_ids": true, "n": 2});
    let request = request(Endpoint::Chat, body);
    let answer = answer(&request, &[drawn(&request, &["b", "c d"], FinishReason::StopToken(TokenId(9)))]);
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["prompt_token_ids"], json!(request.prompts[0].tokens));
    assert_eq!(answer["prompt_logprobs"].as_array().expect("a list").len(), request.prompts[0].tokens.len());
    let ended = |text: &str| [encode(text), vec![TokenId(9)]].concat();
    assert_eq!(answer["choices"][1]["token_ids"], json!(ended("c d")), "with the token that ended it");
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &answer["choices"][0]["stop_reason"]),
        (&json!("stop"), &json!(9))
    );
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], request.prompts[0].tokens.len(), "a prompt counts once");
    assert_eq!(usage["completion_tokens"], ended("b").len() + ended("c d").len());
}

/// How a sample ends, beside what is asked of it: with how many tokens it ends, and its `stop_reason`.
#[test]
fn ids_logprobs_and_usage_count_the_same_tokens() {
    let text = " a b END";
    let spelt = encode(text).len();
    let rows = [
        (FinishReason::Length, json!({}), spelt, json!(null), text),
        (FinishReason::EndOfText, json!({}), spelt + 1, json!(null), text),
        (FinishReason::StopToken(TokenId(9)), json!({}), spelt + 1, json!(9), text),
        (FinishReason::Length, json!({"stop": ["END"]}), spelt, json!("END"), " a b "),
        (FinishReason::Length, json!({"stop": [" b E"]}), spelt, json!(" b E"), " a"),
        (
            FinishReason::Length,
            json!({"stop": ["END"], "include_stop_str_in_output": true}),
            spelt,
            json!("END"),
            " a b END",
        ),
        (FinishReason::EndOfText, json!({"stop": ["never"], "min_tokens": 2}), spelt + 1, json!(null), text),
        (FinishReason::OutOfTime, json!({}), spelt, json!("cancelled"), text),
        (FinishReason::Cancelled, json!({}), spelt, json!(null), text),
    ];
    for (end, fields, most, stop_reason, shown) in rows {
        for endpoint in [Endpoint::Completions, Endpoint::Chat] {
            let mut body = match endpoint {
                Endpoint::Completions => json!({"prompt": "q", "logprobs": 1}),
                Endpoint::Chat => json!({"messages": messages("q"), "logprobs": true, "top_logprobs": 1}),
            };
            body["n"] = json!(2);
            body["return_token_ids"] = json!(true);
            body.as_object_mut().expect("an object").extend(object(fields.clone()));
            let request = request(endpoint, body);
            let candidates = drawn(&request, &[text, text], end.clone());
            let answer = answer(&request, &[candidates]);
            let mut completion_tokens = 0;
            for choice in answer["choices"].as_array().expect("a list") {
                let ids = choice["token_ids"].as_array().expect("a list").len();
                let logprobs = match endpoint {
                    Endpoint::Completions => &choice["logprobs"]["token_logprobs"],
                    Endpoint::Chat => &choice["logprobs"]["content"],
                };
                assert_eq!(ids, logprobs.as_array().expect("a list").len(), "{end:?} {fields}");
                // A stop string may end in the middle of the text.
                assert!(
                    ids <= most && (ids == most || fields.get("stop").is_some()),
                    "{ids} of {most}: {end:?} {fields}"
                );
                assert_eq!(choice["stop_reason"], stop_reason, "{end:?} {fields}");
                let found = if endpoint == Endpoint::Chat { &choice["message"]["content"] } else { &choice["text"] };
                assert_eq!(found, shown, "{end:?} {fields}");
                completion_tokens += ids;
            }
            assert_eq!(answer["usage"]["completion_tokens"], completion_tokens, "{end:?} {fields}");
        }
    }
}

#[test]
fn a_sample_that_was_cut_short_says_by_whom() {
    let by =
        [(FinishReason::Cancelled, "abort"), (FinishReason::Aborted, "abort"), (FinishReason::OutOfTime, "length")];
    for (end, word) in by {
        let request = request(Endpoint::Completions, json!({"prompt": "q"}));
        let answer = answer(&request, &[drawn(&request, &[" a b"], end.clone())]);
        assert_eq!(answer["choices"][0]["finish_reason"], word, "{end:?}");
    }
}

/// The record of each token stands beside its id, the ending token's too: a client finds all lists equally long.
#[test]
fn records_are_lists_beside_the_ids() {
    let ids = [encode(" a b"), vec![END_OF_TEXT]].concat();
    let of = |fields: Value| {
        let mut body = object(json!({"prompt": "q", "return_token_ids": true}));
        body.extend(object(fields));
        let request = request(Endpoint::Completions, Value::Object(body));
        let answer = answer(&request, &[drawn(&request, &[" a b"], FinishReason::EndOfText)]);
        assert_eq!(answer["choices"][0]["token_ids"], json!(ids));
        answer["choices"][0].clone()
    };
    let all = recorded_by(&json!({"return_kept": "ids", "return_entropy": true}));
    let records: Vec<SampledToken> = ids.iter().map(|&id| recorded(id, &all)).collect();
    let of_drawn = |of: &dyn Fn(&Drawn) -> Value| -> Value {
        records.iter().map(|record| of(record.drawn.as_ref().expect("it is asked for"))).collect()
    };
    let counts = of_drawn(&|drawn| json!(drawn.kept));
    let lowest = of_drawn(&|drawn| json!(f64::from(drawn.lowest)));
    assert!(of(json!({})).as_object().is_some_and(|choice| !choice.contains_key("kept")));
    assert_eq!(of(json!({"return_kept": "count"}))["kept"], json!({"counts": counts, "lowest": lowest}));
    let listed = of(json!({"return_kept": "ids"}));
    assert_eq!(listed["kept"]["ids"], of_drawn(&|drawn| json!(drawn.ids)));
    assert!(listed["kept"].as_object().is_some_and(|kept| kept.len() == 3) && listed["logprobs"].is_null());
    let masked = of(json!({"return_kept": "mask", "return_entropy": true}));
    let bits = |mask: &Value| -> Option<Vec<u32>> {
        let bytes = STANDARD.decode(mask.as_str()?).expect("base64");
        Some((0..8 * bytes.len() as u32).filter(|&id| bytes[id as usize / 8] >> (id % 8) & 1 == 1).collect())
    };
    let masks: Value =
        masked["kept"]["masks"].as_array().expect("a list").iter().map(|mask| json!(bits(mask))).collect();
    assert_eq!(masks, listed["kept"]["ids"], "a mask has the bits of the ids, and is null where they are");
    let entropies: Value = records.iter().map(|record| json!(record.entropy.map(f64::from))).collect();
    assert_eq!(masked["entropies"], entropies);
    let confidences: Value = ids.iter().map(|id| json!(f64::from(id.0) / 32.0)).collect();
    assert_eq!(of(json!({"return_confidence": 3}))["confidences"], confidences);
    let ending = of(json!({"confidence_stop": {"window": 4, "below": 1.5}}));
    assert!(ending.get("confidences").is_none(), "they are not asked for");
    let forced: Value = ids.iter().map(|id| json!(id.0.is_multiple_of(2))).collect();
    assert_eq!(of(json!({"guided_regex": "a*"}))["forced"], forced);
    assert!(masked.get("forced").is_none(), "there is no form");
}

/// What is told of forced tokens is told where tokens are.
#[test]
fn forced_tokens_are_marked_where_tokens_are_shown() {
    for (fields, is_told) in [
        (json!({}), false),
        (json!({"logprobs": 1}), false),
        (json!({"return_kept": "count"}), true),
        (json!({"return_entropy": true}), true),
        (json!({"return_confidence": 3}), true),
        (json!({"return_token_ids": true}), true),
    ] {
        let mut body = object(json!({"prompt": "q", "guided_choice": ["a", "b"]}));
        body.extend(object(fields.clone()));
        let request = request(Endpoint::Completions, Value::Object(body));
        for (reason, word) in [
            (FinishReason::LowConfidence, "low_confidence"),
            (FinishReason::DeadEnd, "dead_end"),
            (FinishReason::FormLimit, "form_limit"),
        ] {
            let answer = answer(&request, &[drawn(&request, &[" a"], reason)]);
            let choice = &answer["choices"][0];
            assert_eq!(choice.get("forced").is_some(), is_told, "{fields}");
            assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("length"), &json!(word)));
        }
    }
}

/// A token of which something is not recorded has null in every list, and the tokens behind it keep their places.
#[test]
fn no_record_moves_to_another_token() {
    for form in ["ids", "mask"] {
        let asks = json!({"prompt": "q", "return_token_ids": true, "return_kept": form, "return_entropy": true,
            "logprobs": 0, "logprobs_mode": "processed_logprobs"});
        let request = request(Endpoint::Completions, asks);
        let whole = drawn(&request, &[" a b c"], FinishReason::EndOfText);
        let mut lacking = drawn(&request, &[" a b c"], FinishReason::EndOfText);
        let finish = &mut lacking.drawn[0];
        let unknown = |at: usize, record: SampledToken| match at {
            1 => SampledToken { drawn: None, entropy: None, ..record },
            _ => record,
        };
        let records = finish.records.of_tokens(0, finish.tokens.iter().copied()).map(SampledToken::from);
        finish.records = records.enumerate().map(|(at, record)| unknown(at, record)).collect();
        let choices = [whole, lacking].map(|candidates| answer(&request, &[candidates])["choices"][0].clone());
        let [whole, lacking] = &choices;
        let lists = |choice: &Value| {
            let (kept, logprobs) = (&choice["kept"], &choice["logprobs"]["token_logprobs"]);
            let named =
                [&kept["counts"], &kept["lowest"], &kept["ids"], &kept["masks"], &choice["entropies"], logprobs];
            let lists = named.into_iter().filter(|list| !list.is_null());
            lists.map(|list| list.as_array().expect("a list").clone()).collect::<Vec<_>>()
        };
        for (whole, lacking) in lists(whole).iter().zip(&lists(lacking)) {
            assert_eq!(whole.len(), finish_tokens(&choices[0]));
            for (at, (whole, lacking)) in whole.iter().zip(lacking).enumerate() {
                assert_eq!(lacking, if at == 1 { &Value::Null } else { whole }, "{form}: token {at}");
            }
            assert_eq!(whole.len(), lacking.len());
        }
        assert_eq!(lists(lacking).len(), 5);
    }
}

/// The number of a choice's tokens.
fn finish_tokens(choice: &Value) -> usize {
    choice["token_ids"].as_array().expect("it is asked for").len()
}

/// `routed_experts` is a .npy file as numpy writes it: magic bytes, the length of its head, the head, padded so that
/// the numbers begin at a multiple of 64, and these.
#[test]
fn experts_are_an_array_of_numpy() {
    let of = |body: Value| {
        let request = routed_request(Endpoint::Completions, body);
        let tokens = request.prompts[0].tokens.len() + encode(" a b").len();
        let answer = answer(&request, &[drawn(&request, &[" a b"], FinishReason::EndOfText)]);
        (answer["choices"][0]["routed_experts"].clone(), tokens)
    };
    for start in [0, 2] {
        let (experts, tokens) = of(json!({"prompt": "q r s", "routed_experts_prompt_start": start}));
        let file = STANDARD.decode(experts.as_str().expect("text")).expect("base64");
        assert_eq!(&file[..8], b"\x93NUMPY\x01\x00");
        let numbers = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
        assert_eq!((numbers % 64, file[numbers - 1]), (0, b'\n'));
        let head = std::str::from_utf8(&file[10..numbers]).expect("ASCII").trim_end();
        let shape = format!("({}, 2, 3)", tokens - start);
        assert_eq!(head, format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"));
        assert_eq!(file[numbers..], routes(tokens).bytes(start));
    }
    assert!(of(json!({"prompt": "q", "return_routed_experts": false})).0.is_null());
}

fn recorded_by(fields: &Value) -> SamplingParams {
    let mut body = json!({"prompt": "q"});
    body.as_object_mut().expect("an object").extend(object(fields.clone()));
    request(Endpoint::Completions, body).params
}

#[test]
fn log_probabilities_are_those_of_the_mode() {
    for endpoint in [Endpoint::Completions, Endpoint::Chat] {
        let shown = |mode: Option<&str>| {
            let mut body = match endpoint {
                Endpoint::Completions => json!({"prompt": "q", "logprobs": 0, "logprobs_mode": mode}),
                Endpoint::Chat => json!({"messages": messages("q"), "logprobs": true, "logprobs_mode": mode}),
            };
            body["return_tokens_as_token_ids"] = json!(true);
            let request = request(endpoint, body);
            let answer = answer(&request, &[drawn(&request, &[" a b"], FinishReason::EndOfText)]);
            let logprobs = &answer["choices"][0]["logprobs"];
            match endpoint {
                Endpoint::Completions => logprobs["token_logprobs"].clone(),
                Endpoint::Chat => logprobs["content"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(|token| token["logprob"].clone())
                    .collect(),
            }
        };
        let ids = [encode(" a b"), vec![END_OF_TEXT]].concat();
        let own: Value = ids.iter().map(|&id| json!(f64::from(sampled(id, None).logprob))).collect();
        let drawn: Value = ids.iter().map(|&id| json!(f64::from(sampled(id, None).logprob / 2.0))).collect();
        assert_eq!((shown(None), shown(Some("raw_logprobs"))), (own.clone(), own));
        assert_eq!(shown(Some("processed_logprobs")), drawn);
    }
}

#[test]
fn the_best_candidates_are_returned() {
    let request = request(Endpoint::Completions, json!({"prompt": "a", "best_of": 3, "n": 2}));
    let mut candidates = drawn(&request, &["x", "y", "z"], FinishReason::Length);
    for (finish, logprob) in candidates.drawn.iter_mut().zip([-3.0, -1.0, -2.0]) {
        finish.logprob = logprob;
    }
    let answer = answer(&request, &[candidates]);
    assert_eq!([0, 1].map(|at| &answer["choices"][at]["text"]), [&json!("y"), &json!("z")]);
}

#[test]
fn a_special_token_in_a_stop_string_cuts_the_text_where_special_tokens_show() {
    let body = json!({"prompt": "a", "stop": ["b<|end_of_text|>"], "skip_special_tokens": false, "logprobs": 0});
    let request = request(Endpoint::Completions, body);
    let answer = answer(&request, &[drawn(&request, &["ab<|end_of_text|>c"], FinishReason::Length)]);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("a"), &json!("stop")));
    assert_eq!(choice["stop_reason"], "b<|end_of_text|>");
    let sampled = encode("ab<|end_of_text|>");
    assert_eq!(answer["usage"]["completion_tokens"], sampled.len(), "nothing is sampled behind the stop string");
    let texts: Vec<Value> =
        sampled.iter().map(|&token| json!(super::super::logprobs::token_text(tokenizer(), token))).collect();
    assert_eq!(choice["logprobs"]["tokens"], json!(texts), "only the text is cut");
}

#[test]
fn scored_continuations_have_their_sums() {
    let body = json!({"prompt": "ab", "choices": [" c", " d e"], "logprobs": 1});
    let request = request(Endpoint::Completions, body);
    assert_eq!(request.best_of, 0);
    let prompt = &request.prompts[0];
    let scored = |at: usize, shift: u32| {
        let tokens = prompt.choices[at].tokens.iter();
        let tokens = tokens.map(|&token| SampledToken { token, ..sampled(TokenId(token.0 + shift), Some(1)) });
        finish(tokens.collect::<Vec<_>>().iter(), FinishReason::Given, String::new())
    };
    // The second continuation is nowhere the likeliest. Its scores come with a token of the prompt before them.
    let before = SampledToken { top: vec![(TokenId(3), -0.5)], ..SampledToken::of(TokenId(3), -9.0) };
    let mut records: TokenRecords = [before].into_iter().collect();
    let behind = scored(1, 1);
    records.append(behind.records.clone());
    let longer = Finish { records, ..behind };
    let sum: f64 = longer.logprobs()[1..].iter().map(|&logprob| f64::from(logprob)).sum();
    let count = prompt.choices[1].tokens.len();
    let candidates = PromptCandidates { choices: vec![scored(0, 0), longer], cached: 1, ..PromptCandidates::default() };
    let answer = answer(&request, &[candidates]);
    let score = |at: usize, field: &str| &answer["choices"][at]["score"][field];
    assert_eq!((score(0, "is_greedy"), score(1, "is_greedy")), (&json!(true), &json!(false)));
    assert_eq!(score(1, "logprob"), &json!(sum));
    assert_eq!(score(1, "logprob_per_token"), &json!(sum / count as f64));
    assert_eq!(score(1, "logprob_per_byte"), &json!(sum / 4.0));
    assert_eq!((score(1, "tokens"), score(1, "bytes")), (&json!(count), &json!(4)));
    assert_eq!((&answer["choices"][1]["text"], &answer["choices"][1]["index"]), (&json!(" d e"), &json!(1)));
    assert_eq!(answer["choices"][1]["logprobs"]["token_logprobs"].as_array().expect("a list").len(), count);
    let given = prompt.tokens.len() + prompt.choices.iter().map(|choice| choice.tokens.len()).sum::<usize>();
    assert_eq!(answer["usage"]["prompt_tokens"], given, "the prompt counts once");
    assert_eq!((&answer["usage"]["completion_tokens"], &answer["usage"]["total_tokens"]), (&json!(0), &json!(given)));
}

/// A chat's continuations are messages; kept ones name their branches.
#[test]
fn continuations_of_a_chat_are_scored_and_kept() {
    let body = json!({"messages": messages("a"), "choices": [" c", " d e"], "keep": true, "return_token_ids": true,
        "logprobs": true, "top_logprobs": 1});
    let request = request(Endpoint::Chat, body);
    let prompt = &request.prompts[0];
    let scored = |at: usize| {
        let tokens: Vec<_> = prompt.choices[at].tokens.iter().map(|&token| sampled(token, Some(1))).collect();
        finish(tokens.iter(), FinishReason::Given, String::new())
    };
    let mut results = PromptResults::default();
    for at in [1, 0] {
        results.add(at, scored(at), Some(format!("br-{at}")));
    }
    let answer = answer(&request, &[results.candidates(&request, 0, 0)]);
    assert_eq!(answer["prompt_token_ids"], json!(prompt.tokens), "beside the choices, once");
    for (at, text) in [" c", " d e"].iter().enumerate() {
        let choice = &answer["choices"][at];
        assert_eq!((&choice["message"]["content"], &choice["message"]["role"]), (&json!(text), &json!("assistant")));
        assert_eq!(choice["branch"], format!("br-{at}"));
        assert_eq!(choice["token_ids"], json!(prompt.choices[at].tokens));
        assert_eq!(choice["logprobs"]["content"].as_array().expect("a list").len(), prompt.choices[at].tokens.len());
        assert_eq!(choice["score"]["is_greedy"], true);
        assert!(choice.get("prompt_token_ids").is_none() && choice.get("text").is_none());
    }
}

/// Tokens without a text of their own have names of their own.
#[test]
fn log_probabilities_name_tokens_by_id_where_asked() {
    let fields = json!({"return_tokens_as_token_ids": true, "return_token_ids": true});
    let text = " é€";
    let names = |ids: &Value| -> Vec<Value> {
        ids.as_array().expect("a list").iter().map(|id| json!(format!("token_id:{id}"))).collect()
    };
    let mut body = json!({"prompt": "a", "logprobs": 2});
    body.as_object_mut().expect("an object").extend(object(fields.clone()));
    let completion = request(Endpoint::Completions, body);
    let found = answer(&completion, &[drawn(&completion, &[text], FinishReason::EndOfText)]);
    let choice = &found["choices"][0];
    assert_eq!(choice["logprobs"]["tokens"], json!(names(&choice["token_ids"])));
    for (top, name) in
        choice["logprobs"]["top_logprobs"].as_array().expect("a list").iter().zip(names(&choice["token_ids"]))
    {
        let top = top.as_object().expect("an object");
        assert!(top.keys().all(|key| key.starts_with("token_id:")) && top.contains_key(name.as_str().expect("a text")));
        assert_eq!(top.len(), 2, "no two tokens share a name");
    }
    let mut body = json!({"messages": messages("a"), "logprobs": true, "top_logprobs": 2});
    body.as_object_mut().expect("an object").extend(object(fields));
    let chat = request(Endpoint::Chat, body);
    let found = answer(&chat, &[drawn(&chat, &[text], FinishReason::EndOfText)]);
    let choice = &found["choices"][0];
    let content = choice["logprobs"]["content"].as_array().expect("a list");
    assert_eq!(content.iter().map(|token| token["token"].clone()).collect::<Vec<_>>(), names(&choice["token_ids"]));
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("a list"))
        .map(|byte| byte.as_u64().expect("a number") as u8)
        .collect();
    assert!(String::from_utf8_lossy(&bytes).starts_with(text), "the bytes are the text's");
}

#[test]
fn reasoning_is_split_off_or_kept() {
    let ask = |reasoning: &str, thinks: bool| {
        let kwargs = json!({ "thinks": thinks });
        let body = json!({"messages": messages("a"), "reasoning": reasoning, "chat_template_kwargs": kwargs});
        let request = request(Endpoint::Chat, body);
        let text = if thinks { "so</think>yes" } else { "<think>so</think>yes" };
        answer(&request, &[drawn(&request, &[text], FinishReason::EndOfText)])["choices"][0]["message"].clone()
    };
    for thinks in [true, false] {
        let split = ask("split", thinks);
        assert_eq!((&split["content"], &split["reasoning_content"]), (&json!("yes"), &json!("so")));
    }
    let kept = ask("keep", false);
    assert_eq!((&kept["content"], kept.get("reasoning_content")), (&json!("<think>so</think>yes"), None));
}

/// The marks are special tokens, but a text shows them; only the final channel is content, unless a request says
/// otherwise.
#[test]
fn models_that_answer_in_channels_have_reasoning_apart() {
    let demo = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
    let cases: [(&[&str], &str, &str, &str); 2] = [
        (
            &["<|channel|>", "<|message|>", "<|end|>", "<|start|>"],
            "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>yes",
            "so",
            "yes",
        ),
        (&["<|channel>", "<channel|>"], "<|channel>thought\nso<channel|>yes", "so", "yes"),
    ];
    for (marks, text, reasoning, content) in cases {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let read = |name: &str| std::fs::read(demo.join(name)).expect("the demo model is part of the project");
        let mut tokens: Value = serde_json::from_slice(&read("tokenizer.json")).expect("JSON");
        let added = tokens["added_tokens"].as_array_mut().expect("a list");
        for (id, mark) in (1024..).zip(marks) {
            added.push(json!({"id": id, "content": mark, "special": true, "normalized": false, "lstrip": false,
                "rstrip": false, "single_word": false}));
        }
        std::fs::write(folder.path().join("tokenizer.json"), tokens.to_string()).expect("the folder is writable");
        std::fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).expect("the folder is writable");
        let tokenizer = std::sync::Arc::new(Tokenizer::load(folder.path()).expect("a whole tokenizer"));
        let encoded = tokenizer.encode(text, AddSpecial::No).expect("plain text");
        assert_eq!(tokenizer.decode(&encoded), text);
        let config = &MODEL.1;
        let reader = RequestReader {
            tokenizer: &tokenizer,
            config,
            model: "demo",
            names: &AnyName,
            seed: 5,
            limits: &ProtocolLimits::default(),
            reasoning: Reasoning::Keep,
            logprobs_mode: LogprobsMode::default(),
            priority: offshoot_engine::Priority::default(),
            keeps_routes: false,
        };
        let asked = |fields: Value| {
            let mut body = object(json!({"messages": [{"role": "user", "content": "a"}]}));
            body.extend(object(fields));
            reader.read(Endpoint::Chat, &body).unwrap_or_else(|refusal| panic!("{}", refusal.message)).reasoning
        };
        assert_eq!(asked(json!({})), Reasoning::Split);
        assert_eq!(asked(json!({"reasoning": "keep"})), Reasoning::Keep);
        let mut splitter = ReasoningSplitter::new(TextStart::Answer);
        let split = splitter.push_last(text);
        assert_eq!((&*split.reasoning, &*split.content), (reasoning, content));
    }
}
