//! Answers as server-sent events. A stream takes what waits in its job's outbox and writes it as one piece; then it waits
//! for the next tick, which comes for all streams at once: tokens of fast models share chunks, and the threads that
//! compute the model on the same cores are interrupted once for all streams. Nothing waits for a client that reads slowly.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream::unfold;

use offshoot_openai::protocol::{ChunkWriter, sse};

use super::dispatch::{Delivery, OpenTicket};
use super::reply;
use super::server::Server;

/// After so long without a chunk a comment is sent, so that proxies and clients see that the connection lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Moments at which streams write their chunks, all at once.
pub struct Ticks {
    first: Instant,
    interval: Duration,
    /// Added to the interval for each stream that is open.
    interval_per_stream: Duration,
    /// Most streams that have something to write: the branches that run at once.
    most: usize,
    open: AtomicUsize,
}

/// What a chunk costs a core: the server's and the system's part, and that of a client on the same machine.
const CHUNK_COST: Duration = Duration::from_micros(40);
/// The share of the cores that chunks may take from the model's threads: one in so many.
const CHUNK_SHARE: u32 = 50;

impl Ticks {
    /// `interval`: the shortest. `cores`: those that compute the model and write chunks; `None`: a device computes it.
    pub fn new(interval: Duration, cores: Option<u32>, most: usize) -> Ticks {
        let interval_per_stream = cores.map_or(Duration::ZERO, |cores| CHUNK_COST * CHUNK_SHARE / cores);
        Ticks { first: Instant::now(), interval, interval_per_stream, most, open: AtomicUsize::new(0) }
    }

    /// The first one after `moment`; the moment itself if they follow each other without a pause.
    fn after(&self, moment: Instant) -> Instant {
        if self.interval.is_zero() {
            return moment;
        }
        // A multiple of the shortest interval, so that those of few streams and of many coincide.
        let streams = u32::try_from(self.open.load(Ordering::Relaxed).min(self.most)).unwrap_or(u32::MAX);
        let wanted = self.interval_per_stream.saturating_mul(streams).as_nanos();
        let interval = self.interval.as_nanos() * wanted.div_ceil(self.interval.as_nanos()).max(1);
        let since_tick = moment.saturating_duration_since(self.first).as_nanos() % interval;
        moment + Duration::from_nanos(u64::try_from(interval - since_tick).expect("intervals are below a century"))
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
    server.ticks.open.fetch_add(1, Ordering::Relaxed);
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
        match delivery {
            Delivery::Tokens { sample, tokens, text } => self.writer.tokens(sample, tokens, &text, out),
            Delivery::Finished { sample, finish, branch } => {
                self.writer.finished(sample, finish, branch.map(|branch| branch.to_string()), out);
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

impl Drop for Stream {
    fn drop(&mut self) {
        self.server.ticks.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn streams_write_at_common_ticks_that_are_rarer_the_more_there_are() {
        let ticks = Ticks::new(30 * MS, Some(2), 100);
        let at = |after: Duration| ticks.after(ticks.first + after) - ticks.first;
        assert_eq!([0, 1, 29, 30, 100].map(|ms| at(ms * MS)), [30, 30, 30, 60, 120].map(|ms| ms * MS));
        // 60 ms are wanted for 60 streams, and 100 for any number from 100 on: so 120.
        ticks.open.store(60, Ordering::Relaxed);
        assert_eq!([0, 59, 61].map(|ms| at(ms * MS)), [60, 60, 120].map(|ms| ms * MS));
        ticks.open.store(10_000, Ordering::Relaxed);
        assert_eq!([0, 119, 121].map(|ms| at(ms * MS)), [120, 120, 240].map(|ms| ms * MS));
        let beside_a_device = Ticks::new(30 * MS, None, 100);
        beside_a_device.open.store(100, Ordering::Relaxed);
        assert_eq!(beside_a_device.after(beside_a_device.first), beside_a_device.first + 30 * MS);
        let at_once = Ticks::new(Duration::ZERO, Some(2), 100);
        assert_eq!(at_once.after(at_once.first), at_once.first);
    }
}
