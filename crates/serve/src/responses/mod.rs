//! `/v1/responses`: a body becomes the job of the chat that asks the same, and its sample the response, whole or as
//! events. A response that is stored is a kept branch with what was said; `previous_response_id` goes on from it.

mod kept;

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::{Map, Value, json};

use offshoot_core::ids::TokenId;
use offshoot_engine::{Finish, SampledToken};
use offshoot_launch::SampleId;
use offshoot_openai::protocol::files::list;
use offshoot_openai::protocol::{
    AnswerHead, Endpoint, PromptCandidates, ProtocolRequest, RESPONSE_ID_PREFIX, RESPONSES_PATH, Refusal, ResponseCall,
    ResponseChat, ResponseWriter, Turn,
};

use super::batches::now;
use super::counted::{CountedCall, answering};
use super::dispatch::JobForm;
use super::file_routes::PageOf;
use super::generate::{all_candidates, fitted, head, names, submit, written};
use super::in_path::InPath;
use super::keys::ClientId;
use super::leases::{Beyond, UnsentBranch};
use super::random::random_hex;
use super::reply::{self, Answer};
use super::server::{AppState, Server};
use super::stream::{self, AnswerWriter};

use kept::KeptTurn;
pub use kept::{KeptResponse, KeptTurns, ResponseMemory};

/// Bytes from which on what is kept of a response is written on a thread of its own.
const LONG_RESPONSE: usize = 256 << 10;

pub fn routes() -> Router<Arc<Server>> {
    Router::new()
        .route(RESPONSES_PATH, answering(create))
        .route(&format!("{RESPONSES_PATH}/input_tokens"), post(count_tokens))
        .route(&format!("{RESPONSES_PATH}/{{id}}"), get(retrieve).delete(remove))
        .route(&format!("{RESPONSES_PATH}/{{id}}/input_items"), get(input_items))
}

/// A request for a response that was read.
struct ReadRequest {
    call: ResponseCall,
    chat: ResponseChat,
    request: ProtocolRequest,
    /// The conversation that it goes on from.
    earlier: Vec<Arc<KeptTurn>>,
}

impl ReadRequest {
    /// The request with its prompt in tokens; `response`: the id that the response will have.
    fn read(
        server: &Server,
        client: ClientId,
        response: &str,
        body: &Map<String, Value>,
    ) -> Result<ReadRequest, Refusal> {
        let call = ResponseCall::read(body, response, server.leases.can_keep())?;
        let previous = call.previous.as_deref().map(|id| server.leases.response(client, id)).transpose();
        let previous = previous.map_err(|refusal| {
            Refusal { code: "previous_response_not_found", ..refusal }.about("previous_response_id")
        })?;
        let earlier = previous.as_ref().map_or_else(Vec::new, |(response, _)| response.turns().to_vec());
        let chat = call.chat(earlier.iter().map(|kept| &kept.turn));
        let reader = server.reader();
        let encoded = || {
            let mut request = reader.read(Endpoint::Chat, &chat.body)?;
            let before: &[TokenId] = match &previous {
                Some((_, kept)) => {
                    request.salt = request.salt.or(kept.salt);
                    &kept.tokens
                }
                None => &[],
            };
            fitted(server, reader.encode_along(request, before)?)
        };
        let request = encoded().map_err(|refusal| chat.names.refusal(refusal))?;
        Ok(ReadRequest { call, chat, request, earlier })
    }
}

async fn create(call: CountedCall) -> Result<Response, Refusal> {
    let CountedCall { server, client, counted, headers, body } = call;
    let arrived = Instant::now();
    server.dispatcher.check_alive()?;
    server.admission.check(&server.engine)?;
    let body = server.receive(&headers, body).await?;
    let head = AnswerHead { id: new_id(), ..head(&server, RESPONSE_ID_PREFIX) };
    let id = head.id.clone();
    let read = server.work(move |server| ReadRequest::read(server, client, &id, &body.parse()?)).await?;
    let ReadRequest { call, chat, request, earlier } = read;
    let compiled = server.compile_form(client, request, arrived).await;
    let (request, form) = compiled.map_err(|refusal| chat.names.refusal(refusal))?;
    drop(chat);
    let (call, request) = (Arc::new(call), Arc::new(request));
    let names = names(&head, &headers, &request);
    let ticket = submit(&server, client, &request, JobForm::alone(form), names, arrived, Beyond::ResponsesGiveWay)?;
    let tokenizer = server.tokenizer.clone();
    let is_stream = request.stream.is_some();
    let writer = match is_stream {
        true => ResponseWriter::of_stream(call.clone(), request.clone(), head, tokenizer),
        false => ResponseWriter::of_whole(call.clone(), request.clone(), head, tokenizer),
    };
    let mut writer = StoringWriter { server: server.clone(), call, earlier, writer, branch: None };
    match is_stream {
        true => Ok(stream::response(server, ticket, counted, request.shown_per_token(), Box::new(writer))),
        false => {
            let (candidates, branches, shown) = all_candidates(ticket, &request).await?;
            writer.branch = branches.into_iter().next();
            let write = move |_: &Server| Ok(writer.whole(candidates));
            written(&server, shown, write).await.inspect(|_| counted.answered())
        }
    }
}

