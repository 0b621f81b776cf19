//! The paths of the server.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, extract};
use serde_json::{Map, Value, json};

use offshoot_openai::protocol::{
    Endpoint, RESPONSES_PATH, Refusal, RefusalKind, RequestReader, SKYRL_PATH, ServedModel, TOKENS_PATH, tokenizer_info,
};

use super::counted::{CountedRequest, answering};
use super::engine_metrics;
use super::exchange::{AllowedOrigins, exchange};
use super::file_routes;
use super::generate::generate;
use super::in_path::InPath;
use super::keys::ClientId;
use super::metrics::gauge;
use super::page;
use super::pooling;
use super::reply::{self, Answer, Refused};
use super::responses;
use super::rollout;
use super::server::{AppState, Server};

/// `has_page`: with the page at `/`.
pub fn routes(server: Arc<Server>, has_page: bool, origins: AllowedOrigins) -> Router {
    let (shell, events) = match has_page {
        true => (page::shell(), page::events()),
        false => Default::default(),
    };
    let guarded = Router::new()
        .route(Endpoint::Completions.path(), generating(Endpoint::Completions))
        .route(Endpoint::Chat.path(), generating(Endpoint::Chat))
        .route("/v1/branches/{id}", get(branch).delete(release_branch))
        .merge(file_routes::routes())
        .merge(responses::routes())
        .route_layer(from_fn_with_state(server.clone(), check_generates))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(info))
        .route("/v1/tokenize", post(tokenize))
        .route("/v1/detokenize", post(detokenize))
        .route("/v1/tokenizer_info", get(info))
        .merge(pooling::routes())
        .merge(events)
        .route_layer(from_fn_with_state(server.clone(), check_key));
    let open = Router::new()
        .route("/health", get(health))
        .route("/ping", get(health))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .merge(shell);
    let verbs = match server.rollout {
        Some(_) => rollout::routes(server.clone()),
        None => Router::new(),
    };
    guarded
        .merge(open)
        .merge(verbs)
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(from_fn(check_coding))
        .layer(from_fn_with_state(server.clone(), count_exchange))
        .layer(from_fn_with_state(Arc::new(origins), exchange))
        .with_state(server)
}

