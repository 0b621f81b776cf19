//! Writes a response as its sample comes: the events of a stream, and at the end the whole response, which an answer
//! without a stream is alone. Both have the same items, however the sample was cut into pieces.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::output::{ItemKind, ItemStatus, OutputItem};
use super::parts::{PartReader, TokenPart};
use super::request::ResponseCall;
use crate::protocol::answer::AnswerHead;
use crate::protocol::logprobs::{ChoiceLogprobs, ShownToken};
use crate::protocol::refusal::{Refusal, RefusalKind};
use crate::protocol::request::ProtocolRequest;
use crate::protocol::sse;
use crate::protocol::tools::CallIds;
use offshoot_engine::{Finish, FinishReason, SampledToken, TokenRecord};
use offshoot_text::Tokenizer;
use offshoot_text::tools::AnswerPart;

/// Writes the response to one request, whose chat has one choice.
pub struct ResponseWriter {
    call: Arc<ResponseCall>,
    request: Arc<ProtocolRequest>,
    head: AnswerHead,
    tokenizer: Arc<Tokenizer>,
    parts: PartReader,
    items: Vec<OutputItem>,
    /// White space with which the next item may begin: an item of nothing else is left out.
    held: Option<HeldSpace>,
    /// Tokens that have come.
    tokens: Vec<SampledToken>,
    /// Bytes of the sample's text that have come.
    bytes: usize,
    reasoning_tokens: usize,
    /// `None`: it has not ended.
    end: Option<FinishReason>,
    /// The number of the next event; `None`: no events are written.
    next_event: Option<u64>,
}

/// White space that is in no item yet.
struct HeldSpace {
    /// That of the item which it may begin.
    kind: ItemKind,
    text: String,
    tokens: Range<usize>,
}

impl ResponseWriter {
    /// A writer of events.
    pub fn of_stream(
        call: Arc<ResponseCall>,
        request: Arc<ProtocolRequest>,
        head: AnswerHead,
        tokenizer: Arc<Tokenizer>,
    ) -> Self {
        ResponseWriter { next_event: Some(0), ..Self::of_whole(call, request, head, tokenizer) }
    }

    /// A writer of the whole response alone.
    pub fn of_whole(
        call: Arc<ResponseCall>,
        request: Arc<ProtocolRequest>,
        head: AnswerHead,
        tokenizer: Arc<Tokenizer>,
    ) -> Self {
        let prompt = request.prompts.first().expect("a chat has one prompt");
        let parts = PartReader::new(&request, prompt, &tokenizer);
        ResponseWriter {
            call,
            request,
            head,
            tokenizer,
            parts,
            items: Vec::new(),
            held: None,
            tokens: Vec::new(),
            bytes: 0,
            reasoning_tokens: 0,
            end: None,
            next_event: None,
        }
    }

    /// The response's id.
    pub fn id(&self) -> &str {
        &self.head.id
    }

