//! Bodies for heads that hyper refuses. It answers a head that it cannot read (400), that is too long (431) or whose
//! path is (414) by itself, before any of our code runs, and with an empty body. The connection's stream replaces that
//! answer by one in the protocol's form, and lets the client read it before the connection is closed.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use offshoot_openai::protocol::{Refusal, RefusalKind};

use super::exchange::new_request_id;
use super::metrics::ServeMetrics;

/// How long, and how many bytes, a client may go on sending after its head was refused. A connection that is closed
/// with unread bytes takes the answer with it.
const LINGER: Duration = Duration::from_secs(1);
const LINGERED: u64 = 4 << 20;

/// What a connection's stream and its requests share.
#[derive(Default)]
pub struct ConnectionState {
    /// Requests whose responses are not handed over whole. While there are any, what is written is theirs.
    under_way: AtomicUsize,
    /// The stream of a connection whose last head was refused.
    refused: Mutex<Option<TcpStream>>,
}

impl ConnectionState {
    /// A request has come. Its response is over when what this returns is dropped.
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(self.clone())
    }

    /// Waits, once the connection has ended, until a client whose head was refused has closed its side.
    pub async fn linger(&self) {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stream) = refused {
            let mut rest = stream.take(LINGERED);
            let _ = tokio::time::timeout(LINGER, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
        }
    }
}

/// A request whose response is not handed over whole.
pub struct UnderWay(Arc<ConnectionState>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A response's body; its request is under way until hyper has taken all of it.
pub struct BodyUnderWay {
    body: Body,
    _under_way: UnderWay,
}

impl BodyUnderWay {
    pub fn new(body: Body, under_way: UnderWay) -> BodyUnderWay {
        BodyUnderWay { body, _under_way: under_way }
    }
}

impl HttpBody for BodyUnderWay {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A client's stream, in which hyper's own refusals get bodies.
pub struct ClientStream {
    /// `None`: handed to `linger`.
    stream: Option<TcpStream>,
    state: Arc<ConnectionState>,
    metrics: Arc<ServeMetrics>,
    /// What is written in place of a refusal.
    instead: Option<Replacement>,
}

struct Replacement {
    bytes: Vec<u8>,
    written: usize,
    /// Bytes of what it stands for.
    of: usize,
}

impl ClientStream {
    pub fn new(stream: TcpStream, state: Arc<ConnectionState>, metrics: Arc<ServeMetrics>) -> ClientStream {
        ClientStream { stream: Some(stream), state, metrics, instead: None }
    }

    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.stream.as_mut().expect("it is taken when this is dropped"))
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if self.instead.is_some() {
            *self.state.refused.lock().unwrap_or_else(PoisonError::into_inner) = self.stream.take();
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_read(context, into)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.instead.is_none()
            && self.state.under_way.load(Ordering::Acquire) == 0
            && let Some((begin, status)) = own_refusal(bytes)
        {
            self.metrics.responses[4].add(1);
            let written = [&bytes[..begin], &refusal(status)].concat();
            self.instead = Some(Replacement { bytes: written, written: 0, of: bytes.len() });
        }
        let Some(mut instead) = self.instead.take_if(|instead| instead.written < instead.bytes.len()) else {
            return self.stream().poll_write(context, bytes);
        };
        // Nothing is said to be written before all of it is: hyper offers the same bytes again.
        let done = loop {
            match self.stream().poll_write(context, &instead.bytes[instead.written..]) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => instead.written += written,
                other => break other,
            }
            if instead.written == instead.bytes.len() {
                break Poll::Ready(Ok(instead.of));
            }
        };
        self.instead = Some(instead);
        done
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream().poll_shutdown(context))?;
        Poll::Ready(Ok(()))
    }
}

/// Where in `bytes`, at their end, an empty answer of hyper's own begins, and its status. Our own responses have an id,
/// and bytes of bodies are not looked at.
fn own_refusal(bytes: &[u8]) -> Option<(usize, u16)> {
    const BEGIN: &[u8] = b"HTTP/1.1 4";
    let begin = bytes.windows(BEGIN.len()).rposition(|window| window == BEGIN)?;
    let head = std::str::from_utf8(&bytes[begin..]).ok()?;
    let is_own = head.find("\r\n\r\n").is_some_and(|end| end + 4 == head.len())
        && head.contains("\r\ncontent-length: 0\r\n")
        && !head.contains("\r\nx-request-id:");
    let status = head.get(9..12)?.parse().ok()?;
    is_own.then_some((begin, status))
}

/// The whole answer to a head that is refused with this status.
fn refusal(status: u16) -> Vec<u8> {
    let (kind, code, message) = match status {
        431 => (RefusalKind::HeadTooLarge, "request_head_too_large", "the head of the request is too long"),
        414 => (RefusalKind::PathTooLong, "path_too_long", "the path of the request is too long"),
        _ => (RefusalKind::InvalidRequest, "invalid_request", "the head of the request is not one of HTTP/1.1"),
    };
    let refusal = Refusal::of_kind(kind, code, message);
    let reason = hyper::StatusCode::from_u16(refusal.status()).ok().and_then(|status| status.canonical_reason());
    let (body, id) = (refusal.body().to_string(), new_request_id());
    let (status, reason, id) = (refusal.status(), reason.unwrap_or_default(), id.to_str().unwrap_or_default());
    let head = format!("HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\nx-request-id: {id}\r\n");
    format!("{head}connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_answer_of_hypers_own_is_replaced() {
        let own = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ndate: today\r\n\r\n";
        let before = "HTTP/1.1 200 OK\r\nx-request-id: a\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(own_refusal(own.as_bytes()), Some((0, 431)));
        assert_eq!(own_refusal(format!("{before}{own}").as_bytes()), Some((before.len(), 431)));
        for other in [
            String::new(),
            before.to_owned(),
            format!("{own}{before}"),
            format!("{own}a"),
            own.replace("length: 0", "length: 10"),
            own.replace("date: today", "x-request-id: a"),
            own.replace("431", "500"),
            own[..own.len() - 1].to_owned(),
        ] {
            assert_eq!(own_refusal(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn a_refused_head_has_a_body_of_the_protocol() {
        for (status, code) in [(400, "invalid_request"), (414, "path_too_long"), (431, "request_head_too_large")] {
            let text = String::from_utf8(refusal(status)).expect("text");
            let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
            let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!(body["error"]["code"], code);
            assert_eq!(own_refusal(text.as_bytes()), None);
        }
    }
}
