//! The page at `/`, and the events that it draws: what runs, how long it takes, and the memory for keys and values. All
//! viewers share one look at the engine a second; each has a task, which ends with its connection or when the server is
//! asked to stop.

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
use offshoot_openai::protocol::files::{BatchObject, RequestCounts};
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
/// Open requests, and batches, in an event.
const MOST_REQUESTS: usize = 50;
const MOST_BATCHES: usize = 10;
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
    progress: AnswerProgress,
}

enum AnswerProgress {
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
    let viewer = Viewer { server, views, stopping, _place: place, progress: AnswerProgress::Begun };
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
            AnswerProgress::Begun => {}
            AnswerProgress::Going => tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.stopping.wait() => return None,
            },
            AnswerProgress::Ended => return None,
        }
        let event = self.views.event(&self.server).await;
        self.progress = if event.is_ok() { AnswerProgress::Going } else { AnswerProgress::Ended };
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
        "models": server.names.of_model(),
        "device": facts.device,
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": server.metrics.uptime().as_secs_f64(),
        "requests": {
            "open": server.dispatcher.open(),
            "waiting": server.dispatcher.waiting(),
            "answered": server.metrics.answered.get(),
            "refused": server.metrics.refused.get(),
            "cancelled": server.metrics.cancelled.get(),
        },
        "latency": {
            "request": server.metrics.recent_jobs.quantiles(),
            "first_token": server.metrics.recent_first_tokens.quantiles(),
        },
        "open_requests": server.dispatcher.list(MOST_REQUESTS),
        "batches": batches(server),
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

/// The batches that run or wait, oldest first: without names where they are those of clients with different keys.
fn batches(server: &Server) -> Vec<Value> {
    let open = server.batches.iter().flat_map(|batches| batches.open(MOST_BATCHES));
    let shown = |batch: BatchObject| {
        let RequestCounts { total, completed, failed } = batch.request_counts;
        json!({
            "id": (!server.keys.are_several()).then_some(batch.id),
            "status": batch.status,
            "total": total,
            "completed": completed,
            "failed": failed,
        })
    };
    open.map(shown).collect()
}

/// A segment of the prefix tree, with how its text begins: without it where clients with different keys, or those
/// behind a proxy that gives them salts, would see each other's.
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
        "text": (!server.keys.are_several() && !segment.is_salted).then(text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Colours of the page by name, from the first `:root` behind `begin`.
    fn colours(begin: &str) -> Vec<(&'static str, [f64; 3])> {
        let rules = HTML.split_once(begin).and_then(|(_, rest)| rest.split_once(":root {")?.1.split_once('}'));
        let named = rules.expect("the page has them").0.split(';').filter_map(|rule| rule.trim().split_once(": #"));
        let channel = |hex: &str, at: usize| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).expect("a colour"));
        named
            .map(|(name, hex)| (name.trim().trim_start_matches('-'), [0, 2, 4].map(|at| channel(hex, at) / 255.0)))
            .collect()
    }

    fn linear(colour: [f64; 3]) -> [f64; 3] {
        colour.map(|part| if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) })
    }

    fn sum(weights: [f64; 3], of: [f64; 3]) -> f64 {
        weights.iter().zip(of).map(|(weight, part)| weight * part).sum()
    }

    /// Ottosson's OKLab (2020), in which equal distances look about equally large.
    fn oklab(colour: [f64; 3]) -> [f64; 3] {
        const CONES: [[f64; 3]; 3] = [
            [0.412_221_47, 0.536_332_54, 0.051_445_99],
            [0.211_903_50, 0.680_699_55, 0.107_396_96],
            [0.088_302_46, 0.281_718_84, 0.629_978_70],
        ];
        const LAB: [[f64; 3]; 3] = [
            [0.210_454_26, 0.793_617_79, -0.004_072_05],
            [1.977_998_50, -2.428_592_21, 0.450_593_71],
            [0.025_904_04, 0.782_771_77, -0.808_675_77],
        ];
        let cones = CONES.map(|weights| sum(weights, linear(colour)).cbrt());
        LAB.map(|weights| sum(weights, cones))
    }

    /// The contrast of WCAG: from 1 to 21.
    fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
        let [one, other] = [one, other].map(|colour| sum([0.2126, 0.7152, 0.0722], linear(colour)) + 0.05);
        one.max(other) / one.min(other)
    }

    #[test]
    fn colours_differ_and_texts_can_be_read_in_both_modes() {
        for begin in ["<style", "(prefers-color-scheme: dark)"] {
            let colours = colours(begin);
            let of = |name: &str| colours.iter().find(|(own, _)| *own == name).expect("the page names it").1;
            // Of areas that lie beside each other.
            let areas = ["card", "cached", "use1", "use2", "use3", "use4", "use5", "pin"];
            for (at, one) in areas.iter().enumerate() {
                for other in &areas[at + 1..] {
                    let squares = oklab(of(one)).into_iter().zip(oklab(of(other))).map(|(a, b)| (a - b).powi(2));
                    let distance = squares.sum::<f64>().sqrt();
                    assert!(distance >= 0.09, "{begin}: {one} and {other} are {distance:.3} apart");
                }
            }
            let on = ["on0", "on1", "on2", "on3", "on4", "on5"];
            let labels = on.iter().zip(&areas[1..]).map(|(text, area)| (*text, *area));
            let texts = [("text", "card"), ("faint", "card"), ("text", "back"), ("bad", "back")];
            for (text, area) in labels.chain(texts) {
                let contrast = contrast(of(text), of(area));
                assert!(contrast >= 4.5, "{begin}: {text} on {area} has the contrast {contrast:.2}");
            }
        }
    }
}
