//! Lines of the output file: each holds a response, the reason why the request was refused, or why it was not
//! answered before its batch ended.

use std::sync::Arc;

use serde_json::{Value, json};

use super::input::{Call, InputLine};
use super::origin::{AnswerOrigin, name_of};
use super::request::{CallRequest, CallResponse};
use crate::protocol::{AnswerHead, PromptCandidates, Refusal, ResponseWriter, response};
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
        CallRequest { request, response: asked }: CallRequest,
        candidates: &[PromptCandidates],
        origin: &AnswerOrigin,
        tokenizer: &Tokenizer,
        created: u64,
    ) -> Self {
        let id = match &asked {
            Some(_) => call.response_id(),
            None => name_of(request.endpoint.id_prefix(), &call.custom_id),
        };
        let system_fingerprint = origin.system_fingerprint.clone();
        let head = AnswerHead { id, created, system_fingerprint, ..AnswerHead::default() };
        let body = match asked {
            Some(CallResponse { call, .. }) => {
                let writer = ResponseWriter::of_whole(call, Arc::new(request), head, tokenizer);
                let mut body = whole_response(writer, candidates, created);
                // Responses of servers have none; here it tells which model an answer belongs to.
                body["system_fingerprint"] = origin.system_fingerprint.as_str().into();
                body
            }
            None => json!(response(&request, candidates, &head, tokenizer)),
        };
        let custom_id = &*call.custom_id;
        let line = answer_line(custom_id, Some(custom_id), 200, origin.request_id(call), body);
        BatchAnswer { line, refusal: None }
    }
}

/// The response of a chat's only candidate.
fn whole_response(mut writer: ResponseWriter<&Tokenizer>, candidates: &[PromptCandidates], created: u64) -> Value {
    let mut no_events = Vec::new();
    candidates.iter().flat_map(|of| of.drawn.first()).for_each(|finish| writer.finished(finish, &mut no_events));
    writer.end(candidates.iter().map(|of| of.cached).sum(), created, &mut no_events)
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