fn new_id() -> String {
    format!("{RESPONSE_ID_PREFIX}{}", random_hex::<16>())
}

/// Writes a response, and keeps it at its end if it is to be stored.
struct StoringWriter {
    server: Arc<Server>,
    call: Arc<ResponseCall>,
    earlier: Vec<Arc<KeptTurn>>,
    writer: ResponseWriter,
    /// The sample's branch, which is kept. Where no response comes of it, it is released.
    branch: Option<UnsentBranch>,
}

impl StoringWriter {
    /// The response as one body.
    fn whole(mut self, candidates: Vec<PromptCandidates>) -> Vec<u8> {
        let mut no_events = Vec::new();
        let mut cached = 0;
        for candidates in candidates {
            cached += candidates.cached;
            if let Some(finish) = candidates.drawn.first() {
                self.writer.finished(finish, &mut no_events);
            }
        }
        let response = self.writer.end(cached, now(), &mut no_events);
        let body = serde_json::to_vec(&response).expect("keys are strings");
        self.keep(response);
        body
    }

    /// Keeps the response, if it is to be.
    fn keep(&mut self, response: Value) {
        if let Some(branch) = self.branch.take() {
            let own = Turn { input: self.call.input.clone(), response };
            let turns = KeptTurns { earlier: std::mem::take(&mut self.earlier), own };
            self.server.leases.keep_response(branch, self.writer.id().to_owned(), turns);
        }
    }
}

impl AnswerWriter for StoringWriter {
    fn repeats(&self) -> bool {
        true
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        self.writer.begin(out);
    }

    fn tokens(&mut self, _: SampleId, tokens: Vec<SampledToken>, text: &str, out: &mut Vec<u8>) {
        self.writer.tokens(tokens, text, out);
    }

    fn finished(&mut self, _: SampleId, finish: Finish, branch: Option<UnsentBranch>, out: &mut Vec<u8>) {
        self.branch = branch;
        self.writer.finished(&finish, out);
    }

    fn end(&mut self, cached: usize, out: &mut Vec<u8>) {
        let response = self.writer.end(cached, now(), out);
        self.keep(response);
    }

    fn fail(&mut self, refusal: &Refusal, out: &mut Vec<u8>) {
        self.writer.fail(refusal, out);
    }
}

/// The number of tokens that a request's prompt has.
async fn count_tokens(
    State(server): AppState,
    Extension(client): Extension<ClientId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let body = server.receive(&headers, body).await?;
    let count = move |server: &Server| {
        let ReadRequest { request, .. } = ReadRequest::read(server, client, &new_id(), &body.parse()?)?;
        Ok(json!({ "object": "response.input_tokens", "input_tokens": request.prompt_tokens() }))
    };
    Ok(reply::value(&server.work(count).await?))
}

async fn retrieve(
    State(server): AppState,
    Extension(client): Extension<ClientId>,
    InPath(id): InPath,
    RawQuery(query): RawQuery,
) -> Answer {
    if query.is_some_and(|query| query.split('&').any(|field| field == "stream=true")) {
        let place = "for a response that is kept: it is answered as a whole";
        return Err(Refusal::out_of_place("stream", place).into());
    }
    let (response, _) = server.leases.response(client, &id)?;
    let is_long = response.last_bytes() > LONG_RESPONSE;
    let write = move |_: &Server| Ok(reply::value(&response.last().response));
    Ok(if is_long { server.work(write).await? } else { write(&server)? })
}

async fn remove(State(server): AppState, Extension(client): Extension<ClientId>, InPath(id): InPath) -> Answer {
    server.leases.response(client, &id)?;
    server.leases.release(client, &id)?;
    Ok(reply::value(&json!({ "id": id, "object": "response", "deleted": true })))
}

/// The items that a response answered: those of the conversation before it, and its request's own.
async fn input_items(
    State(server): AppState,
    Extension(client): Extension<ClientId>,
    InPath(id): InPath,
    page: PageOf,
) -> Answer {
    let (response, _) = server.leases.response(client, &id)?;
    let is_long = response.bytes() > LONG_RESPONSE;
    let write = move |_: &Server| items_page(&response, &page);
    Ok(if is_long { server.work(write).await? } else { write(&server)? })
}

fn items_page(response: &KeptResponse, page: &PageOf) -> Result<Response, Refusal> {
    let most = page.length()?;
    let earlier = response.turns().split_last().map_or(&[][..], |(_, earlier)| earlier);
    let mut items: Vec<&Value> = earlier.iter().flat_map(|kept| kept.turn.items()).collect();
    items.extend(&response.last().input);
    match page.order.as_deref() {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(other) => {
            let found: String = other.chars().take(60).collect();
            return Err(Refusal::value("order", "\"asc\" or \"desc\"", &format!("{found:?}")));
        }
    }
    if let Some(after) = &page.after {
        let behind = items.iter().position(|item| item["id"] == **after).map_or(items.len(), |at| at + 1);
        items.drain(..behind);
    }
    let has_more = items.len() > most;
    items.truncate(most);
    Ok(reply::value(&list(&items, |item| item["id"].as_str().unwrap_or_default(), has_more)))
}
