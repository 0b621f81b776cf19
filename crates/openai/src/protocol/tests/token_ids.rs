//! Token ids in and out, and the fields that trainers send.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::{
    AnswerHead, Endpoint, ExpertIds, PromptCandidates, ProtocolRequest, Refusal, TokenAnswer, response,
};
use super::{events, object, read, request, routes, tokenizer, with_form, with_reader};
use crate::protocol::ProtocolLimits;
use offshoot_core::ids::{TokenId, WeightVersion};
use offshoot_engine::{Finish, FinishReason, TokenRoutes, WeightSpan};
use offshoot_form::Form;

fn of_tokens(body: Value) -> Result<ProtocolRequest, Refusal> {
    with_reader(&ProtocolLimits::default(), |reader| reader.encode_tokens(reader.read_tokens(&object(body))?))
        .and_then(with_form)
}

/// A sample of these tokens, all but the first `old` of them under other weights.
fn sample(request: &ProtocolRequest, tokens: &[u32], old: usize, end: FinishReason) -> Finish {
    let tokens: Vec<TokenId> = tokens.iter().map(|&token| TokenId(token)).collect();
    let (_, finish) = events(request, 0, &tokens, end);
    let spans = [(0, 0), (1, old)].map(|(version, from)| WeightSpan { version: WeightVersion(version), from });
    Finish { weights: spans.into(), ..finish }
}

#[test]
fn what_trainers_send_is_taken() {
    let told = json!({"token_ids": [5, 6], "model": "demo", "cache_salt": "3", "priority": 2, "request_id": "r1",
        "features": null, "stream": false, "output_mode": "tokens", "return_token_ids": true, "sampling_params": {
            "n": 2, "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": null, "logprobs": 1, "seed": 7,
            "stop_token_ids": [1], "skip_special_tokens": false, "output_kind": 2, "detokenize": false,
            "routed_experts_prompt_start": 0, "structured_outputs": {"regex": "a+"}}});
    let request = of_tokens(told).expect("it is right");
    assert_eq!(request.params.form.map(|form| form.form), Some(Form::Regex("a+".to_owned()).into()));
    assert_eq!((request.n, request.request_id.as_deref()), (2, Some("r1")));
    assert_eq!(request.prompts[0].tokens, [TokenId(5), TokenId(6)]);
    assert!(request.prompts[0].is_unlimited, "the context is the limit");
    let limited = of_tokens(json!({"token_ids": [5], "sampling_params": {"max_tokens": 3}})).expect("it is right");
    assert_eq!((limited.prompts[0].stop.max_tokens, limited.prompts[0].is_unlimited), (3, false));
    // What completions take beside.
    for (field, fine, wrong) in [
        ("structured_outputs", json!({"regex": null}), json!([])),
        ("truncation_side", json!("left"), json!("right")),
        ("logprob_token_ids", json!([]), json!([5])),
        ("routed_experts_prompt_start", json!(0), json!(3)),
    ] {
        let with = |value: Value| {
            let mut body = json!({"prompt": "a", "session_id": "x"});
            body[field] = value;
            read(Endpoint::Completions, body)
        };
        assert!(with(fine).is_ok(), "{field}");
        assert_eq!(with(wrong).expect_err("it is not supported").param.as_deref(), Some(field));
    }
}

#[test]
fn each_token_of_an_answer_is_named_and_has_its_weights() {
    let told = json!({"token_ids": [5, 6], "return_token_ids": true, "sampling_params": {"logprobs": 2, "n": 2}});
    let request = of_tokens(told).expect("it is right");
    let ended = sample(&request, &[20, 21, 22], 3, FinishReason::EndOfText);
    let aborted = sample(&request, &[30], 1, FinishReason::Aborted);
    let candidates = PromptCandidates { drawn: vec![ended, aborted], ..PromptCandidates::default() };
    let head = AnswerHead { id: "gen-1".to_owned(), created: 7, ..AnswerHead::default() };
    head.labels.set(WeightVersion(1), "step 9");
    let answer = TokenAnswer::new(&request, &candidates, &head, tokenizer(), ExpertIds::OfModel);
    let answer = serde_json::to_value(answer).expect("keys are strings");
    assert_eq!((&answer["request_id"], &answer["prompt_token_ids"]), (&json!("gen-1"), &json!([5, 6])));
    let [ended, aborted] = [0, 1].map(|index| &answer["choices"][index]);
    // The token that ended it is one of them.
    assert_eq!((&ended["token_ids"], &ended["finish_reason"]), (&json!([20, 21, 22, 1]), &json!("stop")));
    assert_eq!((&aborted["token_ids"], &aborted["finish_reason"]), (&json!([30]), &json!("abort")));
    let content = ended["logprobs"]["content"].as_array().expect("a list");
    let names: Vec<&Value> = content.iter().map(|entry| &entry["token"]).collect();
    assert_eq!(names, ["token_id:20", "token_id:21", "token_id:22", "token_id:1"]);
    for entry in content {
        let top = entry["top_logprobs"].as_array().expect("a list");
        let own = top.iter().filter(|rival| rival["token_id"] == entry["token_id"]).count();
        assert!(own == 1 && top.iter().all(|rival| rival["logprob"].is_number()), "{entry}");
    }
    let spans = json!([{"version": "0", "start": 0, "end": 3}, {"version": "step 9", "start": 3, "end": 4}]);
    assert_eq!(ended["weight_versions"], spans);
    assert!(ended["routed_experts"].is_null());
}

