//! Sends one request over a kept connection and times its answer as a client sees it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::events::{Event, EventReader, StreamUsage};
use super::work::LoadRequest;
use crate::error::{Error, Result};

/// Bytes of a refusal that are read.
const MOST_OF_REFUSAL: usize = 1 << 16;

type Connection = SendRequest<Full<Bytes>>;

/// What a client saw of an answer. Times count from when the request was to be sent.
#[derive(Clone, Debug, Default)]
pub struct AnswerTiming {
    /// When the first token's text came; `None`: the answer was not streamed, or had no text.
    pub first: Option<Duration>,
    /// Between events of one choice.
    pub gaps: Vec<Duration>,
    pub whole: Duration,
    pub usage: StreamUsage,
}

/// Why a request was not answered, in the words by which errors are counted.
pub type Failure = String;

pub struct Client {
    address: SocketAddr,
    authority: String,
    authorization: Option<String>,
    timeout: Duration,
    idle: Mutex<Vec<Connection>>,
}

impl Client {
    pub fn new(url: &str, key: Option<&str>, timeout: Duration) -> Result<Client> {
        let wrong = || Error::value("--url", "http://HOST:PORT", url);
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        let host = authority.host().trim_matches(['[', ']']);
        let addresses = (host, authority.port_u16().unwrap_or(80)).to_socket_addrs();
        let address = addresses.ok().and_then(|mut addresses| addresses.next()).ok_or_else(wrong)?;
        let authorization = key.map(|key| format!("Bearer {key}"));
        Ok(Client { address, authority: authority.to_string(), authorization, timeout, idle: Mutex::default() })
    }

    /// The timing of the answer to `request`, which was to be sent at `due`.
    pub async fn answer(&self, request: &LoadRequest, due: Instant) -> Result<AnswerTiming, Failure> {
        let answer = tokio::time::timeout(self.timeout, self.exchange(request, due)).await;
        answer.unwrap_or_else(|_| Err(format!("no answer in {} s", self.timeout.as_secs_f64())))
    }

    async fn exchange(&self, request: &LoadRequest, due: Instant) -> Result<AnswerTiming, Failure> {
        let mut connection = self.connection().await?;
        let response = connection.send_request(self.message(request)?).await.map_err(|error| named(&error))?;
        if response.status() != StatusCode::OK {
            return Err(refusal(response).await);
        }
        let is_stream = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        let timing = match is_stream {
            true => streamed(response.into_body(), request.has_choices, due).await?,
            false => whole(response.into_body(), due).await?,
        };
        self.idle().push(connection);
        Ok(timing)
    }

    /// An idle connection that is still open, or a new one.
    async fn connection(&self) -> Result<Connection, Failure> {
        loop {
            let Some(mut idle) = self.idle().pop() else { break };
            if idle.ready().await.is_ok() {
                return Ok(idle);
            }
        }
        let stream = TcpStream::connect(self.address).await.map_err(|error| format!("connect: {error}"))?;
        stream.set_nodelay(true).map_err(|error| format!("connect: {error}"))?;
        let (connection, driver) = handshake(TokioIo::new(stream)).await.map_err(|error| named(&error))?;
        // Its errors are those of the requests on it.
        tokio::spawn(async move { drop(driver.await) });
        Ok(connection)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().expect("nothing panics while it is held")
    }

    fn message(&self, request: &LoadRequest) -> Result<Request<Full<Bytes>>, Failure> {
        let mut head =
            Request::post(request.path).header(HOST, &self.authority).header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            head = head.header(AUTHORIZATION, authorization);
        }
        head.body(Full::new(request.body.clone())).map_err(|error| format!("request: {error}"))
    }
}

/// A transport error by its cause, which does not name ports.
fn named(error: &hyper::Error) -> Failure {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// `HTTP 429: queue_full`.
async fn refusal(response: Response<Incoming>) -> Failure {
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), MOST_OF_REFUSAL).collect().await;
    let body = body.ok().and_then(|body| serde_json::from_slice::<Value>(&body.to_bytes()).ok());
    let code = body.as_ref().and_then(|body| body["error"]["code"].as_str());
    code.map_or_else(|| format!("HTTP {status}"), |code| format!("HTTP {status}: {code}"))
}

async fn streamed(mut body: Incoming, has_choices: bool, due: Instant) -> Result<AnswerTiming, Failure> {
    let mut reader = EventReader::new(has_choices);
    let mut timing = AnswerTiming::default();
    let (mut last, mut failure, mut is_done) = (Vec::<Option<Instant>>::new(), None, false);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| named(&error))?;
        let Some(bytes) = frame.data_ref() else { continue };
        let now = Instant::now();
        reader.feed(bytes, |event| match event {
            Event::Text(index) => {
                timing.first.get_or_insert(now - due);
                if last.len() <= index {
                    last.resize(index + 1, None);
                }
                timing.gaps.extend(last[index].replace(now).map(|before| now - before));
            }
            Event::Usage(usage) => timing.usage = usage,
            Event::Error(message) => failure = Some(message),
            Event::Done => is_done = true,
            Event::Other => {}
        });
    }
    timing.whole = due.elapsed();
    match failure {
        Some(message) => Err(format!("in the stream: {message}")),
        None if is_done => Ok(timing),
        None => Err("the stream ends without [DONE]".to_owned()),
    }
}

async fn whole(body: Incoming, due: Instant) -> Result<AnswerTiming, Failure> {
    let body = body.collect().await.map_err(|error| named(&error))?.to_bytes();
    let whole = due.elapsed();
    let answer: Value = serde_json::from_slice(&body).map_err(|error| format!("the answer is not JSON: {error}"))?;
    let usage = StreamUsage::of(&answer).ok_or("the answer has no usage")?;
    Ok(AnswerTiming { whole, usage, ..AnswerTiming::default() })
}
