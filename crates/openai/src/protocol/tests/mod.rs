//! The protocol on the bundled model's tokenizer, with a chat template beside it. No engine runs: samples are made up
//! as the engine would report them.

mod answers;
mod forms;
mod lists;
mod pooling;
mod reading;
mod responses;
mod streams;
mod token_ids;
mod tools;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::{
    CallGrammars, Endpoint, ModelNames, ProtocolLimits, ProtocolRequest, Reasoning, Refusal, RequestReader, TextPrompt,
};
use offshoot_core::ids::{AdapterVersion, TokenId};
use offshoot_engine::{
    Drawn, Finish, FinishReason, LogprobsMode, Records, SampledToken, SamplingParams, Stop, TokenRoutes,
};
use offshoot_form::COMPILE_WAIT;
use offshoot_model::{ModelConfig, ModelFolder};
use offshoot_text::{AddSpecial, StopMatcher, Tokenizer};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}\
    {% if add_generation_prompt %}[assistant]{{ ' <think>' if thinks else '' }}{% endif %}";

static MODEL: LazyLock<(Arc<Tokenizer>, ModelConfig)> = LazyLock::new(|| {
    let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"] {
        std::fs::copy(demo.join(name), folder.path().join(name)).expect("the demo model is part of the project");
    }
    std::fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).expect("the folder is writable");
    let tokenizer = Tokenizer::load(folder.path()).expect("the files of the demo model");
    let config = ModelFolder::open(&demo).expect("the demo model is part of the project").config;
    (Arc::new(tokenizer), config)
});

fn tokenizer() -> &'static Arc<Tokenizer> {
    &MODEL.0
}

/// A model `demo`, and its adapter `tuned`.
struct Names;

impl ModelNames for Names {
    fn adapter_of(&self, model: &str) -> Result<Option<AdapterVersion>, Refusal> {
        match model {
            "demo" => Ok(None),
            "tuned" => Ok(Some(AdapterVersion(7))),
            _ => Err(Refusal::model_not_found(model, &["demo".to_owned(), "tuned".to_owned()])),
        }
    }
}

fn with_reader<T>(limits: &ProtocolLimits, act: impl FnOnce(&RequestReader<'_>) -> T) -> T {
    let (tokenizer, config) = &*MODEL;
    act(&RequestReader {
        tokenizer,
        config,
        model: "demo",
        names: &Names,
        seed: 5,
        limits,
        reasoning: Reasoning::Keep,
        logprobs_mode: LogprobsMode::default(),
        priority: offshoot_engine::Priority::default(),
        keeps_routes: false,
    })
}

fn object(body: Value) -> Map<String, Value> {
    body.as_object().expect("an object").clone()
}

/// The request with its form as samples have it.
fn with_form<P>(request: ProtocolRequest<P>) -> Result<ProtocolRequest<P>, Refusal> {
    let mut request = request;
    let form = request
        .form
        .as_ref()
        .map(|form| form.sample_form(tokenizer(), &CallGrammars::default(), Instant::now() + COMPILE_WAIT));
    request.params.form = form.transpose()?;
    Ok(request)
}

fn read(endpoint: Endpoint, body: Value) -> Result<ProtocolRequest<TextPrompt>, Refusal> {
    with_reader(&ProtocolLimits::default(), |reader| reader.read(endpoint, &object(body)))
}

/// The request in tokens.
fn request(endpoint: Endpoint, body: Value) -> ProtocolRequest {
    with_reader(&ProtocolLimits::default(), |reader| reader.encode(reader.read(endpoint, &object(body))?))
        .and_then(with_form)
        .unwrap_or_else(|refusal| panic!("{}", refusal.message))
}

/// The request in tokens, to a server that keeps the tokens' experts.
fn routed_request(endpoint: Endpoint, body: Value) -> ProtocolRequest {
    let limits = ProtocolLimits::default();
    let read = |reader: &RequestReader<'_>| {
        let reader = RequestReader { keeps_routes: true, ..*reader };
        reader.encode(reader.read(endpoint, &object(body))?)
    };
    with_reader(&limits, read).unwrap_or_else(|refusal| panic!("{}", refusal.message))
}

/// Made-up experts of so many tokens: 3 of 8 in the last of two layers.
fn routes(tokens: usize) -> TokenRoutes {
    let ids: Vec<usize> = (0..3 * tokens).map(|i| i % 8).collect();
    let fields = json!({ "ids": ids, "expert_layers": [1], "layers": 2, "chosen": 3, "experts": 8 });
    serde_json::from_value(fields).expect("its fields")
}

fn encode(text: &str) -> Vec<TokenId> {
    tokenizer().encode(text, AddSpecial::No).expect("plain text")
}

