//! The lines of the output: each a response, or the reason why there is none.

use serde_json::{Value, json};

use super::input::{Call, Line};
use super::origin::{Origin, name_of};
use super::request::LineRequest;
use crate::openai::protocol::{AnswerHead, Candidates, Refusal, response};
use crate::tokenizer::Tokenizer;

/// One line of the output.
pub struct Answer {
    pub line: Value,
    /// Why there is none, where the request was refused.
    pub refusal: Option<String>,
}

impl Answer {
    pub fn refused(line: &Line, refusal: &Refusal) -> Self {
        let id = name_of("batch_req_", &format!("{} {:?}", line.index, line.custom_id));
        let error = json!({ "code": refusal.code, "message": refusal.message });
        let line = json!({ "id": id, "custom_id": line.custom_id, "response": null, "error": error });
        Answer { line, refusal: Some(refusal.message.clone()) }
    }

    /// The answer to `call`, of a request whose prompts all have their candidates.
    pub fn of(
        call: &Call,
        request: &LineRequest,
        candidates: &[Candidates],
        origin: &Origin,
        tokenizer: &Tokenizer,
        created: u64,
    ) -> Self {
        let id = name_of(request.endpoint.id_prefix(), &request.custom_id);
        let head = AnswerHead { id, created, system_fingerprint: &origin.system_fingerprint };
        let body = response(request, candidates, head, tokenizer);
        let line = json!({
            "id": name_of("batch_req_", &request.custom_id),
            "custom_id": request.custom_id,
            "response": { "status_code": 200, "request_id": origin.request_id(call), "body": body },
            "error": null,
        });
        Answer { line, refusal: None }
    }
}
