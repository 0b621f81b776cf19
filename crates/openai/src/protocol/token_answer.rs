//! Token ids in, token ids out: the requests and answers of `/inference/v1/generate`, vLLM's path for trainers. A
//! request is read as a completion of one prompt, whose sampling parameters are the fields of `sampling_params`; the
//! answer has no texts, and names each token by its id.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Map, Value};

use super::answer::{AnswerHead, PromptCandidates};
use super::choice::{AnswerCalls, StopReason, finish_word};
use super::endpoint::Endpoint;
use super::fields::{BodyFields, brief};
use super::kept::RecordFields;
use super::logprobs::PromptLogprobs;
use super::reader::RequestReader;
use super::refusal::Refusal;
use super::request::{ProtocolRequest, TextPrompt};
use super::weight_labels::{LabelledSpan, adapter_spans};
use offshoot_core::ids::TokenId;
use offshoot_engine::{Finish, LogprobsMode, TokenRecord, TokenRoutes};
use offshoot_text::Tokenizer;

/// The path of these requests.
pub const TOKENS_PATH: &str = "/inference/v1/generate";
/// The path by which SkyRL sends them where it wants experts ([`ExpertIds::OfAnswer`]).
pub const SKYRL_PATH: &str = "/skyrl/v1/generate";

/// The fields of a request beside those that it shares with a completion.
const INPUTS: [&str; 2] = ["features", "content_parts"];

impl RequestReader<'_> {
    /// Reads a request without checking its tokens. Without `max_tokens` the context and the memory limit a sample.
    pub fn read_tokens(&self, body: &Map<String, Value>) -> Result<ProtocolRequest<TextPrompt>, Refusal> {
        let mut fields = BodyFields::new(body);
        let tokens = fields.take("token_ids").filter(|tokens| tokens.as_array().is_some_and(|list| !list.is_empty()));
        let tokens = tokens.ok_or_else(|| Refusal::value("token_ids", "a list of token ids, at least one", "none"))?;
        for key in INPUTS {
            fields.refuse(key, |value| value.as_array().is_some_and(Vec::is_empty))?;
        }
        fields.refuse("output_mode", |value| value == "tokens")?;
        fields.refuse("stream", |value| value == false)?;
        fields.object("stream_options")?;
        let params = fields.take("sampling_params");
        let expected = "an object, which may be empty";
        let Some(Value::Object(params)) = params else {
            let found = params.as_ref().map_or_else(|| "nothing".to_owned(), brief);
            return Err(Refusal::value("sampling_params", expected, &found));
        };
        let mut params = BodyFields::new(&params);
        // How an engine in the same process hands out what comes; and that texts are not wanted.
        params.count("output_kind", 0, 2)?;
        params.choice("detokenize")?;
        let mut whole = fields.into_rest();
        for (key, value) in params.into_rest() {
            if whole.insert(key.clone(), value).is_some() {
                return Err(Refusal::out_of_place(&key, "in `sampling_params` and beside it"));
            }
        }
        for key in ["prompt", "echo", "best_of", "choices", "parent", "keep"] {
            if whole.contains_key(key) {
                return Err(Refusal::unknown(key));
            }
        }
        let is_unlimited = !["max_tokens", "max_completion_tokens"].iter().any(|&key| whole.contains_key(key));
        whole.insert("prompt".to_owned(), tokens);
        let mut request = self.read(Endpoint::Completions, &whole).map_err(about_tokens)?;
        if is_unlimited {
            request.prompts.iter_mut().for_each(TextPrompt::set_unlimited);
        }
        Ok(request)
    }

    /// Checks the tokens of a request of [`RequestReader::read_tokens`].
    pub fn encode_tokens(&self, request: ProtocolRequest<TextPrompt>) -> Result<ProtocolRequest, Refusal> {
        self.encode(request).map_err(about_tokens)
    }
}

/// A refusal of a completion's prompt, which here is `token_ids`.
fn about_tokens(refusal: Refusal) -> Refusal {
    match refusal.param.as_deref() {
        Some("prompt") => {
            let message = refusal.message.replace("`prompt`", "`token_ids`");
            Refusal { message, ..refusal }.about("token_ids")
        }
        _ => refusal,
    }
}

/// A whole answer; serialises to its JSON.
#[derive(Serialize)]
pub struct TokenAnswer<'a> {
    output_mode: &'static str,
    request_id: &'a str,
    model: &'a str,
    created: u64,
    usage: TokenUsage,
    prompt_logprobs: Option<PromptLogprobs<'a>>,
    prompt_token_ids: Option<&'a [TokenId]>,
    kv_transfer_params: Option<()>,
    choices: Vec<TokenChoice<'a>>,
}

#[derive(Serialize)]
struct TokenUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

#[derive(Serialize)]
struct TokenChoice<'a> {
    index: usize,
    finish_reason: &'static str,
    stop_reason: Option<StopReason>,
    token_ids: Vec<TokenId>,
    logprobs: Option<TokenLogprobs>,
    /// By `return_routed_experts`.
    routed_experts: Option<RawExperts>,
    /// vLLM's: the ids that each token was drawn from, where they are recorded. Null for a sample with a set of more
    /// than a record lists: clients expect a list for each token.
    sampling_mask: Option<Vec<&'a [TokenId]>>,
    weight_versions: Vec<LabelledSpan>,
    /// The versions of the adapter that the request names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adapter_versions: Vec<LabelledSpan>,
    #[serde(flatten)]
    records: RecordFields,
}

