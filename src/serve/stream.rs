//! Answers as server-sent events. A stream takes what waits in its job's outbox and writes it as one piece; then it waits
//! for the next tick, which comes for all streams at once: tokens of fast models share chunks, and where the model's
//! threads need every core they are interrupted once for all streams. Nobody waits for a client that reads slowly.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream::unfold;

use crate::launch::SampleId;
use crate::openai::protocol::{ChunkWriter, sse};

use super::dispatch::{Delivery, JobSample, OpenTicket};
use super::reply;
use super::server::Server;

/// After so long without a chunk a comment is sent, so that proxies and clients see that the connection lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Moments at which streams write their chunks, all at once.
pub struct Ticks {
    first: Instant,
    interval: Duration,
}

impl Ticks {
    pub fn every(interval: Duration) -> Ticks {
        Ticks { first: Instant::now(), interval }
    }

    /// The first one after `moment`; the moment itself if they follow each other without a pause.
    fn after(&self, moment: Instant) -> Instant {
        if self.interval.is_zero() {
            return moment;
        }
        let since_tick = moment.saturating_duration_since(self.first).as_nanos() % self.interval.as_nanos();
        let since_tick = u64::try_from(since_tick).expect("less than an interval of at most seconds");
        moment + self.interval - Duration::from_nanos(since_tick)
    }
}

/// An answer on its way.
struct Stream {
    server: Arc<Server>,
    ticket: OpenTicket,
    writer: ChunkWriter,
    /// When the last chunk was written.
    written: Option<Instant>,
    has_ended: bool,
}

pub fn response(server: Arc<Server>, ticket: OpenTicket, writer: ChunkWriter) -> Response {
    let stream = Stream { server, ticket, writer, written: None, has_ended: false };
    let pieces = unfold(stream, async |mut stream| {
        let piece = stream.next().await?;
        Some((Ok::<Bytes, Infallible>(piece), stream))
    });
    let mut response = reply::with_type(sse::CONTENT_TYPE, Body::from_stream(pieces));
    response.headers_mut().insert("cache-control", axum::http::HeaderValue::from_static("no-cache"));
    response
}

impl Stream {
    /// The next bytes; `None` after the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.has_ended {
            return None;
        }
        let mut out = Vec::new();
        while out.is_empty() {
            self.pause().await;
            let Ok(deliveries) = tokio::time::timeout(KEEP_ALIVE, self.ticket.take()).await else {
                return Some(Bytes::from_static(sse::KEEP_ALIVE));
            };
            deliveries.into_iter().for_each(|delivery| self.write(delivery, &mut out));
        }
        let now = Instant::now();
        if let Some(before) = self.written.replace(now) {
            self.server.metrics.between_chunks.note(now - before);
        }
        Some(out.into())
    }

    /// Waits until another chunk is due, or the last one can be written.
    async fn pause(&self) {
        let Some(written) = self.written else { return };
        let due = self.server.ticks.after(written);
        if due > Instant::now() {
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {}
                () = self.ticket.ended() => {}
            }
        }
    }

    fn write(&mut self, delivery: Delivery, out: &mut Vec<u8>) {
        let id = |JobSample { prompt, sample }| SampleId { prompt, sample };
        match delivery {
            Delivery::Tokens { sample, tokens, text } => self.writer.tokens(id(sample), tokens, &text, out),
            Delivery::Finished { sample, finish, branch } => {
                self.writer.finished(id(sample), finish, branch.map(|branch| branch.to_string()), out);
            }
            Delivery::Done(usage) => {
                self.writer.set_cached(usage.cached.iter().sum());
                self.writer.end(out);
                self.has_ended = true;
            }
            Delivery::Refused(refusal) => {
                sse::fail(&refusal, out);
                self.has_ended = true;
            }
        }
    }
}