async fn check_key(State(server): AppState, mut request: Request, next: Next) -> Response {
    match server.keys.client(request.headers()) {
        Ok(client) => {
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        Err(refusal) => Refused(refusal).into_response(),
    }
}

/// Refuses requests for what only a model that generates can do.
async fn check_generates(State(server): AppState, request: Request, next: Next) -> Response {
    match server.check_generates() {
        Ok(()) => next.run(request).await,
        Err(refusal) => Refused(refusal).into_response(),
    }
}

/// Refuses bodies in any other coding than one whole `chunked`, which servers behind or before this one may read in
/// another way.
async fn check_coding(request: Request, next: Next) -> Response {
    let codings: Vec<&[u8]> =
        request.headers().get_all(TRANSFER_ENCODING).iter().map(|value| value.as_bytes()).collect();
    match codings[..] {
        [] => next.run(request).await,
        [one] if one.eq_ignore_ascii_case(b"chunked") => next.run(request).await,
        _ => {
            let refusal = Refusal::value("Transfer-Encoding", "`chunked` or none", "another one");
            let mut refused = Refused(refusal).into_response();
            refused.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            refused
        }
    }
}

/// The paths of requests for samples, scores or values.
fn is_for_samples(path: &str) -> bool {
    pooling::has_path(path)
        || [TOKENS_PATH, SKYRL_PATH, RESPONSES_PATH].contains(&path)
        || Endpoint::ALL.iter().any(|one| one.path() == path)
}

/// Counts responses, and requests for samples, scores or values.
async fn count_exchange(State(server): AppState, mut request: Request, next: Next) -> Response {
    let is_counted = request.method() == Method::POST && is_for_samples(request.uri().path());
    let counted = is_counted.then(|| CountedRequest::new(server.metrics.clone()));
    if let Some(counted) = &counted {
        request.extensions_mut().insert(counted.clone());
    }
    let response = next.run(request).await;
    if let Some(counted) = counted.filter(|_| !response.status().is_success()) {
        counted.refused();
    }
    let class = usize::from(response.status().as_u16() / 100);
    if let Some(count) = server.metrics.responses.get(class) {
        count.add(1);
    }
    response
}

/// Answers the requests of an endpoint.
fn generating(endpoint: Endpoint) -> MethodRouter<Arc<Server>> {
    answering(move |call| generate(call, endpoint))
}

/// The model that generates and its adapters, then the one that scores.
async fn models(State(server): AppState) -> Response {
    let adapters = server.names.adapters();
    let generator = server.generates.then(|| server.served(&adapters));
    let scorer = server.scorer.as_ref().map(|scorer| scorer.served(server.created));
    reply::value(&ServedModel::list(generator.into_iter().chain(scorer)))
}

async fn model(State(server): AppState, InPath(name): InPath) -> Answer {
    if let Some(scorer) = server.scorer.as_ref().filter(|scorer| scorer.names.contains(&name)) {
        return Ok(reply::value(&scorer.served(server.created).one(&name)?));
    }
    Ok(reply::value(&server.served(&server.names.adapters()).one(&name)?))
}

async fn branch(State(server): AppState, client: Extension<ClientId>, InPath(id): InPath) -> Answer {
    Ok(reply::value(&server.leases.describe(*client, &id)?))
}

async fn release_branch(State(server): AppState, client: Extension<ClientId>, InPath(id): InPath) -> Answer {
    server.leases.release(*client, &id)?;
    Ok(reply::value(&json!({ "id": id, "object": "branch", "deleted": true })))
}

async fn tokenize(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let body = server.receive(&headers, body).await?;
    let tokenize = move |server: &Server| {
        let body = body.parse()?;
        with_reader(server, &body, |reader| reader.tokenize(&body))
    };
    Ok(reply::value(&server.work(tokenize).await?))
}

async fn detokenize(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let body = server.receive(&headers, body).await?;
    let detokenize = move |server: &Server| {
        let body = body.parse()?;
        with_reader(server, &body, |reader| reader.detokenize(&body))
    };
    Ok(reply::value(&server.work(detokenize).await?))
}

/// Reads with the tokenizer of the model that a body names.
fn with_reader<T>(server: &Server, body: &Map<String, Value>, act: impl FnOnce(&RequestReader<'_>) -> T) -> T {
    match server.scorer.as_ref().filter(|scorer| scorer.is_named(body)) {
        Some(scorer) => act(&scorer.reader(server, &scorer.own_names(server))),
        None => act(&server.reader()),
    }
}

async fn info(State(server): AppState) -> Response {
    reply::value(&tokenizer_info(&server.tokenizer, server.config.context))
}

async fn health(State(server): AppState) -> Answer {
    server.dispatcher.check_alive()?;
    if let Some(scorer) = &server.scorer {
        // An engine that has stopped says why.
        scorer.engine.live().map_err(|error| Refusal::of(&scorer.named(error)))?;
    }
    Ok(reply::value(&json!({ "status": "ok" })))
}

async fn version() -> Response {
    reply::value(&json!({ "version": env!("CARGO_PKG_VERSION") }))
}

async fn metrics(State(server): AppState) -> Response {
    let mut text = String::new();
    server.metrics.write(&mut text);
    gauge(&mut text, "offshoot_requests_open", "Requests that have not ended", server.dispatcher.open() as f64);
    gauge(
        &mut text,
        "offshoot_requests_waiting",
        "Those of them that wait to begin",
        server.dispatcher.waiting() as f64,
    );
    gauge(&mut text, "offshoot_branches_kept", "Branches that clients keep", server.leases.len() as f64);
    gauge(&mut text, "offshoot_responses_kept", "Responses among them", server.leases.responses() as f64);
    gauge(
        &mut text,
        "offshoot_responses_kept_bytes",
        "Bytes of what they say and of their tokens",
        server.leases.memory.bytes() as f64,
    );
    // An engine that has stopped has no values.
    if let Ok(live) = server.engine.live() {
        engine_metrics::write(&live, server.engine.facts(), &mut text);
    }
    if let Some(scorer) = server.scorer.as_ref().filter(|_| server.generates)
        && let Ok(live) = scorer.engine.live()
    {
        engine_metrics::write_scorer(&live, &mut text);
    }
    reply::with_type("text/plain; version=0.0.4; charset=utf-8", Body::from(text))
}

async fn unknown_path(request: extract::Request) -> Refused {
    let path: String = request.uri().path().chars().take(100).collect();
    Refused(Refusal::not_found(format!("there is no {path}")))
}

async fn unknown_method(request: extract::Request) -> Refused {
    let path = request.uri().path();
    let takes = if is_for_samples(path) { ", but POST" } else { "" };
    let what = format!("{path} does not take {}{takes}", request.method());
    Refused(Refusal::of_kind(RefusalKind::Method, "method_not_allowed", what))
}
