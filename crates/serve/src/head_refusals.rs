//! Bodies for heads that hyper refuses. It answers a head that it cannot read (400), that is too long (431) or whose
//! path is (414) by itself, before any of our code runs, and with an empty body. The connection's stream replaces that
//! answer by one in the protocol's form, and lets the client read it before the connection is closed.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
    /// Requests whose responses are not handed over whole.
    open: AtomicUsize,
    /// Whether hyper may still have bytes of a response that it has not written. While neither is so, whatever is
    /// written is hyper's own.
    has_unwritten: AtomicBool,
    /// The stream of a connection whose last head was refused.
    refused: Mutex<Option<TcpStream>>,
}

impl ConnectionState {
    /// A request has come. Its response is over when what this returns is dropped.
    pub fn begin(self: &Arc<Self>) -> OpenResponse {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.has_unwritten.store(true, Ordering::Release);
        OpenResponse(self.clone())
    }

    /// Hyper flushes the stream: it does so when it has written all that it had.
    fn flushed(&self) {
        if self.open.load(Ordering::Acquire) == 0 {
            self.has_unwritten.store(false, Ordering::Release);
        }
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
pub struct OpenResponse(Arc<ConnectionState>);

impl Drop for OpenResponse {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A response's body; its response is open until hyper has taken all of it.
pub struct OpenBody {
    body: Body,
    _open: OpenResponse,
}

impl OpenBody {
    pub fn new(body: Body, open: OpenResponse) -> OpenBody {
        OpenBody { body, _open: open }
    }
}

impl HttpBody for OpenBody {
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
            && !self.state.has_unwritten.load(Ordering::Acquire)
            && let Some(status) = status_of(bytes)
        {
            self.metrics.responses[4].add(1);
            self.instead = Some(Replacement { bytes: refusal(status), written: 0, of: bytes.len() });
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
        self.state.flushed();
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream().poll_shutdown(context))?;
        Poll::Ready(Ok(()))
    }
}

/// The status of a whole head of hyper's own, which has no body and is an error of the client's.
fn status_of(bytes: &[u8]) -> Option<u16> {
    let head = std::str::from_utf8(bytes).ok()?.strip_suffix("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ").or_else(|| head.strip_prefix("HTTP/1.0 "))?.get(..3)?.parse().ok()?;
    (400..500).contains(&status).then_some(status)
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
    use std::convert::Infallible;

    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    const OWN: &str = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ndate: today\r\n\r\n";

    /// What a connection answers to `sent`, if each request is answered with `body`.
    fn exchanged(sent: &str, body: &'static str) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let mut client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
            let (stream, _) = listener.accept().await.expect("the client");
            let state = Arc::new(ConnectionState::default());
            let of_requests = state.clone();
            let service = service_fn(move |_| {
                let body = OpenBody::new(Body::from(body), of_requests.begin());
                async { Ok::<_, Infallible>(hyper::Response::new(body)) }
            });
            let stream = ClientStream::new(stream, state.clone(), Arc::default());
            let mut http = http1::Builder::new();
            let serve = async {
                // A refused head is an error here.
                let _ = http.max_headers(8).serve_connection(TokioIo::new(stream), service).await;
                state.linger().await;
            };
            let ask = async move {
                client.write_all(sent.as_bytes()).await.expect("the server reads");
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.expect("text");
                answer
            };
            tokio::join!(serve, ask).1
        })
    }

    /// An HTTP/1.0 body has no end but the connection's, and may end like a refusal of hyper's own.
    #[test]
    fn no_byte_of_an_answer_is_replaced() {
        for request in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"] {
            let answer = exchanged(request, OWN);
            assert!(answer.ends_with(&format!("\r\n\r\n{OWN}")), "{answer}");
        }
    }

    #[test]
    fn hypers_own_refusals_get_bodies_on_new_and_on_used_connections() {
        let whole = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let old = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
        let broken = ["GET / HTTP/9.9\r\n\r\n".to_owned(), format!("GET / HTTP/1.1\r\n{}\r\n", "X: a\r\n".repeat(9))];
        for (broken, code) in broken.iter().zip(["invalid_request", "request_head_too_large"]) {
            for before in ["", whole, old, &format!("{whole}{whole}")] {
                let answer = exchanged(&format!("{before}{broken}"), OWN);
                assert_eq!(answer.matches(OWN).count(), before.matches("GET").count(), "{answer}");
                let (_, body) = answer.rsplit_once("\r\n\r\n").expect("a head and a body");
                let body: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
                assert_eq!(body["error"]["code"], code);
            }
        }
    }

    #[test]
    fn a_refused_head_has_a_body_of_the_protocol() {
        assert_eq!(status_of(OWN.as_bytes()), Some(431));
        for (status, code) in [(400, "invalid_request"), (414, "path_too_long"), (431, "request_head_too_large")] {
            let text = String::from_utf8(refusal(status)).expect("text");
            let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
            let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!(body["error"]["code"], code);
            assert_eq!(status_of(text.as_bytes()), None);
        }
    }
}