    /// Appends the events before any token.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress", None, None);
            self.event(kind, json!({ "response": response }), out);
        }
    }

    /// Tokens were sampled, with this text that is final.
    pub fn tokens(&mut self, tokens: Vec<SampledToken>, text: &str, out: &mut Vec<u8>) {
        self.take(tokens, text, false, out);
    }

    /// The sample has ended.
    pub fn finished(&mut self, finish: &Finish, out: &mut Vec<u8>) {
        let rest = finish.sampled_records().skip(self.tokens.len()).map(SampledToken::from).collect();
        self.take(rest, &finish.text[self.bytes..], true, out);
        if self.items.is_empty() {
            // A response that says nothing says so.
            let nothing = || HeldSpace { kind: ItemKind::Message, text: String::new(), tokens: 0..0 };
            let HeldSpace { kind, text, tokens } = self.held.take().unwrap_or_else(nothing);
            self.open(kind, out);
            self.add(&text, tokens, out);
        }
        let stops = matches!(finish.reason, FinishReason::StopString(_) | FinishReason::StopToken(_));
        let is_in_call = self.open_item().is_some_and(|item| matches!(item.kind, ItemKind::Call { .. }));
        let is_item_whole = is_whole(&finish.reason) && !(stops && is_in_call);
        let status = if is_item_whole { ItemStatus::Completed } else { ItemStatus::Incomplete };
        self.close(status, out);
        self.end = Some(finish.reason.clone());
    }

    /// The response, once its sample has ended, and the event that has it; `cached`: the tokens of the prompt that were
    /// not computed for it; `now`: the seconds since 1970.
    pub fn end(&mut self, cached: usize, now: u64, out: &mut Vec<u8>) -> Value {
        let reason = self.end.clone().unwrap_or(FinishReason::Aborted);
        let (status, error) = match &reason {
            reason if is_whole(reason) => ("completed", None),
            FinishReason::DeadEnd => {
                ("failed", Some(("server_error", "the form of the answer left no token to sample")))
            }
            FinishReason::FormLimit => {
                ("failed", Some(("server_error", "the form of the answer takes too much work to keep")))
            }
            FinishReason::Aborted | FinishReason::Cancelled => {
                ("failed", Some(("server_error", "the request was ended by whoever operates the server")))
            }
            _ => ("incomplete", None),
        };
        let usage = self.usage(cached);
        let error = error.map(|(code, message)| json!({ "code": code, "message": message }));
        let mut response = self.response(status, Some(usage), error);
        if status == "completed" {
            response["completed_at"] = now.into();
        }
        let kind = format!("response.{status}");
        self.event(&kind, json!({ "response": response }), out);
        response
    }

    /// Appends the end of a stream whose request could not be answered.
    pub fn fail(&mut self, refusal: &Refusal, out: &mut Vec<u8>) {
        let code = match refusal.kind {
            RefusalKind::TooMany => "rate_limit_exceeded",
            RefusalKind::InvalidRequest => "invalid_prompt",
            _ => "server_error",
        };
        let error = json!({ "code": code, "message": refusal.message });
        let response = self.response("failed", None, Some(error));
        self.event("response.failed", json!({ "response": response }), out);
    }

    fn take(&mut self, tokens: Vec<SampledToken>, text: &str, is_last: bool, out: &mut Vec<u8>) {
        self.bytes += text.len();
        let ids = tokens.iter().map(|sampled| sampled.token);
        let parts = self.parts.push(ids, text, is_last);
        self.tokens.extend(tokens);
        for TokenPart { part, tokens } in parts {
            match part {
                AnswerPart::Reasoning(text) => {
                    self.reasoning_tokens += tokens.len();
                    self.text(ItemKind::Reasoning, &text, tokens, out);
                }
                AnswerPart::Content(text) => self.text(ItemKind::Message, &text, tokens, out),
                AnswerPart::CallBegins { name } => {
                    self.held = None;
                    let call_id = self.next_call_id();
                    self.open(ItemKind::Call { name, call_id }, out);
                }
                AnswerPart::Arguments(text) => self.add(&text, tokens, out),
                // One that was cut ends with the sample.
                AnswerPart::CallEnds { is_cut: true } => {}
                AnswerPart::CallEnds { is_cut: false } => self.close(ItemStatus::Completed, out),
            }
        }
    }

    /// The id of the call that begins, which is that of the same call in a chat's answer of this id.
    fn next_call_id(&self) -> String {
        let ids = CallIds { answer: &self.head.id, choice: 0, are_short: self.request.has_short_call_ids() };
        ids.id(self.items.iter().filter(|item| matches!(item.kind, ItemKind::Call { .. })).count())
    }

    /// A piece of reasoning or of a message, which these tokens begin in.
    fn text(&mut self, kind: ItemKind, text: &str, tokens: Range<usize>, out: &mut Vec<u8>) {
        if self.open_item().is_some_and(|open| open.kind == kind) {
            return self.add(text, tokens, out);
        }
        let held = self.held.take().filter(|held| held.kind == kind);
        let (before, first) = held.map_or((String::new(), tokens.start), |held| (held.text, held.tokens.start));
        let (text, tokens) = (before + text, first..tokens.end);
        if text.trim().is_empty() {
            self.held = Some(HeldSpace { kind, text, tokens });
            return;
        }
        self.open(kind, out);
        self.add(&text, tokens, out);
    }

    fn open_item(&self) -> Option<&OutputItem> {
        self.items.last().filter(|item| item.status == ItemStatus::InProgress)
    }

    /// Begins an item; the one before it ends.
    fn open(&mut self, kind: ItemKind, out: &mut Vec<u8>) {
        self.close(ItemStatus::Completed, out);
        let index = self.items.len();
        let item = OutputItem::new(kind, &self.head.id, index, self.call.shows_logprobs);
        let (begun, part) = (item.begun(), item.empty_part());
        self.items.push(item);
        self.event("response.output_item.added", json!({ "output_index": index, "item": begun }), out);
        if let Some(part) = part {
            self.event_of_item("response.content_part.added", json!({ "content_index": 0, "part": part }), out);
        }
    }

    /// Adds text to the open item.
    fn add(&mut self, text: &str, tokens: Range<usize>, out: &mut Vec<u8>) {
        let logprobs = self.logprobs(tokens);
        let Some(item) = self.items.last_mut() else { return };
        item.text.push_str(text);
        if let Some(all) = &mut item.logprobs {
            all.extend(logprobs.iter().cloned());
        }
        if text.is_empty() {
            return;
        }
        match item.kind {
            ItemKind::Reasoning => {
                let fields = json!({ "content_index": 0, "delta": text });
                self.event_of_item("response.reasoning_text.delta", fields, out);
            }
            ItemKind::Message => {
                let fields = json!({ "content_index": 0, "delta": text, "logprobs": logprobs });
                self.event_of_item("response.output_text.delta", fields, out);
            }
            ItemKind::Call { .. } => {
                self.event_of_item("response.function_call_arguments.delta", json!({ "delta": text }), out);
            }
        }
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, status: ItemStatus, out: &mut Vec<u8>) {
        let Some(item) = self.items.last_mut().filter(|item| item.status == ItemStatus::InProgress) else { return };
        item.status = status;
        let (text, part, shown) = (item.text.clone(), item.part(), item.shown());
        let (kind, fields) = match &item.kind {
            ItemKind::Reasoning => ("response.reasoning_text.done", json!({ "content_index": 0, "text": text })),
            ItemKind::Message => {
                let logprobs = item.logprobs.as_deref().unwrap_or_default();
                let fields = json!({ "content_index": 0, "text": text, "logprobs": logprobs });
                ("response.output_text.done", fields)
            }
            ItemKind::Call { name, .. } => {
                ("response.function_call_arguments.done", json!({ "name": name, "arguments": text }))
            }
        };
        self.event_of_item(kind, fields, out);
        if let Some(part) = part {
            self.event_of_item("response.content_part.done", json!({ "content_index": 0, "part": part }), out);
        }
        let index = self.items.len() - 1;
        self.event("response.output_item.done", json!({ "output_index": index, "item": shown }), out);
    }

    /// The log-probabilities of these tokens, if they are shown.
    fn logprobs(&self, tokens: Range<usize>) -> Vec<Value> {
        if !self.call.shows_logprobs {
            return Vec::new();
        }
        let (request, prompt) = (&*self.request, &self.request.prompts[0]);
        let records = self.tokens.get(tokens).unwrap_or_default().iter().map(TokenRecord::of);
        let shown = records.map(|record| ShownToken::sampled(record, 0, request.params.logprobs_mode));
        let logprobs = ChoiceLogprobs::new(request, prompt, None, shown, &self.tokenizer);
        let mut logprobs = serde_json::to_value(logprobs).expect("keys are strings");
        match logprobs["content"].take() {
            Value::Array(content) => content,
            _ => Vec::new(),
        }
    }

    fn usage(&self, cached: usize) -> Value {
        let (input, output) = (self.request.prompt_tokens(), self.tokens.len());
        json!({
            "input_tokens": input,
            "input_tokens_details": { "cached_tokens": cached, "cache_write_tokens": 0 },
            "output_tokens": output,
            "output_tokens_details": { "reasoning_tokens": self.reasoning_tokens },
            "total_tokens": input + output,
        })
    }

    /// The response as it is.
    fn response(&self, status: &str, usage: Option<Value>, error: Option<Value>) -> Value {
        let incomplete = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let own = json!({
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            "background": false,
            "error": error,
            "incomplete_details": incomplete,
            "max_tool_calls": null,
            "model": self.request.model,
            "output": self.items.iter().map(OutputItem::shown).collect::<Vec<_>>(),
            "service_tier": "default",
            "truncation": "disabled",
            "usage": usage,
        });
        let Value::Object(mut response) = own else { return own };
        response.extend(self.call.repeated.clone());
        Value::Object(response)
    }

    fn event_of_item(&mut self, kind: &str, fields: Value, out: &mut Vec<u8>) {
        let Some(item) = self.items.last() else { return };
        let mut whole = json!({ "item_id": item.id, "output_index": self.items.len() - 1 });
        if let (Value::Object(whole), Value::Object(fields)) = (&mut whole, fields) {
            whole.extend(fields);
        }
        self.event(kind, whole, out);
    }

    /// Appends an event, if this is a stream.
    fn event(&mut self, kind: &str, fields: Value, out: &mut Vec<u8>) {
        let Some(number) = &mut self.next_event else { return };
        let mut event = Map::new();
        event.insert("type".to_owned(), kind.into());
        event.insert("sequence_number".to_owned(), (*number).into());
        *number += 1;
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        sse::event(kind, &event, out);
    }
}

/// Whether a text ended as it was meant to.
fn is_whole(reason: &FinishReason) -> bool {
    matches!(reason, FinishReason::EndOfText | FinishReason::StopToken(_) | FinishReason::StopString(_))
}