/// The token that ends a made-up sample with [`FinishReason::EndOfText`].
const END_OF_TEXT: TokenId = TokenId(1);

/// Made-up log-probabilities of a token, and of `top` others in its place.
fn sampled(token: TokenId, top: Option<usize>) -> SampledToken {
    let logprob = |rank: usize| -0.1 - token.0 as f32 / 64.0 - rank as f32;
    let rivals = (0..top.unwrap_or(0)).map(|rank| (TokenId((token.0 + rank as u32) % 1024), logprob(rank)));
    let rank = top.and_then(|_| NonZeroU32::new(1));
    SampledToken { rank, top: rivals.collect(), ..SampledToken::of(token, logprob(0)) }
}

/// A made-up record of a token, as far as `params` ask for one. Every fifth token's set is too large to be listed, and
/// a form forces every second one.
fn recorded(token: TokenId, params: &SamplingParams) -> SampledToken {
    let Records { kept_ids, entropy, confidence, .. } = params.records;
    let is_drawn = params.records.of_drawn() || params.logprobs_mode == LogprobsMode::ProcessedLogprobs;
    let plain = sampled(token, params.top_logprobs);
    let (logprob, lowest) = (plain.logprob / 2.0, -1.0 - token.0 as f32 / 32.0);
    let few = (!token.0.is_multiple_of(5)).then(|| vec![token, TokenId(token.0 + 9)]);
    let drawn = Drawn { logprob, kept: few.as_ref().map_or(2000, |_| 2), lowest, ids: few.filter(|_| kept_ids) };
    let entropy = entropy.then_some(token.0 as f32 / 64.0);
    let confidence = confidence.map(|_| token.0 as f32 / 32.0);
    let forced = params.form.is_some() && token.0.is_multiple_of(2);
    SampledToken { drawn: is_drawn.then_some(drawn), entropy, confidence, forced, ..plain }
}

/// The events of a sample of these tokens, one for each token, and its end, as the engine makes them of the request's
/// prompt: cut at a stop string.
fn events(
    request: &ProtocolRequest,
    prompt: usize,
    tokens: &[TokenId],
    end: FinishReason,
) -> (Vec<(SampledToken, String)>, Finish) {
    let prompt = &request.prompts[prompt];
    let Stop { strings, include_stop, min_tokens, show_special, .. } = &prompt.stop;
    let mut stream = match show_special {
        true => tokenizer().stream_with_special(&prompt.tokens),
        false => tokenizer().stream(&prompt.tokens),
    };
    let mut stops = StopMatcher::new(strings, *include_stop).expect("no empty string");
    let (mut events, mut shown, mut reason) = (Vec::new(), String::new(), end);
    for (count, &token) in (1..).zip(tokens) {
        let piece = stream.push(token);
        let (text, by) = match count >= *min_tokens {
            true => {
                let certain = stops.push(piece);
                (certain.text, certain.by)
            }
            false => (piece.to_owned(), None),
        };
        shown += &text;
        events.push((recorded(token, &request.params), text));
        if let Some(by) = by {
            reason = FinishReason::StopString(strings[by].clone());
            break;
        }
    }
    if !matches!(reason, FinishReason::StopString(_)) {
        shown += &stops.finish();
        shown += stream.finish();
    }
    let ending = match &reason {
        FinishReason::EndOfText => Some(END_OF_TEXT),
        FinishReason::StopToken(token) => Some(*token),
        _ => None,
    };
    let mut finish = finish(events.iter().map(|(sampled, _)| sampled), reason, shown);
    finish.stop_token = ending.map(|token| recorded(token, &request.params));
    finish.routes = request.params.routes.then(|| routes(prompt.tokens.len() + finish.sampled().saturating_sub(1)));
    finish.logprob += finish.stop_token.iter().map(|stop| f64::from(stop.logprob)).sum::<f64>();
    (events, finish)
}

fn finish<'a>(tokens: impl Iterator<Item = &'a SampledToken>, reason: FinishReason, text: String) -> Finish {
    let mut finish = Finish { text, ..Finish::empty(reason) };
    for sampled in tokens {
        finish.tokens.push(sampled.token);
        finish.logprob += f64::from(sampled.logprob);
        finish.records.push(sampled.clone());
    }
    finish
}

/// The scores of a prompt: those of all its tokens but the first.
fn scores(request: &ProtocolRequest, prompt: usize) -> Option<Finish> {
    let top = request.scored_top()?;
    let tokens: Vec<SampledToken> =
        request.prompts[prompt].tokens[1..].iter().map(|&token| sampled(token, Some(top))).collect();
    Some(finish(tokens.iter(), FinishReason::Given, String::new()))
}

fn messages(last: &str) -> Value {
    json!([{ "role": "user", "content": last }])
}
