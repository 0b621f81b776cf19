//! The request of one input line: the call in the engine's terms. Until its prompts are encoded, only an outline of the
//! request is kept; then its call is read again.

use std::sync::Arc;

use super::input::Call;
use super::origin::name_of;
use crate::protocol::{
    AnyName, BatchEndpoint, ChatNames, EncodedPrompt, Endpoint, ProtocolLimits, ProtocolRequest, RESPONSE_ID_PREFIX,
    Reasoning, Refusal, RequestReader, ResponseCall, TextPrompt,
};
use offshoot_engine::{LogprobsMode, Priority};
use offshoot_launch::{OutputTokens, TextKey};
use offshoot_model::ModelConfig;
use offshoot_text::Tokenizer;

/// Reads the requests of a file; `seed`: that of requests without one.
pub fn reader<'a>(tokenizer: &'a Tokenizer, config: &'a ModelConfig, model: &'a str, seed: u64) -> RequestReader<'a> {
    RequestReader {
        tokenizer,
        config,
        model,
        names: &AnyName,
        seed,
        limits: &ProtocolLimits::BATCH,
        reasoning: Reasoning::Keep,
        logprobs_mode: LogprobsMode::default(),
        priority: Priority::default(),
        keeps_routes: false,
    }
}

/// What is known of a request before its prompts are encoded.
pub struct RequestOutline {
    /// Index of its line.
    pub line: usize,
    pub branches: usize,
    /// Most tokens that its branches hold.
    pub most_tokens: usize,
    /// One for each of its prompts.
    pub prompts: Vec<PromptOutline>,
}

/// What decides when a prompt starts.
pub struct PromptOutline {
    pub key: TextKey,
    pub draws: OutputTokens,
}

impl RequestOutline {
    /// # Errors
    ///
    /// Every error of a request except those found when its prompts are encoded.
    pub fn read(reader: &RequestReader, line: usize, call: &Call) -> Result<RequestOutline, Refusal> {
        let CallRequest { request, .. } = call.read(reader)?;
        let context = reader.config.context;
        let outline = |prompt: &TextPrompt| {
            let draws = prompt.draws(request.best_of, context);
            PromptOutline { key: TextKey::of(&prompt.text), draws }
        };
        Ok(RequestOutline {
            line,
            branches: request.branches(),
            most_tokens: request.most_tokens(context),
            prompts: request.prompts.iter().map(outline).collect(),
        })
    }
}

impl Call {
    /// The request before its prompts are encoded.
    fn read(&self, reader: &RequestReader) -> Result<CallRequest<TextPrompt>, Refusal> {
        match self.endpoint {
            BatchEndpoint::Samples(endpoint) => {
                Ok(CallRequest { request: reader.read(endpoint, &self.body)?, response: None })
            }
            BatchEndpoint::Responses => {
                let call = ResponseCall::read(&self.body, &self.response_id(), false)?;
                if call.previous.is_some() {
                    let place = "in a batch: its responses are not kept, and go on from none that is";
                    return Err(Refusal::out_of_place("previous_response_id", place));
                }
                let chat = call.chat([]);
                let request = reader.read(Endpoint::Chat, &chat.body).map_err(|refusal| chat.names.refusal(refusal))?;
                Ok(CallRequest { request, response: Some(CallResponse { call: Arc::new(call), names: chat.names }) })
            }
        }
    }

    /// The request with its prompts in tokens.
    pub fn encoded(&self, reader: &RequestReader) -> Result<CallRequest, Refusal> {
        let CallRequest { request, response } = self.read(reader)?;
        match reader.encode(request) {
            Ok(request) => Ok(CallRequest { request, response }),
            Err(refusal) => Err(CallResponse::refusal(response.as_ref(), refusal)),
        }
    }

    /// The id of the response that the call asks for.
    pub fn response_id(&self) -> String {
        name_of(RESPONSE_ID_PREFIX, &self.custom_id)
    }
}

/// A call in the engine's terms.
pub struct CallRequest<P = EncodedPrompt> {
    pub request: ProtocolRequest<P>,
    /// Of a call for a response, whose chat `request` is.
    pub response: Option<CallResponse>,
}

/// The response that a call asks for.
pub struct CallResponse {
    pub call: Arc<ResponseCall>,
    names: ChatNames,
}

impl CallResponse {
    /// The refusal of a call: that of its chat, if it asks for a response.
    pub fn refusal(response: Option<&CallResponse>, refusal: Refusal) -> Refusal {
        match response {
            Some(response) => response.names.refusal(refusal),
            None => refusal,
        }
    }
}
