//! Many clients that come, leave, keep, release and let expire, in any order: when they are gone, the server holds
//! nothing of theirs.
//!
//! `OFFSHOOT_CHURN=N` makes N requests instead of a few.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use offshoot_core::dice::Dice;
use serde_json::{Value, json};

use crate::served::{PATIENCE, Reply, Served, connect, exchange, message};

/// Requests by a plain `cargo test`.
const FEW: u64 = 300;
const CLIENTS: u64 = 12;
/// Memory for keys and values, in MiB: pages that are first used in the second half become resident then.
const POOL: &str = "32";
/// Resident memory may grow by this between two equal halves of the churn: the pool, and what allocators keep, an arena
/// of 1 MiB or so for each of some 16 threads. Requests that were not freed would be far more in 10,000 of them.
const MOST_GROWTH: i64 = (32 + 16) << 20;

/// Threads of short work, which end when they were idle for 10 s.
const IDLE_THREADS: usize = 8;

const GAUGES: [&str; 3] = ["offshoot_requests_open", "offshoot_requests_waiting", "offshoot_branches_kept"];

/// What a process holds.
#[derive(Debug)]
struct Held {
    files: usize,
    threads: usize,
    resident: i64,
}

impl Held {
    fn by(process: u32) -> Held {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the server runs");
        let field = |name: &str| -> i64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux shows it");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).expect("the server runs").count();
        Held { files, threads: field("Threads:") as usize, resident: field("VmRSS:") << 10 }
    }
}

#[test]
fn nothing_is_left_of_clients_that_come_and_go() {
    let count = std::env::var("OFFSHOOT_CHURN").map_or(FEW, |text| text.parse().expect("OFFSHOOT_CHURN: a number"));
    let mut server = Served::start(&["--threads", "2", "--kv-memory", POOL]);
    churn(server.address, 0..count / 2);
    let before = settled(&server);
    churn(server.address, count / 2..count);
    let after = settled(&server);
    println!("{before:?}\n{after:?}");
    assert!(
        after.files <= before.files && after.threads <= before.threads + IDLE_THREADS,
        "{before:?}, then {after:?}"
    );
    assert!(after.resident - before.resident < MOST_GROWTH, "{before:?}, then {after:?}");
    server.assert_well();
}

/// What the server holds once it has nothing of its clients, which must come to be.
fn settled(server: &Served) -> Held {
    let begun = Instant::now();
    loop {
        let gauges = GAUGES.map(|gauge| server.metric(gauge));
        if gauges == [0.0; 3] {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{GAUGES:?} stay at {gauges:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The connection that asked is closed when its socket is, a moment later; threads of short work end after 10 s.
    let begun = Instant::now();
    loop {
        let held = Held::by(server.process());
        std::thread::sleep(Duration::from_millis(500));
        let again = Held::by(server.process());
        if (held.files, held.threads) == (again.files, again.threads) || begun.elapsed() > PATIENCE {
            return again;
        }
    }
}

fn churn(address: SocketAddr, numbers: std::ops::Range<u64>) {
    let next = AtomicU64::new(numbers.start);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end {
                        break;
                    }
                    visit(address, number);
                }
            });
        }
    });
}

/// One client's visit, of a kind by its number.
fn visit(address: SocketAddr, number: u64) {
    let mut dice = Dice::new(number);
    let question = format!("Question: {} and {}", dice.below(4), dice.below(1000));
    let n = 1 + dice.below(4);
    let body = json!({"prompt": question, "n": n, "max_tokens": 1 + dice.below(60), "ignore_eos": true});
    match dice.below(8) {
        0 => drop(answered(address, &body)),
        1 => assert!(streamed(address, &body).ends_with("data: [DONE]\n\n")),
        2 => leave(address, &with(&body, "stream", json!(true)), dice.below(5000)),
        3 => leave(address, &body, 0),
        4 => {
            // Begins a request and leaves before it is whole.
            let whole = message("POST", "/v1/completions", body.to_string().as_bytes());
            drop(connect(address).write_all(&whole[..dice.below(whole.len())]));
        }
        5 => {
            let timed = with(&body, "timeout", json!(0.001 + dice.below(100) as f64 / 1000.0));
            let reply = post(address, &timed);
            assert!([200, 408, 504].contains(&reply.status), "{reply:?}");
        }
        6 => keep_and_release(address, &body),
        _ => {
            // Kept, and left to expire.
            let kept = with(&with(&body, "keep", json!(true)), "keep_seconds", json!(1));
            answered(address, &kept);
        }
    }
}

fn with(body: &Value, name: &str, value: Value) -> Value {
    let mut body = body.clone();
    body[name] = value;
    body
}

fn post(address: SocketAddr, body: &Value) -> Reply {
    Reply::of(&exchange(address, &message("POST", "/v1/completions", body.to_string().as_bytes())))
}

fn answered(address: SocketAddr, body: &Value) -> Value {
    let reply = post(address, body);
    assert_eq!(reply.status, 200, "{body}: {reply:?}");
    let answer = reply.json();
    assert_eq!(
        answer["choices"].as_array().map(Vec::len) as Option<usize>,
        Some(body["n"].as_u64().unwrap_or(1) as usize)
    );
    answer
}

fn streamed(address: SocketAddr, body: &Value) -> String {
    post(address, &with(body, "stream", json!(true))).text
}

/// Sends a request, reads at most so many bytes of the answer and leaves.
fn leave(address: SocketAddr, body: &Value, most: usize) {
    let mut stream = connect(address);
    stream.write_all(&message("POST", "/v1/completions", body.to_string().as_bytes())).expect("the server takes it");
    drop(stream.take(most as u64).read_to_end(&mut Vec::new()));
}

/// Keeps branches, continues one, releases all; then they are gone.
fn keep_and_release(address: SocketAddr, body: &Value) {
    let answer = answered(address, &with(body, "keep", json!(true)));
    let ids: Vec<String> = answer["choices"].as_array().expect("a list").iter().map(branch_of).collect();
    let further = json!({"parent": ids[0], "n": 3, "max_tokens": 4});
    answered(address, &further);
    for id in &ids {
        let path = format!("/v1/branches/{id}");
        let release = || Reply::of(&exchange(address, &message("DELETE", &path, b"")));
        assert_eq!((release().status, release().status), (200, 404), "{id}");
    }
    assert_eq!(post(address, &further).status, 404, "a branch that was released");
}

/// The id of the branch that a choice is kept as.
fn branch_of(choice: &Value) -> String {
    let id = choice["branch"].as_str().unwrap_or_else(|| panic!("no branch in {choice}"));
    id.to_owned()
}
