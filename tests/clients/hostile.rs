//! Hostile clients: broken bodies, HTTP that is read in two ways, heads and bodies without end, idle connections, and
//! readers that do not read. The server must refuse or close, never crash, hang or show another's data, and answer a
//! sane request as before after each kind of attack.
//!
//! `OFFSHOOT_MUTATIONS=N` tries N damaged requests; `OFFSHOOT_MUTATION=K` tries number K alone and
//! prints it. `OFFSHOOT_CONNECTIONS=N` opens N idle connections.

use std::io::{Read, Write};
use std::net::TcpStream;

use offshoot_core::dice::Dice;
use serde_json::{Value, json};

use crate::damage::damage;
use crate::full::some_or_full;
use crate::hostile_bodies::{HostileBody, hostile_bodies, hostile_chats, seeds};
use crate::served::{Reply, Served, connect, exchange, exchange_and_end, exchange_until_quiet, message};

/// Idle connections opened by a plain `cargo test`.
const IDLE: usize = 500;
/// What only the victim's requests contain.
const SECRET: &str = "Ruritania";
const LIMITS: &[&str] =
    &["--threads", "2", "--max-body", "1", "--max-n", "64", "--kv-memory", "256", "--max-connections", "16000"];

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is not a number")))
}

/// A server under attack, and what it answered before.
struct Victim {
    server: Served,
    before: Value,
}

impl Victim {
    fn start() -> Victim {
        let server = Served::start(LIMITS);
        let before = sane(&server);
        Victim { server, before }
    }

    /// It answers the sane request as before.
    fn assert_unharmed(&mut self, after: &str) {
        assert_eq!(sane(&self.server), self.before, "after {after}");
        self.server.assert_well();
    }

    /// What a hostile exchange brought shows no other client's data.
    fn assert_harmless(&self, answer: &[u8], attack: &str) {
        let text = String::from_utf8_lossy(answer);
        assert!(!text.contains(SECRET), "{attack} shows another's data: {text}");
        assert!(!text.contains("HTTP/1.1 500"), "{attack}: {text}");
    }
}

/// The choices of a request with the secret, whose answer echoes it.
fn sane(server: &Served) -> Value {
    let body = json!({"prompt": format!("Question: {SECRET}"), "max_tokens": 6, "seed": 3, "n": 2, "echo": true});
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(server.get("/health").status, 200);
    reply.json()["choices"].clone()
}

#[test]
fn bodies_by_hand_are_refused() {
    let mut victim = Victim::start();
    let cases = hostile_bodies().into_iter().map(|case| ("/v1/completions", case));
    let cases = cases.chain(hostile_chats().into_iter().map(|case| ("/v1/chat/completions", case)));
    let mut taken = Vec::new();
    for (path, HostileBody { what, body }) in cases {
        let answer = exchange(victim.server.address, &message("POST", path, &body));
        victim.assert_harmless(&answer, &what);
        let reply = Reply::of(&answer);
        let error = serde_json::from_str::<Value>(&reply.text).map_or(Value::Null, |answer| answer["error"].clone());
        let has_form = error["message"].is_string() && error["type"].is_string();
        if !(400..500).contains(&reply.status) || !has_form {
            taken.push(format!("{what}: {reply:?}"));
        }
    }
    assert!(taken.is_empty(), "not refused, or not in OpenAI's form:\n{}", taken.join("\n"));
    victim.assert_unharmed("hostile bodies");
}

#[test]
fn damaged_requests_are_answered_or_refused() {
    let mut victim = Victim::start();
    let (count, alone) =
        (variable("OFFSHOOT_MUTATIONS").unwrap_or(some_or_full(200, 2000)), variable::<u64>("OFFSHOOT_MUTATION"));
    for number in alone.map_or(0..count, |one| one..one + 1) {
        let mut dice = Dice::new(number);
        let bodies = seeds();
        let (path, body) = &bodies[dice.below(bodies.len())];
        let mut body = body.clone().into_bytes();
        let damages_head = dice.below(4) == 0;
        let mut request = message("POST", path, &body);
        if damages_head {
            damage(&mut dice, &mut request);
        } else {
            damage(&mut dice, &mut body);
            request = message("POST", path, &body);
        }
        if alone.is_some() {
            println!("{}", String::from_utf8_lossy(&request));
        }
        // A damaged head may promise more bytes than come: then the end is said.
        let ask = if damages_head { exchange_and_end } else { exchange };
        let answer = ask(victim.server.address, &request);
        victim.assert_harmless(&answer, &format!("damaged request {number}"));
        if number % 50 == 49 {
            victim.assert_unharmed(&format!("damaged request {number}"));
        }
    }
    victim.assert_unharmed("damaged requests");
}

