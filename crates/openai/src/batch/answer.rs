//! Lines of the output file: each holds a response, or the reason why the request was refused.

use serde_json::{Value, json};

use super::input::{Call, InputLine};
use super::origin::{AnswerOrigin, name_of};
use super::request::LineRequest;
use crate::protocol::{AnswerHead, PromptCandidates, Refusal, response};
use offshoot_text::Tokenizer;

/// One line of the output.
pub struct BatchAnswer {
    pub line: Value,
    /// The reason, if the request was refused.
    pub refusal: Option<Refusal>,
}

impl BatchAnswer {
    /// As OpenAI's servers answer a request that they refuse.
    pub fn refused(line: &InputLine, refusal: Refusal, origin: &AnswerOrigin) -> Self {
        let place = format!("{} {:?}", line.index, line.custom_id);
        let request_id = line.call.as_ref().map_or_else(|_| name_of("req_", &place), |call| origin.request_id(call));
        let line = json!({
            "id": name_of("batch_req_", &place),
            "custom_id": line.custom_id,
            "response": { "status_code": refusal.status(), "request_id": request_id, "body": refusal.body() },
            "error": null,
        });
        BatchAnswer { line, refusal: Some(refusal) }
    }

    /// The answer to `call`; `candidates`: the candidates of each of the request's prompts.
    pub fn of(
        call: &Call,
        request: &LineRequest,
        candidates: &[PromptCandidates],
        origin: &AnswerOrigin,
        tokenizer: &Tokenizer,
        created: u64,
    ) -> Self {
        let id = name_of(request.endpoint.id_prefix(), &request.custom_id);
        let head = AnswerHead { id, created, system_fingerprint: origin.system_fingerprint.clone() };
        let body = response(request, candidates, &head, tokenizer);
        let line = json!({
            "id": name_of("batch_req_", &request.custom_id),
            "custom_id": request.custom_id,
            "response": { "status_code": 200, "request_id": origin.request_id(call), "body": body },
            "error": null,
        });
        BatchAnswer { line, refusal: None }
    }
}
