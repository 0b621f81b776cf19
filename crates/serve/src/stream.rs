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

use offshoot_engine::{Finish, SampledToken};
use offshoot_launch::SampleId;
use offshoot_openai::protocol::{ChunkWriter, Refusal, sse};

use super::counted::CountedRequest;
use super::dispatch::{Delivery, OpenTicket};
use super::generate::LONG_ANSWER;
use super::leases::UnsentBranch;
use super::reply;
use super::server::Server;

/// After so long without a chunk a comment is sent, so that proxies and clients see that the connection lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Writes the pieces of an answer as its samples' events come.
pub trait AnswerWriter: Send + Sync {
    /// Whether what ends repeats what was written before, so that writing takes as long as all of that.
    fn repeats(&self) -> bool;
    /// Appends what stands before any token, if something does.
    fn begin(&mut self, out: &mut Vec<u8>);
    /// Tokens of a sample have come, with this text that is final.
    fn tokens(&mut self, sample: SampleId, tokens: Vec<SampledToken>, text: &str, out: &mut Vec<u8>);
    /// A sample has ended; `branch`: as which one it is kept.
    fn finished(&mut self, sample: SampleId, finish: Finish, branch: Option<UnsentBranch>, out: &mut Vec<u8>);
    /// All samples have ended; `cached`: the tokens of all prompts that were not computed for the request.
    fn end(&mut self, cached: usize, out: &mut Vec<u8>);
    /// The request ends without an answer.
    fn fail(&mut self, refusal: &Refusal, out: &mut Vec<u8>);
}

impl AnswerWriter for ChunkWriter {
    fn repeats(&self) -> bool {
        false
    }

    fn begin(&mut self, _: &mut Vec<u8>) {}

    fn tokens(&mut self, sample: SampleId, tokens: Vec<SampledToken>, text: &str, out: &mut Vec<u8>) {
        self.tokens(sample, tokens, text, out);
    }

    fn finished(&mut self, sample: SampleId, finish: Finish, branch: Option<UnsentBranch>, out: &mut Vec<u8>) {
        self.finished(sample, finish, branch.map(UnsentBranch::into_id), out);
    }

    fn end(&mut self, cached: usize, out: &mut Vec<u8>) {
        self.set_cached(cached);
        self.end(out);
    }

    fn fail(&mut self, refusal: &Refusal, out: &mut Vec<u8>) {
        sse::fail(refusal, out);
    }
}

/// An answer on its way.
struct Stream {
    server: Arc<Server>,
    ticket: OpenTicket,
    counted: CountedRequest,
    writer: Box<dyn AnswerWriter>,
    /// What the answer shows of each token: itself, and alternatives to it.
    shown_per_token: usize,
    /// That of all tokens that have come.
    shown: usize,
    has_begun: bool,
    /// When the last chunk was written.
    written: Option<Instant>,
    has_ended: bool,
}

pub fn response(
    server: Arc<Server>,
    ticket: OpenTicket,
    counted: CountedRequest,
    shown_per_token: usize,
    writer: Box<dyn AnswerWriter>,
) -> Response {
    server.ticks.open.fetch_add(1, Ordering::Relaxed);
    let stream = Stream {
        server,
        ticket,
        counted,
        writer,
        shown_per_token,
        shown: 0,
        has_begun: false,
        written: None,
        has_ended: false,
    };
    let pieces = unfold(Some(stream), async |stream| {
        let (piece, stream) = stream?.next().await?;
        Some((Ok::<Bytes, Infallible>(piece), stream))
    });
    let mut response = reply::with_type(sse::CONTENT_TYPE, Body::from_stream(pieces));
    response.headers_mut().insert("cache-control", axum::http::HeaderValue::from_static("no-cache"));
    response
}

impl Stream {
    /// The next bytes, and what is left of the stream; `None` after the end.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        if self.has_ended {
            return None;
        }
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            self.writer.begin(&mut out);
            if !out.is_empty() {
                return Some((out.into(), Some(self)));
            }
        }
        while out.is_empty() {
            self.pause().await;
            let Ok(deliveries) = tokio::time::timeout(KEEP_ALIVE, self.ticket.take()).await else {
                return Some((Bytes::from_static(sse::KEEP_ALIVE), Some(self)));
            };
            match self.write(deliveries).await {
                Ok((stream, piece)) => (self, out) = (stream, piece),
                // The stream is gone with the thread that wrote it.
                Err(refusal) => {
                    sse::fail(&refusal, &mut out);
                    return Some((out.into(), None));
                }
            }
        }
        let now = Instant::now();
        if let Some(before) = self.written.replace(now) {
            self.server.metrics.between_chunks.note(now - before);
        }
        Some((out.into(), Some(self)))
    }

    /// The bytes of what has come; those that take long on a thread of their own.
    async fn write(mut self, deliveries: Vec<Delivery>) -> Result<(Self, Vec<u8>), Refusal> {
        let new = self.shown_per_token * deliveries.iter().map(Delivery::tokens).sum::<usize>();
        self.shown += new;
        let written = if self.writer.repeats() { self.shown } else { new };
        let server = self.server.clone();
        let write = move |_: &Server| {
            let mut out = Vec::new();
            deliveries.into_iter().for_each(|delivery| self.append(delivery, &mut out));
            Ok((self, out))
        };
        if written > LONG_ANSWER { server.work(write).await } else { write(&server) }
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

    fn append(&mut self, delivery: Delivery, out: &mut Vec<u8>) {
        match delivery {
            Delivery::Tokens { sample, tokens, text } => self.writer.tokens(sample, tokens, &text, out),
            Delivery::Finished { sample, finish, branch } => self.writer.finished(sample, *finish, branch, out),
            Delivery::Done(cached) => {
                self.writer.end(cached.iter().sum(), out);
                self.counted.answered();
                self.has_ended = true;
            }
            Delivery::Refused(refusal) => {
                self.writer.fail(&refusal, out);
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