/// Requests that two parsers read in two ways: each is refused, or the connection ends with its one answer.
#[test]
fn requests_of_two_readings_are_not_read_twice() {
    let mut victim = Victim::start();
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let hidden = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let long = body.len() + hidden.len();
    let attacks = [
        ("both lengths", format!("Content-Length: {long}\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}{hidden}")),
        ("both lengths, turned", format!("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{chunked}{hidden}")),
        ("two lengths", format!("Content-Length: {}\r\nContent-Length: {long}\r\n\r\n{body}{hidden}", body.len())),
        ("a list of lengths", format!("Content-Length: {}, {long}\r\n\r\n{body}{hidden}", body.len())),
        ("a signed length", format!("Content-Length: +{}\r\n\r\n{body}{hidden}", body.len())),
        ("a negative length", format!("Content-Length: -1\r\n\r\n{body}{hidden}")),
        ("a length beyond 64 bits", format!("Content-Length: 18446744073709551617\r\n\r\n{body}{hidden}")),
        ("a length in hex", format!("Content-Length: 0x{:x}\r\n\r\n{body}{hidden}", body.len())),
        (
            "chunked, then identity",
            format!("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n{chunked}{hidden}"),
        ),
        ("another coding", format!("Transfer-Encoding: xchunked\r\n\r\n{chunked}{hidden}")),
        (
            "a space in a name",
            format!("Transfer-Encoding : chunked\r\nContent-Length: {long}\r\n\r\n{chunked}{hidden}"),
        ),
        (
            "a bare newline in a head",
            format!("X: a\nContent-Length: {long}\r\nContent-Length: 0\r\n\r\n{body}{hidden}"),
        ),
        ("a folded header", format!("X: a\r\n Content-Length: {long}\r\n\r\n{body}{hidden}")),
        ("a NUL in a header", format!("X: a\0b\r\nContent-Length: {}\r\n\r\n{body}{hidden}", body.len())),
        (
            "a return in a header",
            format!("X: a\rContent-Length: 0\r\nContent-Length: {}\r\n\r\n{body}{hidden}", body.len()),
        ),
        ("a chunk without a size", format!("Transfer-Encoding: chunked\r\n\r\nzz\r\n{body}\r\n0\r\n\r\n{hidden}")),
        ("a negative chunk", format!("Transfer-Encoding: chunked\r\n\r\n-1\r\n{body}\r\n0\r\n\r\n{hidden}")),
        (
            "a chunk beyond 64 bits",
            format!("Transfer-Encoding: chunked\r\n\r\n1{:016x}\r\n{body}\r\n0\r\n\r\n{hidden}", body.len()),
        ),
        (
            "a chunk in 0x",
            format!("Transfer-Encoding: chunked\r\n\r\n0x{:x}\r\n{body}\r\n0\r\n\r\n{hidden}", body.len()),
        ),
        ("a chunk that ends elsewhere", format!("Transfer-Encoding: chunked\r\n\r\n3\r\n{body}\r\n0\r\n\r\n{hidden}")),
        (
            "a chunk's long extension",
            format!(
                "Transfer-Encoding: chunked\r\n\r\n{:x};{}\r\n{body}\r\n0\r\n\r\n{hidden}",
                body.len(),
                "x".repeat(200_000)
            ),
        ),
        (
            "trailers",
            format!(
                "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\nContent-Length: 9\r\nX: {}\r\n\r\n{hidden}",
                body.len(),
                "y".repeat(200_000)
            ),
        ),
    ];
    let mut read_twice = Vec::new();
    for (what, rest) in attacks {
        let answer = exchange_until_quiet(victim.server.address, format!("{head}{rest}").as_bytes());
        victim.assert_harmless(&answer, what);
        let text = String::from_utf8_lossy(&answer);
        if text.contains("\"object\":\"list\"") {
            read_twice.push(format!("{what}: {text}"));
        }
    }
    assert!(read_twice.is_empty(), "the hidden request was answered:\n{}", read_twice.join("\n"));
    victim.assert_unharmed("requests of two readings");
}

