//! Writes a response as its sample comes: the events of a stream, and at the end the whole response, which an answer
//! without a stream is alone. Both have the same items, however the sample was cut into pieces.

use std::ops::{Deref, Range};
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::output::{ItemKind, ItemStatus, OutputItem, empty_part};
use super::parts::{PartReader, TokenPart};
use super::request::ResponseCall;
use crate::protocol::answer::AnswerHead;
use crate::protocol::choice::StopReason;
use crate::protocol::logprobs::{ChoiceLogprobs, ShownToken};
use crate::protocol::refusal::{Refusal, RefusalKind};
use crate::protocol::request::ProtocolRequest;
use crate::protocol::sse;
use crate::protocol::tools::CallIds;
use offshoot_engine::{Finish, FinishReason, SampledToken, TokenRecord};
use offshoot_text::Tokenizer;
use offshoot_text::tools::AnswerPart;

/// Writes the response to one request, whose chat has one choice.
pub struct ResponseWriter<T = Arc<Tokenizer>> {
    call: Arc<ResponseCall>,
    request: Arc<ProtocolRequest>,
    head: AnswerHead,
    tokenizer: T,
    parts: PartReader,
    /// The items that have ended, as the response shows them.
    ended: Vec<Value>,
    /// The item that goes on.
    open: Option<OutputItem>,
    /// Calls among the items.
    calls: usize,
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

impl<T: Deref<Target = Tokenizer>> ResponseWriter<T> {
    /// A writer of events.
    pub fn of_stream(call: Arc<ResponseCall>, request: Arc<ProtocolRequest>, head: AnswerHead, tokenizer: T) -> Self {
        ResponseWriter { next_event: Some(0), ..Self::of_whole(call, request, head, tokenizer) }
    }

