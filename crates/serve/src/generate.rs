//! `/v1/completions` and `/v1/chat/completions`: a body becomes a job, and the job's results one answer or a stream.

use std::sync::Arc;
use std::time::Instant;

use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Map, Value};

use offshoot_engine::Priority;
use offshoot_launch::SampleId;
use offshoot_openai::protocol::{
    AnswerHead, ChunkWriter, Endpoint, Keep, PromptCandidates, PromptResults, ProtocolRequest, Refusal, response,
};

use super::batches::now;
use super::counted::CountedCall;
use super::dispatch::{Delivery, Job, JobForm, OpenTicket, Outbox};
use super::exchange::REQUEST_ID;
use super::keys::ClientId;
use super::leases::{Beyond, BranchForm, KeptPrompt, UnsentBranch};
use super::random::random_hex;
use super::reply;
use super::server::Server;
use super::stream;

/// Tokens of prompts that an answer may repeat, with the alternatives to each: about 100 MB of JSON.
const MOST_REPEATED: usize = 4 << 20;

/// Tokens, and alternatives to them, from which on an answer is written on a thread of its own.
pub const LONG_ANSWER: usize = 4096;

pub async fn generate(call: CountedCall, endpoint: Endpoint) -> Result<Response, Refusal> {
    let CountedCall { server, client, counted, headers, body } = call;
    let arrived = Instant::now();
    server.dispatcher.check_alive()?;
    server.admission.check(&server.engine)?;
    let body = server.receive(&headers, body).await?;
    let (request, of_parent) = server.work(move |server| read(server, endpoint, client, &body.parse()?)).await?;
    let head = head(&server, endpoint.id_prefix());
    let (request, form) = server.compile_form(client, request, arrived).await?;
    let request = Arc::new(request);
    let form = JobForm { compiled: form, of_parent };
    let ticket = submit(&server, client, &request, form, names(&head, &headers, &request), arrived, Beyond::Refused)?;
    match request.stream {
        Some(_) => {
            let shown_per_token = request.shown_per_token();
            let writer = ChunkWriter::new(request, &head, server.tokenizer.clone());
            Ok(stream::response(server, ticket, counted, shown_per_token, Box::new(writer)))
        }
        None => whole(server, ticket, request, head).await.inspect(|_| counted.answered()),
    }
}

/// A new answer's head; its id has this prefix.
pub fn head(server: &Server, id_prefix: &str) -> AnswerHead {
    AnswerHead {
        id: format!("{id_prefix}{}", random_hex::<12>()),
        created: now(),
        system_fingerprint: server.system_fingerprint.clone(),
        labels: server.engine.labels(),
    }
}

/// What a request may be called when it is ended by name.
pub fn names(head: &AnswerHead, headers: &HeaderMap, request: &ProtocolRequest) -> Vec<String> {
    let of_header = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    [head.id.clone()].into_iter().chain(request.request_id.clone()).chain(of_header).collect()
}

/// The request with its prompts in tokens, and the form that its parent is in, if nothing follows the parent.
fn read(
    server: &Server,
    endpoint: Endpoint,
    client: ClientId,
    body: &Map<String, Value>,
) -> Result<(ProtocolRequest, Option<BranchForm>), Refusal> {
    let reader = server.reader();
    let mut request = reader.read(endpoint, body)?;
    let parent = request.parent.as_deref().map(|parent| server.leases.renew(client, parent)).transpose()?;
    if let Some(parent) = &parent {
        if request.salt.is_some() && request.salt != parent.salt {
            return Err(Refusal::value("cache_salt", "that of the request that kept `parent`, or none", "another one"));
        }
        request.salt = parent.salt;
        if request.adapter_name() != parent.adapter.as_deref() {
            let expected = "the model, or the adapter, of the request that kept `parent`";
            return Err(Refusal::value("model", expected, &format!("{:?}", request.model)));
        }
    }
    let before = parent.as_ref().map(|parent| &*parent.tokens);
    let request = fitted(server, reader.encode_after(request, before.unwrap_or_default())?)?;
    let is_alone = |parent: &KeptPrompt| matches!(&*request.prompts, [prompt] if *prompt.tokens == *parent.tokens);
    let of_parent = parent.filter(is_alone).and_then(|parent| parent.form);
    Ok((request, of_parent))
}

