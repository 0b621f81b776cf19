//! Answers as server-sent events. A stream takes what waits in its job's outbox and writes it as one piece; then it
//! waits for the next tick, which comes for all streams at once: tokens of fast models share chunks, and the threads
//! that compute the model on the same cores are interrupted once for all streams. Nothing waits for a client that reads
//! slowly.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream::unfold;

use offshoot_openai::protocol::{ChunkWriter, sse};

use super::counted::CountedRequest;
use super::dispatch::{Delivery, OpenTicket};
use super::reply;
use super::server::Server;

/// After so long without a chunk a comment is sent, so that proxies and clients see that the connection lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// An answer on its way.
struct Stream {
    server: Arc<Server>,
    ticket: OpenTicket,
    counted: CountedRequest,
    writer: ChunkWriter,
    /// When the last chunk was written.
    written: Option<Instant>,
    has_ended: bool,
}

pub fn response(server: Arc<Server>, ticket: OpenTicket, counted: CountedRequest, writer: ChunkWriter) -> Response {
    server.ticks.open.fetch_add(1, Ordering::Relaxed);
    let stream = Stream { server, ticket, counted, writer, written: None, has_ended: false };
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
        match delivery {
            Delivery::Tokens { sample, tokens, text } => self.writer.tokens(sample, tokens, &text, out),
            Delivery::Finished { sample, finish, branch } => self.writer.finished(sample, *finish, branch, out),
            Delivery::Done(cached) => {
                self.writer.set_cached(cached.iter().sum());
                self.writer.end(out);
                self.counted.answered();
                self.has_ended = true;
            }
            Delivery::Refused(refusal) => {
                sse::fail(&refusal, out);
                self.counted.refused();
                self.has_ended = true;
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.server.ticks.open.fetch_sub(1, Ordering::Relaxed);
    }
}