    /// A writer of the whole response alone.
    pub fn of_whole(call: Arc<ResponseCall>, request: Arc<ProtocolRequest>, head: AnswerHead, tokenizer: T) -> Self {
        let prompt = request.prompts.first().expect("a chat has one prompt");
        let parts = PartReader::new(&request, prompt, &tokenizer);
        ResponseWriter {
            call,
            request,
            head,
            tokenizer,
            parts,
            ended: Vec::new(),
            open: None,
            calls: 0,
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
        let response = self.response("in_progress", None, None, Vec::new());
        for kind in ["response.created", "response.in_progress"] {
            self.event(kind, &[("response", &response)], out);
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
        if self.ended.is_empty() && self.open.is_none() {
            // A response that says nothing says so.
            let nothing = || HeldSpace { kind: ItemKind::Message, text: String::new(), tokens: 0..0 };
            let HeldSpace { kind, text, tokens } = self.held.take().unwrap_or_else(nothing);
            self.open(kind, out);
            self.add(&text, tokens, out);
        }
        let stops = matches!(finish.reason, FinishReason::StopString(_) | FinishReason::StopToken(_));
        let is_in_call = self.open.as_ref().is_some_and(|item| matches!(item.kind, ItemKind::Call { .. }));
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
            FinishReason::Aborted | FinishReason::Cancelled => {
                ("failed", Some(("server_error", "the request was ended by whoever operates the server")))
            }
            _ => ("incomplete", None),
        };
        let usage = self.usage(cached);
        let error = error.map(|(code, message)| json!({ "code": code, "message": message }));
        let output = self.take_output();
        let mut response = self.response(status, Some(usage), error, output);
        if status == "completed" {
            response["completed_at"] = now.into();
        }
        if let ("incomplete", Some(why)) = (status, StopReason::of(&reason)) {
            response["incomplete_details"]["stop_reason"] = json!(why);
        }
        let kind = format!("response.{status}");
        self.event(&kind, &[("response", &response)], out);
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
        let output = self.take_output();
        let response = self.response("failed", None, Some(error), output);
        self.event("response.failed", &[("response", &response)], out);
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
        ids.id(self.calls)
    }

    /// A piece of reasoning or of a message, which these tokens begin in.
    fn text(&mut self, kind: ItemKind, text: &str, tokens: Range<usize>, out: &mut Vec<u8>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
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

    /// Begins an item; the one before it ends.
    fn open(&mut self, kind: ItemKind, out: &mut Vec<u8>) {
        self.close(ItemStatus::Completed, out);
        let index = self.ended.len();
        self.calls += usize::from(matches!(kind, ItemKind::Call { .. }));
        let part = empty_part(&kind);
        let item = OutputItem::new(kind, &self.head.id, index, self.call.shows_logprobs);
        let (id, begun) = (Value::from(item.id.as_str()), item.begun());
        self.open = Some(item);
        self.event("response.output_item.added", &[("output_index", &json!(index)), ("item", &begun)], out);
        if let Some(part) = part {
            let fields = [("content_index", &json!(0)), ("part", &part)];
            self.event_of_item("response.content_part.added", &id, &fields, out);
        }
    }

    /// Adds text to the open item.
    fn add(&mut self, text: &str, tokens: Range<usize>, out: &mut Vec<u8>) {
        let Some(mut item) = self.open.take() else { return };
        item.text.push_str(text);
        let logprobs = Value::Array(item.logprobs.as_ref().map_or_else(Vec::new, |_| self.logprobs(tokens)));
        if !text.is_empty() {
            let (id, first, delta) = (Value::from(item.id.as_str()), json!(0), Value::from(text));
            let (kind, fields) = match item.kind {
                ItemKind::Reasoning => {
                    ("response.reasoning_text.delta", &[("content_index", &first), ("delta", &delta)][..])
                }
                ItemKind::Message => (
                    "response.output_text.delta",
                    &[("content_index", &first), ("delta", &delta), ("logprobs", &logprobs)][..],
                ),
                ItemKind::Call { .. } => ("response.function_call_arguments.delta", &[("delta", &delta)][..]),
            };
            self.event_of_item(kind, &id, fields, out);
        }
        if let (Some(all), Value::Array(logprobs)) = (&mut item.logprobs, logprobs) {
            all.extend(logprobs);
        }
        self.open = Some(item);
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, status: ItemStatus, out: &mut Vec<u8>) {
        let Some(item) = self.open.take() else { return };
        let kind = item.kind.clone();
        let shown = item.shown(status);
        let (id, part, first) = (&shown["id"], &shown["content"][0], json!(0));
        match kind {
            ItemKind::Reasoning => {
                let fields = [("content_index", &first), ("text", &part["text"])];
                self.event_of_item("response.reasoning_text.done", id, &fields, out);
            }
            ItemKind::Message => {
                let fields = [("content_index", &first), ("text", &part["text"]), ("logprobs", &part["logprobs"])];
                self.event_of_item("response.output_text.done", id, &fields, out);
            }
            ItemKind::Call { .. } => {
                let fields = [("name", &shown["name"]), ("arguments", &shown["arguments"])];
                self.event_of_item("response.function_call_arguments.done", id, &fields, out);
            }
        }
        if !part.is_null() {
            self.event_of_item("response.content_part.done", id, &[("content_index", &first), ("part", part)], out);
        }
        let index = json!(self.ended.len());
        self.event("response.output_item.done", &[("output_index", &index), ("item", &shown)], out);
        self.ended.push(shown);
    }

    /// All items; the open one as it is.
    fn take_output(&mut self) -> Vec<Value> {
        let open = self.open.take().map(|item| item.shown(ItemStatus::InProgress));
        std::mem::take(&mut self.ended).into_iter().chain(open).collect()
    }

    /// The log-probabilities of these tokens.
    fn logprobs(&self, tokens: Range<usize>) -> Vec<Value> {
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

    /// The response with these items.
    fn response(&self, status: &str, usage: Option<Value>, error: Option<Value>, output: Vec<Value>) -> Value {
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
            "output": [],
            "service_tier": "default",
            "truncation": "disabled",
            "usage": usage,
        });
        let Value::Object(mut response) = own else { return own };
        response["output"] = Value::Array(output);
        response.extend(self.call.repeated.clone());
        Value::Object(response)
    }

    /// Appends an event of the item that is open, or that ends.
    fn event_of_item(&mut self, kind: &str, id: &Value, fields: &[(&str, &Value)], out: &mut Vec<u8>) {
        let index = json!(self.ended.len());
        let fields: Vec<_> = [("item_id", id), ("output_index", &index)].iter().chain(fields).copied().collect();
        self.event(kind, &fields, out);
    }

    /// Appends an event, if this is a stream.
    fn event(&mut self, kind: &str, fields: &[(&str, &Value)], out: &mut Vec<u8>) {
        let Some(number) = &mut self.next_event else { return };
        let (own_kind, own_number) = (Value::from(kind), Value::from(*number));
        *number += 1;
        let own = [("type", &own_kind), ("sequence_number", &own_number)];
        sse::event(kind, &EventFields { own, fields }, out);
    }
}

/// The fields of an event: those of all events, and its own. Values that are long are only lent.
struct EventFields<'a> {
    own: [(&'static str, &'a Value); 2],
    fields: &'a [(&'a str, &'a Value)],
}

impl Serialize for EventFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.own.iter().chain(self.fields).copied())
    }
}

/// Whether a text ended as it was meant to.
fn is_whole(reason: &FinishReason) -> bool {
    matches!(reason, FinishReason::EndOfText | FinishReason::StopToken(_) | FinishReason::StopString(_))
}