/// The request, if its prompts and what it repeats of them are not too long; limited to the memory.
pub fn fitted(server: &Server, mut request: ProtocolRequest) -> Result<ProtocolRequest, Refusal> {
    request.fit_paths(server.engine.facts())?;
    let repeated = request.repeated();
    match repeated <= MOST_REPEATED {
        true => Ok(request),
        false => {
            let expected = format!("at most {MOST_REPEATED} tokens of prompts and alternatives to them in an answer");
            Err(Refusal::value("echo", &expected, &repeated.to_string()))
        }
    }
}

/// Submits a request, which may be called by these names; `beyond`: what becomes of it where its client keeps as many
/// branches as it may.
pub fn submit(
    server: &Server,
    client: ClientId,
    request: &Arc<ProtocolRequest>,
    form: JobForm,
    names: Vec<String>,
    arrived: Instant,
    beyond: Beyond,
) -> Result<OpenTicket, Refusal> {
    let time_to_live = |keep: &Keep| keep.time_to_live.unwrap_or_else(|| server.leases.usual_time_to_live());
    let job = Job {
        id: server.dispatcher.name_job(),
        names,
        client,
        request: request.clone(),
        form,
        // A client's jobs go behind those of others at its wish, and not before them.
        among_all: if server.keys.are_several() { request.priority.max(Priority(0)) } else { request.priority },
        keep: request.keep.as_ref().map(time_to_live),
        deadline: request.timeout.map(|timeout| arrived + timeout),
        outbox: Arc::new(Outbox::default()),
    };
    let promised = job.promised();
    server.leases.promise(client, promised, beyond)?;
    // It may have been paused since the request came.
    let submit = || server.dispatcher.submit(job);
    let ticket = server.admission.admit(&server.engine, submit);
    match ticket {
        Ok(_) => server.leases.forget_beyond(client),
        Err(_) => server.leases.take_back(client, promised),
    }
    ticket
}

/// The answer as one body.
async fn whole(
    server: Arc<Server>,
    ticket: OpenTicket,
    request: Arc<ProtocolRequest>,
    head: AnswerHead,
) -> Result<Response, Refusal> {
    let (candidates, branches, shown) = all_candidates(ticket, &request).await?;
    let write = move |server: &Server| {
        let response = response(&request, &candidates, &head, &server.tokenizer);
        Ok(serde_json::to_vec(&response).expect("keys are strings"))
    };
    let answer = written(&server, shown, write).await?;
    branches.into_iter().for_each(|branch| drop(branch.into_id()));
    Ok(answer)
}

/// The body that `write` writes of so many tokens and alternatives to them.
pub async fn written(
    server: &Arc<Server>,
    shown: usize,
    write: impl FnOnce(&Server) -> Result<Vec<u8>, Refusal> + Send + 'static,
) -> Result<Response, Refusal> {
    let body = if shown > LONG_ANSWER { server.work(write).await? } else { write(server)? };
    Ok(reply::json(body))
}

/// The candidates of all prompts, once the last has ended; the branches whose ids they have; and how many tokens and
/// alternatives to them an answer shows. Who sends the ids takes the branches; dropped, they are released.
pub async fn all_candidates(
    mut ticket: OpenTicket,
    request: &ProtocolRequest,
) -> Result<(Vec<PromptCandidates>, Vec<UnsentBranch>, usize), Refusal> {
    let mut results: Vec<PromptResults> = request.prompts.iter().map(|_| PromptResults::default()).collect();
    let (mut branches, mut shown) = (Vec::new(), request.repeated());
    let cached = 'all: loop {
        for delivery in ticket.take().await {
            match delivery {
                Delivery::Tokens { .. } => {}
                Delivery::Finished { sample: SampleId { prompt, sample }, finish, branch } => {
                    shown += finish.sampled() * request.shown_per_token();
                    let id = branch.as_ref().map(|branch| branch.id().to_owned());
                    branches.extend(branch);
                    results[prompt].add(sample, *finish, id);
                }
                Delivery::Done(cached) => break 'all cached,
                Delivery::Refused(refusal) => return Err(refusal),
            }
        }
    };
    let of_prompt =
        |(prompt, (results, cached)): (usize, (PromptResults, usize))| results.candidates(request, prompt, cached);
    let candidates = results.into_iter().zip(cached).enumerate().map(of_prompt).collect();
    Ok((candidates, branches, shown))
}
