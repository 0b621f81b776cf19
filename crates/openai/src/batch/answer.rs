//! Lines of the output file: each holds a response, the reason why the request was refused, or why it was not
//! answered before its batch ended.

use serde_json::{Value, json};

use super::input::{Call, InputLine};
use super::origin::{AnswerOrigin, name_of};
use crate::protocol::{AnswerHead, PromptCandidates, ProtocolRequest, Refusal, response};
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
        let place = place_of(line);
        let request_id = line.call.as_ref().map_or_else(|_| name_of("req_", &place), |call| origin.request_id(call));
        let line = answer_line(&place, line.custom_id.as_deref(), refusal.status(), request_id, refusal.body());
        BatchAnswer { line, refusal: Some(refusal) }
    }

    /// The answer to `call`; `candidates`: the candidates of each of the request's prompts.
    pub fn of(
        call: &Call,
        request: &ProtocolRequest,
        candidates: &[PromptCandidates],
        origin: &AnswerOrigin,
        tokenizer: &Tokenizer,
        created: u64,
    ) -> Self {
        let id = name_of(request.endpoint.id_prefix(), &call.custom_id);
        let system_fingerprint = origin.system_fingerprint.clone();
        let head = AnswerHead { id, created, system_fingerprint, ..AnswerHead::default() };
        let (body, custom_id) = (json!(response(request, candidates, &head, tokenizer)), &*call.custom_id);
        let line = answer_line(custom_id, Some(custom_id), 200, origin.request_id(call), body);
        BatchAnswer { line, refusal: None }
    }
}

/// The line of a request that was not answered when its batch ended, for the reason `code`.
pub fn unanswered(line: &InputLine, code: &str, message: &str) -> Value {
    json!({
        "id": refusal_id(line),
        "custom_id": line.custom_id,
        "response": null,
        "error": { "code": code, "message": message },
    })
}

/// `id` of the line that refuses `line`.
pub fn refusal_id(line: &InputLine) -> String {
    name_of("batch_req_", &place_of(line))
}

/// Names a line that may have no id of its own.
fn place_of(line: &InputLine) -> String {
    format!("{} {:?}", line.index, line.custom_id)
}

/// `place`: names the line among those of its file.
fn answer_line(place: &str, custom_id: Option<&str>, status: u16, request_id: String, body: Value) -> Value {
    json!({
        "id": name_of("batch_req_", place),
        "custom_id": custom_id,
        "response": { "status_code": status, "request_id": request_id, "body": body },
        "error": null,
    })
}
