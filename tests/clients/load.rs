//! `benches/load.py` against a server: what it counts is what it asked for, and its prompts and arrivals are those that
//! the library replays, with which recorded figures were measured.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};

use offshoot_estimate::replay::{TextRun, TracePrompt, poisson, read_trace};
use serde_json::{Value, json};

use crate::served::Served;
use crate::skip::skipped;

/// Runs the script; `None`: there is no Python here.
fn load(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/load.py")).args(arguments);
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skipped("no python3 here to run benches/load.py");
            None
        }
        output => Some(output.expect("python3 starts")),
    }
}

fn figures(url: &str, arguments: &[&str]) -> Option<(Value, Output)> {
    let ran = load(&[&["--json", "--url", url], arguments].concat())?;
    let seen = serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&ran.stderr)));
    Some((seen, ran))
}

const SMALL: &[&str] = &["--requests", "12", "--prompt-tokens", "40", "--shared-tokens", "32", "--max-tokens", "6"];

#[test]
fn closed_loops_count_what_they_asked_for() {
    let server = Served::start(&["--threads", "2"]);
    for (more, choices, is_stream) in
        [(&["--choices", "3"][..], 3, true), (&[], 1, true), (&["--no-stream", "--choices", "2"], 2, false)]
    {
        let Some((seen, _)) = figures(&server.url(), &[SMALL, &["--concurrency", "4"], more].concat()) else { return };
        assert_eq!((&seen["answered"], &seen["requests"]), (&json!(12), &json!(12)), "{seen}");
        assert_eq!(seen["completion_tokens"], 12 * 6 * choices, "{seen}");
        assert_eq!(seen["prompt_tokens"], 12 * 40, "{seen}");
        assert_eq!(seen["first_token_s"].is_object(), is_stream, "{seen}");
        assert!(seen["most_running"].as_u64().is_some_and(|most| (1..=4).contains(&most)), "{seen}");
    }
}

#[test]
fn open_loops_send_a_batch_file_at_its_rate() {
    let server = Served::start(&["--threads", "2"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("requests.jsonl");
    let line = |n: usize| {
        let chat = json!({"messages": [{"role": "user", "content": format!("{n} and 2?")}], "max_tokens": 5,
            "ignore_eos": true});
        let text = json!({"prompt": "Question:", "max_tokens": 5, "ignore_eos": true});
        let (url, body) = if n < 5 { ("/v1/chat/completions", chat) } else { ("/v1/completions", text) };
        json!({"custom_id": format!("r{n}"), "method": "POST", "url": url, "body": body}).to_string() + "\n"
    };
    std::fs::write(&path, (0..10).map(line).collect::<String>()).expect("the folder is writable");
    let Some((seen, _)) = figures(&server.url(), &["--rate", "40", path.to_str().expect("text")]) else { return };
    assert_eq!((&seen["answered"], &seen["completion_tokens"]), (&json!(10), &json!(50)), "{seen}");
}

#[test]
fn refusals_are_counted_and_named() {
    let server = Served::start(&["--threads", "2"]);
    let arguments = ["--requests", "3", "--prompt-tokens", "5000", "--shared-tokens", "0"];
    let Some((seen, ran)) = figures(&server.url(), &arguments) else { return };
    assert_eq!(ran.status.code(), Some(2));
    assert_eq!(seen["errors"], json!({"HTTP 400: context_length_exceeded": 3}), "{seen}");
}

/// An answer of two choices and three tokens, chunked, in which a comment, a role and an end are no tokens.
const STREAM: &[&str] = &[
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n: a comment\n\n",
    "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"a\\nb\"},\"finish_reason\":null}],\
     \"usage\":null}\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"c\"}}]}\n\n",
    "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"d\"}}]}\n\n",
    "data: {\"choices\":[{\"index\":1,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,",
    "\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\ndata: [DONE]\n\n",
];

/// Reads a request and sends `reply` in parts of `size` bytes.
fn reply(stream: &mut TcpStream, reply: &[u8], size: usize) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket can be cloned"));
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line).expect("a request") > 2 {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        line.clear();
    }
    reader.read_exact(&mut vec![0; length]).expect("a body");
    stream.set_nodelay(true).expect("a socket has options");
    for part in reply.chunks(size) {
        stream.write_all(part).expect("the client reads");
    }
}

