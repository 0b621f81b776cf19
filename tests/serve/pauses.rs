//! Pauses of `offshoot serve --rollout` that fail, whose clients go, or that come while the engine sleeps or has no
//! weights. What the server admits follows from the engine's state: it is open again wherever that is not paused.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::served::{Answer, QUESTION, Served};
use crate::trainer::{Tensors, logprobs, question, rollout, update, version};

/// What a verb of pauses says when it fails.
fn plainly_refused(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{}", answer.text);
    let said = answer.json();
    assert_eq!(said.as_object().map(serde_json::Map::len), Some(1), "{said}");
    said["error"].as_str().expect("a sentence").to_owned()
}

fn is_paused(served: &Served) -> bool {
    served.get("/is_paused").succeeds()["is_paused"] == true
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(300), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Requests that take long, by name.
fn long() -> serde_json::Value {
    json!({"prompt": QUESTION, "n": 2, "max_tokens": 3000, "ignore_eos": true, "seed": 1, "request_id": "long"})
}

#[test]
fn a_server_that_is_awake_without_weights_says_so_and_goes_on_after_an_update() {
    let served = rollout(&[]);
    let before = logprobs(&served);
    served.post_nothing("/sleep?level=2").succeeds();
    assert_eq!(served.post_nothing("/wake_up").succeeds()["status"], "awake");
    assert_eq!(served.post("/v1/completions", &question()).refused(503).0, "no_weights");
    assert!(plainly_refused(&served.post_nothing("/resume"), 409).contains("update them first"));
    assert_eq!(update(&served, &Tensors::demo()), "1");
    // Nobody resumes it.
    assert!(!is_paused(&served));
    assert_eq!((version(&served), logprobs(&served)), ("1".to_owned(), before));
}

#[test]
fn a_pause_that_fails_or_whose_client_goes_leaves_the_server_open() {
    let served = rollout(&[]);
    let ask = json!({"prompt": QUESTION, "max_tokens": 4, "seed": 1});
    assert!(plainly_refused(&served.post_nothing("/pause?mode=other"), 400).contains("mode"));
    assert!(plainly_refused(&served.post_nothing("/pause?other=1"), 400).contains("other"));
    std::thread::scope(|scope| {
        let open = scope.spawn(|| served.complete(&long()));
        served.wait_for("offshoot_engine_branches_running", 2.0);
        // Its client goes.
        let mut pause = TcpStream::connect(served.address.trim_start_matches("http://")).expect("it serves");
        pause
            .write_all(b"POST /pause?mode=wait HTTP/1.1\r\nhost: here\r\ncontent-length: 0\r\n\r\n")
            .expect("it reads");
        wait_until("the pause begins", || is_paused(&served));
        assert_eq!(served.post("/v1/completions", &ask).refused(503).0, "paused");
        drop(pause);
        wait_until("the server is open again", || !is_paused(&served));
        served.complete(&ask);
        // It is ended by a resume.
        let pause = scope.spawn(|| served.post_nothing("/pause?mode=wait"));
        wait_until("the pause begins", || is_paused(&served));
        served.post_nothing("/resume").succeeds();
        let said = plainly_refused(&pause.join().expect("no panic"), 409);
        assert!(said.contains("before all requests in progress had ended"), "{said}");
        served.complete(&ask);
        assert!(!open.is_finished(), "it has not ended meanwhile");
        served.post("/abort_requests", &json!({"request_ids": ["long"]})).succeeds();
        open.join().expect("no panic");
    });
}

#[test]
fn a_pause_that_waits_for_what_a_sleeping_server_holds_is_refused() {
    let served = rollout(&[]);
    let ask = json!({"prompt": QUESTION, "max_tokens": 4, "seed": 1});
    let answer = served.complete(&ask)["choices"].clone();
    std::thread::scope(|scope| {
        let mut waits = Vec::new();
        for sleep in ["/pause?mode=keep", "/sleep?level=1&mode=keep"] {
            served.post_nothing(sleep).succeeds();
            waits.push(scope.spawn(|| served.complete(&ask)));
            served.wait_for("offshoot_requests_open", waits.len() as f64);
        }
        assert!(plainly_refused(&served.post_nothing("/pause?mode=wait"), 400).contains("wake it first"));
        let said = served.post_nothing("/sleep?level=2&mode=wait").json()["error"]["message"].clone();
        assert!(said.as_str().is_some_and(|said| said.contains("wake it first")), "{said}");
        assert!(is_paused(&served));
        served.post_nothing("/wake_up").succeeds();
        assert!(is_paused(&served), "it was paused before it slept");
        served.post_nothing("/resume").succeeds();
        waits.into_iter().for_each(|wait| assert_eq!(wait.join().expect("no panic")["choices"], answer));
    });
    // Nothing is under way any more.
    served.post_nothing("/sleep?level=1&mode=keep").succeeds();
    served.post_nothing("/pause?mode=wait").succeeds();
    assert_eq!(served.post("/v1/completions", &ask).refused(503).0, "paused");
    served.post_nothing("/wake_up").succeeds();
    served.post_nothing("/resume").succeeds();
    assert_eq!(served.complete(&ask)["choices"], answer);
}

/// What sleeps during a pause leaves it as it is: whoever was refused before is refused still.
#[test]
fn memory_that_is_given_back_during_a_pause_opens_nothing() {
    let served = rollout(&[]);
    served.post_nothing("/pause").succeeds();
    served.post_nothing("/release_kv_cache_memory").succeeds();
    assert_eq!(served.post("/v1/completions", &question()).refused(503).0, "paused");
    served.post_nothing("/wake_up").succeeds();
    assert_eq!(served.post("/v1/completions", &question()).refused(503).0, "paused");
    served.post_nothing("/resume").succeeds();
    served.complete(&question());
}