#[test]
fn heads_that_are_no_requests_are_refused() {
    let mut victim = Victim::start();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").into_bytes();
    let mut attacks: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("noise", (0..=255).cycle().take(100_000).collect()),
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(50)),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec()),
        ("HTTP/0.9", b"GET /v1/models\r\n\r\n".to_vec()),
        ("no version", b"GET / HTTP/9.9\r\n\r\n".to_vec()),
        ("a method without end", b"A".repeat(300_000)),
        ("a path without end", get(&format!("/{}", "a".repeat(300_000)))),
        ("a header without end", [b"GET / HTTP/1.1\r\nX: ".to_vec(), b"a".repeat(2_000_000)].concat()),
        ("headers without end", [b"GET / HTTP/1.1\r\n".to_vec(), b"X: a\r\n".repeat(100_000)].concat()),
        ("only newlines", b"\r\n".repeat(100_000)),
        ("CONNECT", b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec()),
        (
            "an upgrade",
            b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n".to_vec(),
        ),
        ("a header of bytes", b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\nConnection: close\r\n\r\n".to_vec()),
        ("a path of bytes", b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec()),
        ("an answer", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
    ];
    for base in ["/v1/files/", "/v1/batches/", "/v1/models/", "/v1/branches/", "/"] {
        for trick in [
            "../../../../etc/passwd",
            "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
            "..%5c..%5cetc",
            "%00",
            "a%00.jsonl",
            "....//",
            "/etc/passwd",
            "%252e%252e%252f",
            "~root",
            "a%0d%0aX:%20y",
            "%ff%fe",
            ".",
            "..",
            "file-..%2f..%2f/content",
            "../../../../etc/passwd/content",
        ] {
            attacks.push(("a path", get(&format!("{base}{trick}"))));
        }
    }
    for (what, attack) in attacks {
        let shown: String = String::from_utf8_lossy(&attack).chars().take(60).collect();
        let ask = if what == "a path" { exchange } else { exchange_and_end };
        let answer = ask(victim.server.address, &attack);
        victim.assert_harmless(&answer, &shown);
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.contains("root:") && !text.contains("\r\nX: y"), "{what} {shown}: {text}");
        let status = Reply::of(&answer).status;
        assert!(what != "a path" || (400..500).contains(&status), "{shown}: {text}");
    }
    victim.assert_unharmed("heads that are no requests");
}

#[test]
fn uploads_write_nowhere_else() {
    let mut victim = Victim::start();
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}});
    let part = |disposition: &str, text: &str| {
        format!("--b\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{text}\r\n")
    };
    let purpose = part("name=\"purpose\"", "batch");
    let file = |name: &str| part(&format!("name=\"file\"; filename=\"{name}\""), &line.to_string());
    let names = [
        "../../evil.jsonl",
        "/tmp/evil.jsonl",
        "..\\evil.jsonl",
        "evil\0.jsonl",
        "evil%2f..%2f",
        "",
        ".",
        "..",
        "a\r\nb",
    ];
    let mut bodies: Vec<String> = names.iter().map(|name| format!("{purpose}{}--b--\r\n", file(name))).collect();
    bodies.extend([
        String::new(),
        "--b".to_owned(),
        "--b--\r\n".to_owned(),
        format!("{purpose}{}", file("unended.jsonl")),
        format!("{}--b--\r\n", file("no-purpose.jsonl")),
        format!("{}{}--b--\r\n", part("name=\"purpose\"", "../../x"), file("purpose.jsonl")),
        format!("{}--b--\r\n", purpose.repeat(5000)),
        format!("{purpose}{}{}--b--\r\n", file("one.jsonl"), file("two.jsonl")),
    ]);
    for body in &bodies {
        let head = format!(
            "POST /v1/files HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\
             Content-Type: multipart/form-data; boundary=b\r\n\r\n",
            body.len()
        );
        let answer = exchange(victim.server.address, format!("{head}{body}").as_bytes());
        let shown: String = body.chars().take(200).collect();
        victim.assert_harmless(&answer, &shown);
        let status = Reply::of(&answer).status;
        assert!((200..500).contains(&status), "{shown}: {}", String::from_utf8_lossy(&answer));
    }
    for id in ["../../demo/config.json", "/etc/passwd", "file-", "file-../../demo/config", "\0", "a/b"] {
        let batch = json!({"input_file_id": id, "endpoint": "/v1/completions", "completion_window": "24h"});
        let reply = victim.server.post("/v1/batches", &batch);
        assert!((400..500).contains(&reply.status), "{id}: {reply:?}");
    }
    // Beside the model and what is said there is only the folder of files.
    let mut left = victim.server.folder_entries();
    left.retain(|name| !["demo", "errors.txt", "runs"].contains(&name.as_str()));
    assert_eq!(left, Vec::<String>::new());
    assert!(!std::path::Path::new("/tmp/evil.jsonl").exists());
    victim.assert_unharmed("uploads");
}

