//! A server of the OpenAI protocol that judges in tests: each response is a function of the request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// A server of the OpenAI protocol on this machine, which answers each request by a function of its path and body.
pub struct JudgeServer {
    /// Its address, up to /v1.
    pub url: String,
    /// The head of each request, and its body.
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl JudgeServer {
    /// `answer`: the status and the body of a response to a path with a body.
    pub fn new(answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static) -> JudgeServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/v1", listener.local_addr().expect("its address"));
        let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let (seen, answer) = (asked.clone(), Arc::new(answer));
        // The thread ends with the tests' process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (seen.clone(), answer.clone());
                std::thread::spawn(move || {
                    let Some((head, body)) = read_request(&stream) else { return };
                    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    seen.lock().expect("no thread panics").push((head, body.clone()));
                    let (status, body) = answer(&path, &body);
                    let (body, mut stream) = (body.to_string(), &stream);
                    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close", body.len());
                    // Whoever has gone needs no answer.
                    let _ = write!(stream, "{head}\r\ncontent-type: application/json\r\n\r\n{body}");
                });
            }
        });
        JudgeServer { url, asked }
    }

    /// The head and the body of each request so far.
    pub fn asked(&self) -> Vec<(String, Value)> {
        self.asked.lock().expect("no thread panics").clone()
    }
}

fn read_request(stream: &TcpStream) -> Option<(String, Value)> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

/// The response of a chat in which the model says this.
pub fn said(content: &str) -> (u16, Value) {
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"});
    (200, json!({"choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 5}}))
}
