//! A judge behind a server that a script plays: what is sent, and what becomes of every answer that a server can give.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;

use serde_json::{Map, json};

use super::*;
use crate::question::{JudgeAnswer, JudgePrompt, WantedAnswer};
use offshoot_text::{ChatOptions, Message};

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(600);

const KEY: &str = "sk-very-secret";

/// A request as the script's server has it.
struct Request {
    /// Its method and path.
    line: String,
    headers: Vec<String>,
    body: Value,
}

/// What a server does with a request.
enum Does {
    /// It sends these bytes, and closes the connection.
    Sends(Vec<u8>),
    /// It closes the connection.
    HangsUp,
    /// It holds the connection open in silence.
    Waits,
}

/// A server that does what a script says, one connection after the other; and the requests that it has had.
struct Server {
    url: String,
    requests: mpsc::Receiver<Request>,
    _thread: JoinHandle<()>,
}

impl Server {
    /// `script`: one for each connection; further ones are not answered.
    fn new(script: Vec<Does>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (send, requests) = mpsc::channel();
        let serve = move || {
            let mut held = Vec::new();
            for does in script {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let _ = send.send(read_request(&stream));
                match does {
                    Does::Sends(bytes) => _ = stream.write_all(&bytes),
                    Does::HangsUp => {}
                    Does::Waits => held.push(stream),
                }
            }
            if !held.is_empty() {
                held.extend(listener.incoming().flatten());
            }
        };
        Server { url, requests, _thread: std::thread::spawn(serve) }
    }

    fn options(&self) -> ServerOptions {
        ServerOptions {
            url: self.url.clone(),
            model: Some("m".to_owned()),
            key: Some(JudgeKey::new(KEY).unwrap()),
            requests: 1,
            timeout: PATIENCE,
            retries: 2,
            request: Map::new(),
        }
    }

    fn judge(&self) -> ServerJudge {
        self.judge_by(self.options())
    }

    fn judge_by(&self, options: ServerOptions) -> ServerJudge {
        ServerJudge::waiting(options, Duration::ZERO).unwrap()
    }
}

fn read_request(stream: &TcpStream) -> Request {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let length = lines.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    let line = lines.remove(0);
    Request { line, headers: lines, body: serde_json::from_slice(&body).unwrap_or(Value::Null) }
}

fn sends(status: &str, headers: &str, body: &str) -> Does {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n");
    Does::Sends([head.as_bytes(), body.as_bytes()].concat())
}

