//! The page at `/`, and the events that it draws: what runs, and the memory for keys and values. All viewers share one
//! look at the engine a second; each has a task, which ends with its connection or when the server is asked to stop.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::stream::unfold;
use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use offshoot_kv::MappedSegment;
use offshoot_openai::protocol::{Refusal, sse};

use super::listen::Stopping;
use super::random::random_hex;
use super::reply::{self, Refused};
use super::server::Server;

const HTML: &str = include_str!("page.html");
/// Stands in the page for the number that its own script and style have and no other.
const NONCE: &str = "NONCE";
/// Between two events.
const INTERVAL: Duration = Duration::from_secs(1);
/// Viewers at once.
const MOST_VIEWERS: usize = 32;
/// Segments of the prefix tree in an event.
const MOST_SEGMENTS: usize = 400;
/// Characters of a segment's text.
const MOST_CHARS: usize = 80;

/// What the viewers share.
struct Views {
    places: Arc<Semaphore>,
    /// The last event, and when it was made.
    latest: Mutex<Option<(Instant, Bytes)>>,
}

/// A viewer's connection.
struct Viewer {
    server: Arc<Server>,
    views: Arc<Views>,
    stopping: Stopping,
    _place: OwnedSemaphorePermit,
    progress: Progress,
}

enum Progress {
    Begun,
    Going,
    Ended,
}

/// The page, which needs no key.
pub fn shell() -> Router<Arc<Server>> {
    Router::new().route("/", get(page))
}

/// Its events.
pub fn events() -> Router<Arc<Server>> {
    let views = Views { places: Arc::new(Semaphore::new(MOST_VIEWERS)), latest: Mutex::default() };
    Router::new().route("/events", get(watch)).route_layer(Extension(Arc::new(views)))
}

async fn page() -> Response {
    let nonce = random_hex::<16>();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = reply::with_type("text/html; charset=utf-8", Body::from(HTML.replace(NONCE, &nonce)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_str(&policy).expect("a policy is ASCII"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn watch(
    State(server): State<Arc<Server>>,
    Extension(views): Extension<Arc<Views>>,
    Extension(stopping): Extension<Stopping>,
) -> Result<Response, Refused> {
    let place = views.places.clone().try_acquire_owned().map_err(|_| {
        Refusal::rate_limit(format!("{MOST_VIEWERS} viewers look at this server; at most so many may"), 10)
    })?;
    let viewer = Viewer { server, views, stopping, _place: place, progress: Progress::Begun };
    let events = unfold(viewer, async |mut viewer| {
        let event = viewer.next().await?;
        Some((Ok::<Bytes, Infallible>(event), viewer))
    });
    let mut response = reply::with_type(sse::CONTENT_TYPE, Body::from_stream(events));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

impl Viewer {
    /// The next event; `None` after the end.
    async fn next(&mut self) -> Option<Bytes> {
        match self.progress {
            Progress::Begun => {}
            Progress::Going => tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.stopping.wait() => return None,
            },
            Progress::Ended => return None,
        }
        let event = self.views.event(&self.server).await;
        self.progress = if event.is_ok() { Progress::Going } else { Progress::Ended };
        Some(event.unwrap_or_else(|refusal| {
            let mut out = Vec::new();
            sse::fail(&refusal, &mut out);
            out.into()
        }))
    }
}

impl Views {
    /// The event of this second.
    async fn event(&self, server: &Arc<Server>) -> Result<Bytes, Refusal> {
        let mut latest = self.latest.lock().await;
        if let Some((made, event)) = &*latest
            && made.elapsed() < INTERVAL / 2
        {
            return Ok(event.clone());
        }
        let event = server.work(write_event).await?;
        *latest = Some((Instant::now(), event.clone()));
        Ok(event)
    }
}

/// What the page draws. Sums are since the server started; bytes count all layers. `held` bytes are in part `pinned`,
/// by pins, and in part `cached`.
fn write_event(server: &Server) -> Result<Bytes, Refusal> {
    let engine = &server.engine;
    let stopped = |error| Refusal::of(&error);
    let (live, map) = (engine.live().map_err(stopped)?, engine.cache_map(MOST_SEGMENTS).map_err(stopped)?);
    let (facts, pages, metrics) = (engine.facts(), live.pages, live.metrics);
    let bytes = |pages: usize| pages * facts.page_bytes;
    let segments: Vec<Value> = map.into_iter().map(|segment| shown(segment, server)).collect();
    let event = json!({
        "models": server.names,
        "device": facts.device,
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": server.metrics.uptime().as_secs_f64(),
        "requests": {
            "open": server.dispatcher.open(),
            "waiting": server.dispatcher.waiting(),
            "answered": server.metrics.jobs.get(),
        },
        "branches": { "running": live.running, "waiting": live.waiting, "kept": server.leases.len() },
        "tokens_sampled": metrics.tokens_sampled,
        "kv": {
            "total": bytes(pages.total),
            "held": bytes(pages.held),
            "pinned": bytes(pages.pinned),
            "cached": bytes(pages.cached),
        },
        "prompt_tokens_logical": metrics.prompt_tokens_logical,
        "prompt_tokens_computed": metrics.prompt_tokens_computed,
        "kv_bytes_read": metrics.kv_bytes_read,
        "kv_bytes_read_flat": metrics.kv_bytes_read_flat,
        "segments": segments,
    });
    let mut out = Vec::new();
    sse::frame(&event, &mut out);
    Ok(out.into())
}

/// A segment of the prefix tree, with how its text begins: without it where clients with different keys would see each
/// other's.
fn shown(segment: MappedSegment, server: &Server) -> Value {
    let text = || server.tokenizer.decode_with_special(&segment.begin).chars().take(MOST_CHARS).collect::<String>();
    json!({
        "parent": segment.parent,
        "tokens": segment.tokens,
        "bytes": segment.bytes,
        "bytes_beneath": segment.bytes_beneath,
        "leases": segment.leases,
        "users": segment.users,
        "is_pinned": segment.is_pinned,
        "text": (!server.keys.are_several()).then(text),
    })
}
