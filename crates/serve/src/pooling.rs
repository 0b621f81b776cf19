//! `/pooling`, `/classify`, `/score`, `/rerank` and `/v1/embeddings`: a body becomes texts of the scorer, and their
//! values the answer. `openai::protocol` says what a request means; `valuing` has the values computed.

use std::sync::Arc;
use std::thread::JoinHandle;

use axum::Router;
use axum::response::Response;
use axum::routing::MethodRouter;
use serde_json::{Map, Value};

use offshoot_core::error::Error;
use offshoot_core::figures::count;
use offshoot_engine::{EngineFacts, EngineHandle, LogprobsMode, Priority};
use offshoot_model::ModelConfig;
use offshoot_openai::protocol::{
    PoolingEndpoint, PoolingHead, PoolingModel, PoolingRequest, Reasoning, Refusal, RequestReader, ServedModel,
    TextValues,
};
use offshoot_score::TextScorer;
use offshoot_text::Tokenizer;

use super::batches::now;
use super::counted::{CountedCall, answering};
use super::generate::LONG_ANSWER;
use super::models::{ScorerParts, ValueKind};
use super::names::ScorerNames;
use super::random::random_hex;
use super::reply;
use super::server::Server;
use super::valuing::ValueClient;

/// A scorer or embedder that is served.
pub struct ServedScorer {
    /// What requests may call it; at least one.
    pub names: Vec<String>,
    pub engine: EngineHandle,
    tokenizer: Arc<Tokenizer>,
    config: ModelConfig,
    kind: ValueKind,
    client: ValueClient,
}

impl ServedScorer {
    /// A scorer in memory, and the thread that asks for its values.
    pub fn start(scorer: ScorerParts) -> Result<(ServedScorer, JoinHandle<()>), Error> {
        let ScorerParts { engine, tokenizer, config, kind, names } = scorer;
        let (client, thread) = ValueClient::start(engine.clone())?;
        Ok((ServedScorer { names, engine, tokenizer, config, kind, client }, thread))
    }

    /// Its line in what the server says at its start. `is_second`: the room that the server names is that of the
    /// generator beside it.
    pub fn announced(&self, is_second: bool) -> String {
        let names = self.names.join(", ");
        let what = match &self.kind {
            ValueKind::Scorer(model, _) => format!("scorer      {names}, of form {}", model.identity().form),
            ValueKind::Embedder(_) => format!("embedder    {names}"),
        };
        match is_second {
            true => format!("{what}; room for {}", room(self.engine.facts(), "texts")),
            false => what,
        }
    }

    /// An error of its engine, which says whose it is.
    pub fn named(&self, error: Error) -> Error {
        match error {
            Error::EngineStopped { why } => Error::EngineStopped { why: format!("that of {}: {why}", self.names[0]) },
            other => other,
        }
    }

    /// What requests may call it; the error of another name says whose that is.
    pub fn own_names<'a>(&'a self, server: &'a Server) -> ScorerNames<'a> {
        ScorerNames { own: &self.names, generator: server.generates.then_some(&*server.names) }
    }

    /// Reads requests for it.
    pub fn reader<'a>(&'a self, server: &'a Server, names: &'a ScorerNames<'a>) -> RequestReader<'a> {
        RequestReader {
            tokenizer: &self.tokenizer,
            config: &self.config,
            model: &self.names[0],
            names,
            seed: 0,
            limits: &server.limits.protocol,
            reasoning: Reasoning::Keep,
            logprobs_mode: LogprobsMode::default(),
            priority: Priority::default(),
            keeps_routes: false,
        }
    }

    /// Whether a body asks for it by name.
    pub fn is_named(&self, body: &Map<String, Value>) -> bool {
        body.get("model").and_then(Value::as_str).is_some_and(|name| self.names.iter().any(|own| own == name))
    }

    /// The model, as lists show it.
    pub fn served(&self, created: u64) -> ServedModel<'_> {
        ServedModel { names: &self.names, adapters: &[], created, context: self.config.context }
    }

    fn model(&self) -> PoolingModel<'_> {
        match &self.kind {
            ValueKind::Scorer(model, values) => PoolingModel::Scorer(values, model.form()),
            ValueKind::Embedder(values) => PoolingModel::Embedder(*values),
        }
    }
}

/// What an engine has room for at once; `what`: what its branches are.
pub fn room(facts: &EngineFacts, what: &str) -> String {
    let [tokens, branches] = [facts.pool_tokens(), facts.max_branches].map(|many| count(many as u64));
    format!("{tokens} tokens of keys and values, {branches} {what} at once")
}

/// All paths of these endpoints.
pub fn routes() -> Router<Arc<Server>> {
    let paths = PoolingEndpoint::ALL
        .into_iter()
        .flat_map(|endpoint| endpoint.paths().iter().map(move |path| (*path, valuing(endpoint))));
    paths.fold(Router::new(), |router, (path, answers)| router.route(path, answers))
}

/// Whether a path is of these endpoints.
pub fn has_path(path: &str) -> bool {
    PoolingEndpoint::ALL.iter().any(|endpoint| endpoint.paths().contains(&path))
}

/// Answers the requests of an endpoint.
fn valuing(endpoint: PoolingEndpoint) -> MethodRouter<Arc<Server>> {
    answering(move |call| answer(call, endpoint))
}

async fn answer(call: CountedCall, endpoint: PoolingEndpoint) -> Result<Response, Refusal> {
    let CountedCall { server, client, counted, headers, body } = call;
    server.scorer()?;
    let body = server.receive(&headers, body).await?;
    let request = server.work(move |server| read(server, endpoint, &body.parse()?)).await?;
    let request = Arc::new(request);
    let own = request.request_id.clone().unwrap_or_else(random_hex::<16>);
    let head = PoolingHead { id: format!("{}{own}", endpoint.id_prefix()), created: now() };
    // As of jobs: a client's go behind those of others at its wish, and not before them.
    let priority = if server.keys.are_several() { request.priority.max(Priority(0)) } else { request.priority };
    let values = server.scorer()?.client.ask(client, request.clone(), priority).await?;
    server.metrics.prompt_tokens.add(request.texts.iter().map(|text| text.tokens.len()).sum::<usize>() as u64);
    server.metrics.cached_tokens.add(values.iter().map(|text| text.cached).sum::<usize>() as u64);
    let numbers: usize = values.iter().flat_map(|text| &text.rows).map(|row| row.len()).sum();
    let write = move |server: &Server| write(server, &request, &values, &head);
    let body = if numbers > LONG_ANSWER { server.work(write).await? } else { write(&server)? };
    counted.answered();
    Ok(reply::json(body))
}

fn read(server: &Server, endpoint: PoolingEndpoint, body: &Map<String, Value>) -> Result<PoolingRequest, Refusal> {
    let scorer = server.scorer()?;
    let names = scorer.own_names(server);
    scorer.reader(server, &names).read_pooling(endpoint, body, scorer.model())
}

fn write(
    server: &Server,
    request: &PoolingRequest,
    values: &[TextValues],
    head: &PoolingHead,
) -> Result<Vec<u8>, Refusal> {
    request.answer(server.scorer()?.model(), values, head)
}