/// An answer with this text.
fn says(text: &str) -> Does {
    let body = json!({"choices": [{"message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5}});
    sends("200 OK", "content-type: application/json\r\n", &body.to_string())
}

fn question(answer: WantedAnswer) -> Question {
    Question {
        prompt: JudgePrompt::Chat { messages: vec![Message::user("Right?")], options: ChatOptions::default() },
        answer,
    }
}

fn json_question() -> Question {
    question(WantedAnswer::Json { schema: Arc::new(json!({"type": "object"})), max_tokens: 64 })
}

fn asked(judge: &ServerJudge, question: Question) -> mpsc::Receiver<Result<Answered>> {
    let (send, received) = mpsc::channel();
    judge.ask(question, Box::new(move |answered| _ = send.send(answered)));
    received
}

fn answer(judge: &ServerJudge, question: Question) -> Result<Answered> {
    asked(judge, question).recv_timeout(PATIENCE).expect("every question is answered")
}

#[test]
fn a_question_is_sent_and_its_answer_read() {
    let words = json!({"choices": [{"message": {"content": "yes"}, "logprobs": {"content": [{"token": "yes",
        "top_logprobs": [{"token": "yes", "logprob": 0.75_f64.ln()}, {"token": "no", "logprob": 0.25_f64.ln()}]}]}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 4}});
    let server = Server::new(vec![sends("200 OK", "", &words.to_string()), says(r#"{"score": 7}"#)]);
    let options = server.options();
    let judge = server.judge_by(ServerOptions { url: format!("{}/", options.url), ..options });
    let yes_no = WantedAnswer::Words([" yes", " no"].map(str::to_owned).into());
    let Answered { answer: JudgeAnswer::Words(shares), tokens } = answer(&judge, question(yes_no)).unwrap() else {
        panic!("words are asked for");
    };
    assert!((shares[0] - 0.75).abs() < 1e-9 && (shares[1] - 0.25).abs() < 1e-9 && tokens == 7, "{shares:?}");
    let answered = answer(&judge, json_question()).unwrap();
    assert_eq!(answered, Answered { answer: JudgeAnswer::Json(json!({"score": 7})), tokens: 5 });
    let request = server.requests.recv().unwrap();
    assert_eq!(request.line, "POST /v1/chat/completions HTTP/1.1");
    assert!(request.headers.iter().any(|header| header.to_lowercase() == format!("authorization: bearer {KEY}")));
    assert_eq!((&request.body["model"], &request.body["top_logprobs"]), (&json!("m"), &json!(20)));
    assert_eq!(server.requests.recv().unwrap().body["max_tokens"], 64);
    assert_eq!(judge.counts(), JudgeCounts { questions: 2, tokens: 12, written: 4, retried: 0 });
    assert_eq!(judge.identity(), &JudgeIdentity { name: "m".to_owned(), digest: None });
}

#[test]
fn an_unnamed_model_is_the_one_that_the_server_lists() {
    let models = |names: &[&str]| {
        let data: Vec<Value> = names.iter().map(|name| json!({"id": name})).collect();
        sends("200 OK", "", &json!({"data": data}).to_string())
    };
    let open = |script: Vec<Does>| {
        let server = Server::new(script);
        let options = ServerOptions { model: None, ..server.options() };
        let judge = ServerJudge::waiting(options, Duration::ZERO).map(|judge| judge.identity().name.clone());
        (judge.map_err(|error| error.to_string()), server.requests.recv().unwrap().line)
    };
    let (name, line) = open(vec![models(&["only"])]);
    assert_eq!((name.unwrap(), &*line), ("only".to_owned(), "GET /v1/models HTTP/1.1"));
    let error = open(vec![models(&["a", "b"])]).0.unwrap_err();
    assert!(error.contains("expected one, as none is named, found a, b"), "{error}");
    let error = open(vec![sends("401 Unauthorized", "", r#"{"error": {"message": "no such key"}}"#)]).0.unwrap_err();
    assert!(error.contains("it answers with status 401: no such key"), "{error}");
}

#[test]
fn failures_that_may_pass_are_tried_again() {
    let busy = |status: &str| sends(status, "retry-after: 0\r\n", "");
    for script in [
        vec![busy("429 Too Many Requests"), busy("503 Service Unavailable")],
        vec![busy("408 Request Timeout"), busy("409 Conflict")],
        vec![busy("425 Too Early"), busy("500 Internal Server Error")],
        vec![Does::HangsUp, Does::HangsUp],
        vec![Does::Sends(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"choices\":".to_vec()), Does::HangsUp],
        vec![Does::Sends(b"SSH-2.0\r\n\r\n".to_vec()), Does::HangsUp],
    ] {
        let server = Server::new(script.into_iter().chain([says("{\"score\": 1}")]).collect());
        let judge = server.judge();
        assert_eq!(answer(&judge, json_question()).unwrap().answer, JudgeAnswer::Json(json!({"score": 1})));
        assert_eq!(judge.counts().retried, 2);
    }
    let script = (0..3).map(|n| sends("429 Too Many Requests", "retry-after: 0\r\n", &format!("slower, {n}")));
    let server = Server::new(script.collect());
    let judge = server.judge();
    let error = answer(&judge, json_question()).unwrap_err().to_string();
    assert!(error.contains(&server.url) && error.ends_with("it answers with status 429: slower, 2"), "{error}");
}

#[test]
fn what_does_not_pass_is_an_error_at_once() {
    let long = format!(r#"{{"error": {{"message": "{}{KEY}"}}}}"#, "x".repeat(1000));
    let huge = "x".repeat((4 << 20) + 1);
    let chunked =
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n3\r\n{\"a\r\n3\r\n\":1\r\n\
                    1\r\n}\r\n0\r\n\r\n";
    for (does, said) in [
        (sends("400 Bad Request", "", r#"{"error": {"message": "no logprobs here"}}"#), "status 400: no logprobs here"),
        (sends("404 Not Found", "", r#"{"detail": "Not Found"}"#), "status 404: Not Found"),
        (sends("401 Unauthorized", "", &format!("{{\"message\": \"wrong key {KEY}\"}}")), "status 401: wrong key …"),
        (sends("422 Unprocessable", "", &long), "status 422: xxx"),
        (sends("418 Teapot", "", ""), "status 418: (it says nothing)"),
        (sends("302 Found", "location: https://elsewhere/v1\r\n", ""), "https://elsewhere/v1, which is not followed"),
        (sends("308 Permanent Redirect", "location: /v2\r\n", ""), "/v2, which is not followed"),
        (sends("200 OK", "", "<html>Welcome</html>"), "something else than JSON: \"<html>Welcome</html>\""),
        (sends("200 OK", "", &huge), "its answer has more than 4 MiB"),
        (sends("200 OK", "", "{}"), "a field `choices` with a choice"),
        (Does::Sends(chunked.to_vec()), "found {\"a\":1}"),
        (says("I won't say."), "expected JSON, found \"I won't say.\""),
        (says(&format!("{KEY} it is")), "expected JSON, found \"… it is\""),
    ] {
        let server = Server::new(vec![does]);
        let judge = server.judge();
        let error = answer(&judge, json_question()).unwrap_err();
        assert!(!error.ends_all(), "{error}");
        let error = error.to_string();
        assert!(error.contains(said) && !error.contains(KEY) && error.len() < 700, "{error}");
        assert_eq!((judge.counts().questions, judge.counts().retried), (1, 0));
    }
}

#[test]
fn a_silent_server_is_left_after_a_while() {
    let server = Server::new(vec![Does::Waits, Does::Waits]);
    let options = ServerOptions { timeout: Duration::from_millis(20), retries: 1, ..server.options() };
    let judge = server.judge_by(options);
    let error = answer(&judge, json_question()).unwrap_err().to_string();
    assert!(error.contains("it has not answered within 0.02 s"), "{error}");
    assert_eq!(judge.counts().retried, 1);
}

#[test]
fn a_server_that_is_not_there_is_soon_not_asked() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::new(Vec::new());
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let judge = server.judge_by(ServerOptions { url, retries: 0, ..server.options() });
    let errors: Vec<String> = (0..9).map(|_| answer(&judge, json_question()).unwrap_err().to_string()).collect();
    assert!(errors[..8].iter().all(|error| !error.contains("for now")), "{errors:?}");
    assert!(errors.iter().all(|error| error.contains("http://127.0.0.1")), "each names the server: {errors:?}");
    assert!(errors[8].contains("it is not reached for now"), "{errors:?}");
}

#[test]
fn a_gateway_before_a_server_that_is_down_is_not_reached_either() {
    let bad = |_| sends("502 Bad Gateway", "", "");
    let server = Server::new((0..8).map(bad).collect());
    let judge = server.judge_by(ServerOptions { retries: 0, ..server.options() });
    let errors: Vec<String> = (0..9).map(|_| answer(&judge, json_question()).unwrap_err().to_string()).collect();
    assert!(errors[..8].iter().all(|error| error.contains("it answers with status 502")), "{errors:?}");
    assert!(errors[8].contains("it is not reached for now"), "{errors:?}");
}

#[test]
fn a_key_that_the_server_refuses_is_refused_before_a_question() {
    for (status, is_refused) in [("401 Unauthorized", true), ("403 Forbidden", true), ("404 Not Found", false)] {
        let server = Server::new(vec![sends(status, "", r#"{"error": {"message": "who is it?"}}"#)]);
        let opened = ServerJudge::open(server.options());
        assert_eq!(server.requests.recv().unwrap().line, "GET /v1/models HTTP/1.1");
        match opened {
            Err(error) => assert!(is_refused && error.to_string().ends_with("who is it?"), "{error}"),
            Ok(judge) => assert!(!is_refused && judge.identity().name == "m"),
        }
    }
}

#[test]
fn a_reply_that_panics_costs_no_other_answer() {
    let server = Server::new(vec![says("{\"score\": 1}"), says("{\"score\": 2}")]);
    let judge = server.judge();
    judge.ask(json_question(), Box::new(|_| panic!("as it happens")));
    assert_eq!(answer(&judge, json_question()).unwrap().answer, JudgeAnswer::Json(json!({"score": 2})));
}

#[test]
fn https_is_spoken() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/v1", listener.local_addr().unwrap());
    let serve = std::thread::spawn(move || {
        let mut greeting = [0; 3];
        listener.accept().unwrap().0.read_exact(&mut greeting).unwrap();
        greeting
    });
    let options = Server::new(Vec::new()).options();
    let judge = ServerJudge::waiting(ServerOptions { url, retries: 0, ..options }, FIRST_WAIT).unwrap();
    assert!(answer(&judge, json_question()).is_err(), "the other side does not speak it");
    assert_eq!(serve.join().unwrap(), [22, 3, 1], "the first record of a handshake");
}

#[test]
fn requests_are_sent_side_by_side() {
    // Neither is answered before both are there.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serve = std::thread::spawn(move || {
        let mut streams: Vec<TcpStream> = (0..2).map(|_| listener.accept().unwrap().0).collect();
        for stream in &mut streams {
            read_request(stream);
        }
        let Does::Sends(bytes) = says("{\"score\": 1}") else { return };
        streams.iter_mut().for_each(|stream| stream.write_all(&bytes).unwrap());
    });
    let options = Server::new(Vec::new()).options();
    let judge = ServerJudge::waiting(ServerOptions { url, requests: 2, ..options }, FIRST_WAIT).unwrap();
    let received = [asked(&judge, json_question()), asked(&judge, json_question())];
    assert!(received.iter().all(|received| received.recv_timeout(PATIENCE).unwrap().is_ok()));
    serve.join().unwrap();
}

#[test]
fn a_judge_that_is_dropped_answers_nothing_more() {
    let server = Server::new(vec![Does::Waits]);
    let options = ServerOptions { timeout: Duration::from_millis(200), retries: 0, ..server.options() };
    let judge = server.judge_by(options);
    let received = [asked(&judge, json_question()), asked(&judge, json_question())];
    // The first one is under way, and the second one waits for it.
    server.requests.recv().unwrap();
    let closed = judge.asking.closed.clone();
    drop(judge);
    assert!(closed.recv().is_err());
    // Both replies are dropped once the first request has ended.
    let ended = Err(mpsc::RecvTimeoutError::Disconnected);
    assert!(received.iter().all(|received| received.recv_timeout(PATIENCE).map(drop) == ended));
    assert!(server.requests.try_recv().is_err(), "the second question is not sent");
    // A retry is not waited for.
    let server = Server::new(vec![sends("503 Service Unavailable", "retry-after: 60\r\n", "")]);
    let judge = server.judge();
    let received = asked(&judge, json_question());
    server.requests.recv().unwrap();
    drop(judge);
    assert!(received.recv_timeout(PATIENCE).is_err(), "the reply is dropped");
}
