//! A server for one test: a child process at a free port of this machine, which ends with the test.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::{HeaderMap, Response};

use crate::signals;

pub const QUESTION: &str = "Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:";

/// The bundled model.
pub fn demo() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tasks/models/demo")
}

/// A hanging server fails the test in the end.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Served {
    child: Child,
    /// `http://127.0.0.1:PORT`
    pub address: String,
    agent: Agent,
    key: Option<String>,
    _folder: tempfile::TempDir,
    _said: BufReader<ChildStdout>,
}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

/// An answer that is still coming.
pub struct Streamed(BufReader<Box<dyn Read>>);

impl Served {
    pub fn start(options: &[&str]) -> Served {
        signals::hear(libc::SIGTERM);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot"));
        command.current_dir(folder.path()).env_remove("RUST_LOG").env_remove("OFFSHOOT_API_KEYS");
        command.env_remove("OFFSHOOT_ROLLOUT_KEYS");
        command.args(["serve", "--port", "0"]);
        if !["--model", "--scorer"].iter().any(|model| options.contains(model)) {
            command.arg("--model").arg(demo());
        }
        if !options.contains(&"--kv-memory") {
            command.args(["--kv-memory", "128"]);
        }
        if !options.contains(&"--devices") {
            command.args(["--device", "cpu"]);
        }
        command.args(options).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut said = BufReader::new(child.stdout.take().expect("it is piped"));
        let address = said.by_ref().lines().map(|line| line.expect("text")).find_map(|line| {
            let address = line.strip_prefix("serving")?.trim().strip_suffix("/v1")?;
            Some(address.to_owned())
        });
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        let address = address.expect("the server says where it serves");
        Served { child, address, agent: config.build().into(), key: None, _folder: folder, _said: said }
    }

    /// Requests have this key from now on.
    pub fn set_key(&mut self, key: &str) {
        self.key = Some(format!("Bearer {key}"));
    }

    pub fn get(&self, path: &str) -> Answer {
        let request = self.agent.get(self.url(path)).header("authorization", self.authorization());
        Answer::of(request.call().expect("the server answers"))
    }

    pub fn delete(&self, path: &str) -> Answer {
        let request = self.agent.delete(self.url(path)).header("authorization", self.authorization());
        Answer::of(request.call().expect("the server answers"))
    }

    /// Posts a text with this `Content-Type`.
    pub fn post_text(&self, path: &str, kind: &str, text: &str) -> Answer {
        let request = self.agent.post(self.url(path)).header("authorization", self.authorization());
        Answer::of(request.header("content-type", kind).send(text).expect("the server answers"))
    }

    /// Posts bytes with this `Content-Type`.
    pub fn post_bytes(&self, path: &str, kind: &str, bytes: &[u8]) -> Answer {
        let request = self.agent.post(self.url(path)).header("authorization", self.authorization());
        Answer::of(request.header("content-type", kind).send(bytes).expect("the server answers"))
    }

    /// Posts nothing, as trainers do.
    pub fn post_nothing(&self, path: &str) -> Answer {
        let request = self.agent.post(self.url(path)).header("authorization", self.authorization());
        Answer::of(request.send_empty().expect("the server answers"))
    }

    /// Posts with this key.
    pub fn post_as(&self, key: &str, path: &str, body: &Value) -> Answer {
        let request = self.agent.post(self.url(path)).header("authorization", format!("Bearer {key}"));
        Answer::of(request.header("content-type", "application/json").send(body.to_string()).expect("an answer"))
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, "application/json", &body.to_string())
    }

    /// A completion, which must succeed.
    pub fn complete(&self, body: &Value) -> Value {
        self.post("/v1/completions", body).succeeds()
    }

    /// A completion as a stream, whose beginning must succeed.
    pub fn stream(&self, body: &Value) -> Streamed {
        let body = joined(body, json!({"stream": true}));
        let request = self.agent.post(self.url("/v1/completions")).header("authorization", self.authorization());
        let request = request.header("content-type", "application/json");
        Streamed::of(request.send(body.to_string()).expect("the server answers"))
    }

    /// The events of the page.
    pub fn events(&self) -> Streamed {
        let request = self.agent.get(self.url("/events")).header("authorization", self.authorization());
        Streamed::of(request.call().expect("the server answers"))
    }

    /// The status of an answer with the page's events.
    pub fn events_status(&self) -> u16 {
        let request = self.agent.get(self.url("/events")).header("authorization", self.authorization());
        request.call().expect("the server answers").status().as_u16()
    }

    /// A value without labels of `/metrics`.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("`{name}` is not in: {text}")).parse().expect("a number")
    }

    /// Waits until a value of `/metrics` is `expected`.
    pub fn wait_for(&self, name: &str, expected: f64) {
        let begun = Instant::now();
        while self.metric(name) != expected {
            assert!(begun.elapsed() < PATIENCE, "{name} stays {}", self.metric(name));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn ask_to_stop(&self) {
        let child = Pid::from_raw(self.child.id().cast_signed());
        kill(child, Signal::SIGTERM).expect("the server is a child that was not waited for");
    }

    /// Waits until the server has ended.
    pub fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is a child") {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the server goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    fn authorization(&self) -> &str {
        self.key.as_deref().unwrap_or_default()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Answer {
    fn of(mut response: Response<ureq::Body>) -> Answer {
        let text = response.body_mut().with_config().limit(1 << 30).read_to_string().expect("a whole text");
        Answer { status: response.status().as_u16(), headers: response.headers().clone(), text }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn succeeds(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    /// It must be an error of OpenAI's form; its code and the field that it is about.
    pub fn refused(&self, status: u16) -> (String, Value) {
        assert_eq!(self.status, status, "{}", self.text);
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        (error["code"].as_str().expect("a code").to_owned(), error["param"].clone())
    }
}

impl Streamed {
    fn of(response: Response<ureq::Body>) -> Streamed {
        assert_eq!(response.status(), 200);
        Streamed(BufReader::new(Box::new(response.into_body().into_reader())))
    }

    /// What follows the next `data:`; `None` at the end of the connection.
    pub fn next_data(&mut self) -> Option<String> {
        let lines = self.0.by_ref().lines().map(|line| line.expect("the server sends whole lines"));
        lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned)).next()
    }

    /// All that is left, which must end as OpenAI's clients expect.
    pub fn chunks(mut self) -> Vec<Value> {
        let mut data: Vec<String> = std::iter::from_fn(|| self.next_data()).collect();
        assert_eq!(data.pop().as_deref(), Some("[DONE]"));
        data.iter().map(|chunk| serde_json::from_str(chunk).expect("a chunk is JSON")).collect()
    }
}

/// An object with the fields of both.
pub fn joined(one: &Value, other: Value) -> Value {
    let mut joined = one.clone();
    let Value::Object(more) = other else { panic!("{other} is no object") };
    joined.as_object_mut().expect("an object").extend(more);
    joined
}