#[test]
fn experts_are_raw_numbers_with_their_shape() {
    let mut request = of_tokens(json!({"token_ids": [5, 6], "sampling_params": {}})).expect("it is right");
    request.routes = Some(1);
    let drawn = sample(&request, &[20, 21], 2, FinishReason::Length);
    let of = |experts: TokenRoutes, ids| {
        let drawn = vec![Finish { routes: Some(experts), ..drawn.clone() }];
        let candidates = PromptCandidates { drawn, ..PromptCandidates::default() };
        let head = AnswerHead::default();
        serde_json::to_string(&TokenAnswer::new(&request, &candidates, &head, tokenizer(), ids)).expect("JSON")
    };
    let large = |highest: usize| -> TokenRoutes {
        let ids: Vec<usize> = (0..9).map(|i| i * highest / 8).collect();
        let fields = json!({"ids": ids, "expert_layers": [1], "layers": 2, "chosen": 3, "experts": 300});
        serde_json::from_value(fields).expect("its fields")
    };
    // Clients look for these letters.
    let has = |answer: String, bytes: &[u8], dtype: &str| {
        let data = STANDARD.encode(bytes);
        let expected = format!(r#""routed_experts":{{"data":"{data}","shape":[2,2,3],"start":1,"dtype":"{dtype}"}}"#);
        assert!(answer.contains(&expected), "{answer}");
    };
    for ids in [ExpertIds::OfModel, ExpertIds::OfAnswer] {
        has(of(routes(3), ids), &routes(3).bytes(1), "uint8");
    }
    has(of(large(299), ExpertIds::OfModel), &large(299).bytes(1), "uint16");
    has(of(large(299), ExpertIds::OfAnswer), &large(299).bytes(1), "int16");
    let small = [0, 0, 0, 75, 100, 125, 0, 0, 0, 150, 175, 200];
    has(of(large(200), ExpertIds::OfAnswer), &small, "uint8");
}

/// A set that is too large to be listed leaves a sample without its mask: a client takes an entry for a list.
#[test]
fn a_sampling_mask_has_a_list_for_each_token_or_there_is_none() {
    let of = |asked: Value, tokens: &[u32]| {
        let params = json!({"return_kept": asked});
        let request = of_tokens(json!({"token_ids": [5, 6], "sampling_params": params})).expect("it is right");
        let drawn = vec![sample(&request, tokens, 1, FinishReason::Length)];
        let candidates = PromptCandidates { drawn, ..PromptCandidates::default() };
        let head = AnswerHead::default();
        let answer = TokenAnswer::new(&request, &candidates, &head, tokenizer(), ExpertIds::OfModel);
        serde_json::to_value(answer).expect("keys are strings")["choices"][0]["sampling_mask"].clone()
    };
    assert_eq!(of(json!("ids"), &[21, 22]), json!([[21, 30], [22, 31]]));
    // Of the token 20 none are listed.
    assert_eq!(of(json!("ids"), &[21, 20]), Value::Null);
    assert_eq!(of(json!("count"), &[21, 22]), Value::Null);
    assert_eq!(of(Value::Null, &[21, 22]), Value::Null);
}

#[test]
fn a_choice_says_its_weights_if_it_is_asked_or_they_changed() {
    let versions = |asked: bool, old: usize, both: bool| {
        let asks = json!({"prompt": "a", "max_tokens": 2, "return_weight_versions": asked});
        let request = request(Endpoint::Completions, asks);
        let mut sample = sample(&request, &[20, 21], old, FinishReason::Length);
        if !both {
            sample.weights.truncate(1);
        }
        let candidates = [PromptCandidates { drawn: vec![sample], ..PromptCandidates::default() }];
        let head = AnswerHead::default();
        let response = response(&request, &candidates, &head, tokenizer());
        serde_json::to_value(response).expect("keys are strings")["choices"][0].get("weight_versions").cloned()
    };
    assert_eq!(versions(false, 1, false), None);
    assert_eq!(versions(true, 1, false), Some(json!([{"version": "0", "start": 0, "end": 2}])));
    let both = json!([{"version": "0", "start": 0, "end": 1}, {"version": "1", "start": 1, "end": 2}]);
    assert_eq!(versions(false, 1, true), Some(both));
}