/// As which numbers an answer has the experts of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertIds {
    /// Of `uint8`, or `uint16` of a model with more than 256 experts a layer: what prime-rl reads.
    OfModel,
    /// Of `uint8` where all of the answer's fit, else of `int16`: what SkyRL reads.
    OfAnswer,
}

/// The experts of a sample's tokens, as clients of token ids read them: the bytes of `[tokens, layers, chosen]` in
/// base64, from token number `start` on. They look for `data` first.
#[derive(Serialize)]
struct RawExperts {
    data: String,
    shape: [usize; 3],
    start: usize,
    dtype: &'static str,
}

impl RawExperts {
    fn new((start, routes): (usize, &TokenRoutes), ids: ExpertIds) -> Self {
        let [tokens, layers, chosen] = routes.shape();
        let bytes = routes.bytes(start);
        let (dtype, bytes) = match (routes.id_bytes(), ids) {
            (1, _) => ("uint8", bytes),
            (_, ExpertIds::OfModel) => ("uint16", bytes),
            // Little-endian, of ids far below 2^15.
            (_, ExpertIds::OfAnswer) if bytes.chunks(2).any(|id| id[1] > 0) => ("int16", bytes),
            (_, ExpertIds::OfAnswer) => ("uint8", bytes.into_iter().step_by(2).collect()),
        };
        let shape = [tokens.saturating_sub(start), layers, chosen];
        RawExperts { data: STANDARD.encode(bytes), shape, start, dtype }
    }
}

#[derive(Serialize)]
struct TokenLogprobs {
    /// One for each of the choice's `token_ids`.
    content: Vec<NamedToken>,
}

/// A token as clients of vLLM before 0.33 look for it, by `token`, and as those since do, by `token_id`.
#[derive(Serialize)]
struct NamedToken {
    token: String,
    token_id: TokenId,
    /// `null`: it is not recorded.
    logprob: Option<f64>,
    /// From 1.
    rank: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<NamedToken>>,
}

impl NamedToken {
    fn new(token: TokenId, logprob: Option<f32>, rank: Option<usize>) -> Self {
        let (token, token_id) = (format!("token_id:{token}"), token);
        NamedToken { token, token_id, logprob: logprob.map(f64::from), rank, top_logprobs: None }
    }

    /// A sampled token, with itself and the likeliest ones in its place.
    fn sampled(record: TokenRecord<'_>, mode: LogprobsMode) -> Self {
        let logprob = record.logprob_by(mode);
        let TokenRecord { token, rank, top, .. } = record;
        let rank = rank.map(|rank| rank.get() as usize);
        let rival = |(&(token, logprob), rank)| NamedToken::new(token, Some(logprob), Some(rank));
        let mut rivals: Vec<NamedToken> = top.iter().zip(1..).map(rival).collect();
        if rivals.iter().all(|rival| rival.token_id != token) {
            rivals.push(NamedToken::new(token, logprob, rank));
        }
        NamedToken { top_logprobs: Some(rivals), ..NamedToken::new(token, logprob, rank) }
    }
}

impl<'a> TokenAnswer<'a> {
    /// The answer to `request`, one of [`RequestReader::read_tokens`].
    pub fn new(
        request: &'a ProtocolRequest,
        candidates: &'a PromptCandidates,
        head: &'a AnswerHead,
        tokenizer: &'a Tokenizer,
        experts: ExpertIds,
    ) -> Self {
        let prompt = &request.prompts[0];
        let named = |record: TokenRecord<'a>| NamedToken::sampled(record, request.params.logprobs_mode);
        let kept = |record: TokenRecord<'a>| record.drawn.and_then(|drawn| drawn.ids.as_deref());
        let masks = request.params.records.kept_ids;
        let choice = |(index, drawn): (usize, &'a Finish)| TokenChoice {
            index,
            finish_reason: finish_word(&drawn.reason, AnswerCalls::None),
            stop_reason: StopReason::of(&drawn.reason),
            token_ids: drawn.sampled_ids().into_owned(),
            logprobs: request.logprobs.then(|| TokenLogprobs { content: drawn.sampled_records().map(named).collect() }),
            routed_experts: request.routes.zip(drawn.routes.as_ref()).map(|of| RawExperts::new(of, experts)),
            sampling_mask: masks.then(|| drawn.sampled_records().map(kept).collect()).flatten(),
            weight_versions: LabelledSpan::of(drawn, &head.labels),
            adapter_versions: adapter_spans(drawn),
            records: RecordFields::new(request, drawn.sampled_records()),
        };
        let completion_tokens = candidates.drawn.iter().map(Finish::sampled).sum();
        let prompt_tokens = prompt.tokens.len();
        let total_tokens = prompt_tokens + completion_tokens;
        let scored = candidates.scored.as_ref();
        let logprobs = |(top, scored)| PromptLogprobs { prompt, scored, top, tokenizer };
        TokenAnswer {
            output_mode: "tokens",
            request_id: request.request_id.as_deref().unwrap_or(&head.id),
            model: &request.model,
            created: head.created,
            usage: TokenUsage { prompt_tokens, completion_tokens, total_tokens },
            prompt_logprobs: request.prompt_logprobs.zip(scored).map(logprobs),
            prompt_token_ids: request.return_token_ids.then_some(&prompt.tokens),
            kv_transfer_params: None,
            choices: candidates.drawn.iter().enumerate().map(choice).collect(),
        }
    }
}