#[test]
fn a_stream_is_the_same_wherever_it_is_cut() {
    let chunks: String = STREAM.iter().map(|part| format!("{:x}\r\n{part}\r\n", part.len())).collect();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let whole = format!("{head}{chunks}0\r\n\r\n");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let sizes = [1, 2, 7, 16, 61, 200, 4096];
    // Each connection is kept for all requests, which come one after another.
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the client connects");
        sizes.iter().for_each(|&size| reply(&mut stream, whole.as_bytes(), size));
    });
    let requests = sizes.len().to_string();
    let arguments = ["--requests", &requests, "--concurrency", "1", "--choices", "2", "--prompt-tokens", "1"];
    let Some((seen, _)) = figures(&url, &arguments) else { return };
    server.join().expect("all requests came");
    assert_eq!(seen["answered"], sizes.len(), "{seen}");
    assert_eq!(seen["completion_tokens"], 3 * sizes.len(), "{seen}");
    assert_eq!(seen["prompt_tokens"], 7 * sizes.len(), "{seen}");
    assert_eq!(seen["cached_tokens"], 5 * sizes.len(), "{seen}");
    // One choice has two tokens, the other one.
    assert!(seen["first_token_s"].is_object() && seen["next_token_s"].is_object(), "{seen}");
}

/// The tokens of a prompt and the arrivals in nanoseconds of the requests that the script would send.
fn dry_run(arguments: &[&str]) -> Option<Vec<(Value, u128)>> {
    let ran = load(&[&["--dry-run"], arguments].concat())?;
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let request = |line: Result<String, _>| {
        let value: Value = serde_json::from_str(&line.expect("text")).expect("JSON");
        let arrival = std::time::Duration::from_secs_f64(value["arrival_s"].as_f64().expect("a time"));
        (value["body"]["prompt"].clone(), arrival.as_nanos())
    };
    Some(ran.stdout.lines().map(request).collect())
}

#[test]
fn prompts_and_arrivals_are_those_that_the_library_replays() {
    let run = |text, tokens| TextRun { text, tokens };
    let tokens = |runs, vocab| json!(TracePrompt::Runs(runs).tokens(vocab).iter().map(|t| t.ix()).collect::<Vec<_>>());
    let arguments = ["--requests", "30", "--prompt-tokens", "20", "--shared-tokens", "12", "--vocab", "50"];
    let Some(seen) = dry_run(&[&arguments[..], &["--rate", "3.5", "--seed", "7"]].concat()) else { return };
    let arrivals: Vec<u128> = poisson(3.5, 7).take(30).map(|time| time.as_nanos()).collect();
    let expected: Vec<_> = (1..=30).map(|number| tokens(vec![run(0, 12), run(number, 8)], 50)).zip(arrivals).collect();
    assert_eq!(seen, expected);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trace.jsonl");
    let trace = "{\"timestamp\": 2500, \"input_length\": 542, \"output_length\": 9, \"hash_ids\": [3, 12345678901]}\n\n\
                 {\"timestamp\": 0.5, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [3]}\n";
    std::fs::write(&path, trace).expect("the folder is writable");
    let path = path.to_str().expect("temporary folders are in UTF-8");
    let whole = dry_run(&["--trace", path, "--vocab", "1000"]).expect("there is Python, see above");
    let replayed = read_trace(Path::new(path)).expect("a trace").requests;
    let replayed = replayed.iter().map(|request| {
        let TracePrompt::Runs(runs) = &request.prompt else { panic!("a trace has texts") };
        (tokens(runs.clone(), 1000), request.arrival.as_nanos())
    });
    assert_eq!(whole, replayed.collect::<Vec<_>>());
    // Every run's length is divided, rounded up.
    let shrunk = dry_run(&["--trace", path, "--shrink", "8"]).expect("there is Python, see above");
    assert_eq!(shrunk[1].0, tokens(vec![run(3, 64), run(12_345_678_901, 4)], 500));
}