#[test]
fn bodies_without_end_are_cut_off() {
    let mut victim = Victim::start();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";
    let mut stream = connect(victim.server.address);
    write!(stream, "{head}Transfer-Encoding: chunked\r\n\r\n").expect("the head is taken");
    let piece = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    // Far more than the limit and the sockets' buffers; the server closes long before.
    let sent = (0..4096).take_while(|_| stream.write_all(piece.as_bytes()).is_ok()).count();
    assert!(sent < 4096, "256 MiB were taken of a body of at most 1 MiB");
    let declared = exchange(victim.server.address, format!("{head}Content-Length: 99999999999\r\n\r\n{{").as_bytes());
    assert_eq!(Reply::of(&declared).status, 413, "{}", String::from_utf8_lossy(&declared));
    victim.assert_unharmed("bodies without end");
}

#[test]
fn idle_and_slow_connections_hold_up_nobody() {
    let mut victim = Victim::start();
    let room = raise_file_limit().saturating_sub(500);
    let count = variable("OFFSHOOT_CONNECTIONS").unwrap_or(IDLE).min(room);
    // A third says nothing, a third begins a head, a third begins a body.
    let body = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n{\"prompt\": \"";
    let beginnings = ["", "POST /v1/comp", body];
    let open = |number: usize| -> TcpStream {
        let mut stream = connect(victim.server.address);
        stream.write_all(beginnings[number % 3].as_bytes()).expect("the server takes it");
        stream
    };
    let mut connections: Vec<TcpStream> = (0..count).map(open).collect();
    println!("{count} idle connections");
    victim.assert_unharmed("idle connections");
    for _ in 0..3 {
        connections.iter_mut().for_each(|stream| drop(stream.write_all(b"a")));
        victim.assert_unharmed("a byte of each");
    }
    drop(connections);
    victim.assert_unharmed("all of them left");
}

#[test]
fn readers_that_do_not_read_hold_up_nobody() {
    let mut victim = Victim::start();
    let body = json!({"prompt": "Question:", "max_tokens": 400, "n": 32, "stream": true, "ignore_eos": true,
        "logprobs": 5});
    let request = message("POST", "/v1/completions", body.to_string().as_bytes());
    let mut streams: Vec<TcpStream> = (0..4).map(|_| connect(victim.server.address)).collect();
    for stream in &mut streams {
        stream.write_all(&request).expect("the server takes it");
    }
    victim.assert_unharmed("readers that do not read");
    // One that reads after all gets its whole answer.
    let mut answer = Vec::new();
    streams[0].read_to_end(&mut answer).expect("it was not cut off");
    assert!(Reply::of(&answer).text.ends_with("data: [DONE]\n\n"), "{} bytes", answer.len());
    drop(streams);
    victim.assert_unharmed("they left");
}

/// Raises this process's limit of open files as far as it goes; returns it.
fn raise_file_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}
