//! `/v1/completions` and `/v1/chat/completions`: a body becomes a job, and the job's results one answer or a stream.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Map, Value};

use offshoot_engine::{Finish, FinishReason, Hear, Priority};
use offshoot_launch::SampleId;
use offshoot_openai::protocol::{
    AnswerHead, ChunkWriter, EncodedPrompt, Endpoint, Keep, PromptCandidates, ProtocolRequest, Refusal, response,
};

use super::dispatch::{Delivery, Job, JobPrompt, JobUsage, OpenTicket, Outbox};
use super::keys::ClientId;
use super::random::random_hex;
use super::reply;
use super::server::Server;
use super::stream;

/// Tokens of prompts that an answer may repeat, with the alternatives to each: about 100 MB of JSON.
const MOST_REPEATED: usize = 4 << 20;

/// Tokens from which on an answer is written on a thread of its own.
const LONG_ANSWER: usize = 4096;

pub async fn generate(
    server: Arc<Server>,
    endpoint: Endpoint,
    client: ClientId,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let arrived = Instant::now();
    server.dispatcher.check_alive()?;
    let body = server.receive(&headers, body).await?;
    let request = server.work(move |server| read(server, endpoint, client, &body.parse()?)).await?;
    let head = AnswerHead {
        id: format!("{}{}", endpoint.id_prefix(), random_hex::<12>()),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        system_fingerprint: server.system_fingerprint.clone(),
    };
    let request = Arc::new(request);
    let ticket = submit(&server, client, &request, arrived)?;
    match request.stream {
        Some(_) => {
            let writer = ChunkWriter::new(request, &head, server.tokenizer.clone());
            Ok(stream::response(server, ticket, writer))
        }
        None => whole(server, ticket, request, head).await,
    }
}

/// The request with its prompts in tokens.
fn read(
    server: &Server,
    endpoint: Endpoint,
    client: ClientId,
    body: &Map<String, Value>,
) -> Result<ProtocolRequest, Refusal> {
    let reader = server.reader();
    let request = reader.read(endpoint, body)?;
    let mut request = match &request.parent {
        Some(parent) => {
            let tokens = server.leases.renew(client, parent)?;
            reader.encode_after(request, &tokens)?
        }
        None => reader.encode(request)?,
    };
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

fn submit(
    server: &Server,
    client: ClientId,
    request: &ProtocolRequest,
    arrived: Instant,
) -> Result<OpenTicket, Refusal> {
    let time_to_live = |keep: &Keep| keep.time_to_live.unwrap_or_else(|| server.leases.usual_time_to_live());
    let prompt = |(index, prompt): (usize, &EncodedPrompt)| JobPrompt {
        tokens: prompt.tokens.as_slice().into(),
        choices: prompt.choices.iter().map(|choice| choice.tokens.clone()).collect(),
        choices_top: request.choices_top(),
        stop: prompt.stop.clone(),
        uniforms: request.uniforms(index, ""),
    };
    let job = Job {
        id: server.dispatcher.name_job(),
        client,
        priority: request.priority,
        // A client's jobs go behind those of others at its wish, and not before them.
        among_all: if server.keys.are_several() { request.priority.max(Priority(0)) } else { request.priority },
        prompts: request.prompts.iter().enumerate().map(prompt).collect(),
        samples: request.best_of,
        prompt_logprobs: request.scored_top(),
        params: request.params.clone(),
        hear: if request.stream.is_some() { Hear::Tokens } else { Hear::Finishes },
        keep: request.keep.as_ref().map(time_to_live),
        deadline: request.timeout.map(|timeout| arrived + timeout),
        outbox: Arc::new(Outbox::default()),
    };
    let promised = job.promised();
    server.leases.promise(client, promised)?;
    server.dispatcher.submit(job).inspect_err(|_| server.leases.take_back(client, promised))
}

/// The answer as one body.
async fn whole(
    server: Arc<Server>,
    mut ticket: OpenTicket,
    request: Arc<ProtocolRequest>,
    head: AnswerHead,
) -> Result<Response, Refusal> {
    let mut collected = Collected::new(&request);
    let usage = loop {
        if let Some(usage) = collected.take(ticket.take().await)? {
            break usage;
        }
    };
    let (tokens, candidates) = (collected.tokens, collected.candidates(usage));
    let write = move |server: &Server| {
        let response = response(&request, &candidates, &head, &server.tokenizer);
        Ok(serde_json::to_vec(&response).expect("keys are strings"))
    };
    let body = if tokens > LONG_ANSWER { server.work(write).await? } else { write(&server)? };
    Ok(reply::json(body))
}

/// The results of a job, as they come.
struct Collected {
    samples: usize,
    prompts: Vec<CollectedPrompt>,
    tokens: usize,
}

/// Those of one prompt: by index, `None` for those that have not come.
struct CollectedPrompt {
    finishes: Vec<Option<Finish>>,
    kept: Vec<Option<String>>,
    scored: Option<Finish>,
    has_choices: bool,
}

impl Collected {
    fn new(request: &ProtocolRequest) -> Self {
        let prompt = |prompt: &EncodedPrompt| CollectedPrompt {
            finishes: (0..request.best_of.max(prompt.choices.len())).map(|_| None).collect(),
            kept: vec![None; request.best_of.max(1)],
            scored: None,
            has_choices: !prompt.choices.is_empty(),
        };
        Collected { samples: request.best_of, prompts: request.prompts.iter().map(prompt).collect(), tokens: 0 }
    }

    /// Takes results; the usage once all have come.
    fn take(&mut self, deliveries: Vec<Delivery>) -> Result<Option<JobUsage>, Refusal> {
        for delivery in deliveries {
            match delivery {
                Delivery::Tokens { .. } => {}
                Delivery::Finished { sample, finish, branch } => {
                    self.tokens += finish.tokens.len();
                    self.put(sample, finish, branch.map(|branch| branch.to_string()));
                }
                Delivery::Done(usage) => return Ok(Some(usage)),
                Delivery::Refused(refusal) => return Err(refusal),
            }
        }
        Ok(None)
    }

    fn put(&mut self, SampleId { prompt, sample }: SampleId, finish: Finish, branch: Option<String>) {
        let samples = self.samples;
        let of = &mut self.prompts[prompt];
        if branch.is_some() {
            of.kept[sample] = branch;
        }
        match sample {
            scored if !of.has_choices && scored == samples && finish.reason == FinishReason::Given => {
                of.scored = Some(finish)
            }
            sample => {
                if let Some(place) = of.finishes.get_mut(sample) {
                    *place = Some(finish);
                }
            }
        }
    }

    fn candidates(self, usage: JobUsage) -> Vec<PromptCandidates> {
        let candidates = |(of, cached): (CollectedPrompt, usize)| {
            let finishes: Vec<Finish> = of.finishes.into_iter().flatten().collect();
            let (drawn, choices) = if of.has_choices { (Vec::new(), finishes) } else { (finishes, Vec::new()) };
            PromptCandidates { drawn, kept: of.kept, scored: of.scored, choices, cached }
        };
        self.prompts.into_iter().zip(usage.cached).map(candidates).collect()
    }
}
