//! The page at `/` and its events.

use serde_json::{Value, json};

use crate::protocol::served_with_keys;
use crate::served::Served;

fn first_event(served: &Served) -> Value {
    serde_json::from_str(&served.events().next_data().expect("an event")).expect("an event is JSON")
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let served = Served::start(&[]);
    let page = served.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(!page.text.contains("://"), "no address of another place");
    for risky in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc", "NONCE"] {
        assert!(!page.text.contains(risky), "{risky}");
    }
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    let nonce = policy.split("script-src 'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).expect("a nonce");
    assert!(page.text.contains(&format!("<script nonce=\"{nonce}\">")), "{nonce}");
    assert!(page.text.contains(&format!("<style nonce=\"{nonce}\">")), "{nonce}");
    assert_ne!(served.get("/").header("content-security-policy"), policy, "each page has a number of its own");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
}

#[test]
fn events_tell_what_runs_and_what_is_in_memory() {
    let served = Served::start(&["--name", "small"]);
    let before = first_event(&served);
    assert_eq!((&before["models"], &before["segments"]), (&json!(["small"]), &json!([])));
    let shared = "</script><script>alert(1)</script> Mia has 3 pens and buys 4 more. ".repeat(4);
    let kept = json!({"prompt": shared, "n": 6, "max_tokens": 40, "ignore_eos": true, "temperature": 2, "keep": true});
    served.complete(&kept);
    served.wait_for("offshoot_engine_branches_running", 0.0);
    // The first event may be as old as half a second.
    let mut viewer = served.events();
    let events = std::iter::from_fn(|| viewer.next_data());
    let events = events.map(|event| serde_json::from_str::<Value>(&event).expect("an event is JSON"));
    let is_current = |event: &Value| event["requests"]["answered"] == 1 && event["branches"]["running"] == 0;
    let event = events.take(300).find(is_current).expect("in five minutes of events");
    let requests = json!({"open": 0, "waiting": 0, "answered": 1, "refused": 0, "cancelled": 0});
    assert_eq!(event["requests"], requests);
    assert_eq!((&event["open_requests"], &event["batches"]), (&json!([]), &json!([])));
    let latency = &event["latency"];
    assert!(latency["request"]["p95"].as_f64() > Some(0.0) && latency["first_token"].is_null(), "{latency}");
    assert_eq!(event["branches"], json!({"running": 0, "waiting": 0, "kept": 6}));
    assert_eq!(event["tokens_sampled"], 240);
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is a number"));
    assert!(number(&event["prompt_tokens_logical"]) == 6 * number(&event["prompt_tokens_computed"]));
    assert!(number(&event["kv_bytes_read_flat"]) > number(&event["kv_bytes_read"]));
    let segments = event["segments"].as_array().expect("a list");
    let (root, beneath) = segments.split_first().expect("what is kept is in the map");
    assert!(root["parent"].is_null() && root["text"].as_str().is_some_and(|text| text.contains("</script>")), "{root}");
    assert!(!beneath.is_empty() && beneath.iter().enumerate().all(|(at, one)| number(&one["parent"]) <= at as u64));
    let leases: u64 = segments.iter().map(|segment| number(&segment["leases"])).sum();
    assert_eq!(leases, 6);
    let bytes: u64 = segments.iter().map(|segment| number(&segment["bytes"])).sum();
    assert_eq!(bytes, number(&event["kv"]["held"]) + number(&event["kv"]["cached"]));
}

/// With their sizes, not with their texts.
#[test]
fn events_tell_the_open_requests_and_what_was_refused() {
    let served = Served::start(&[]);
    served.post("/v1/completions", &json!({"prompt": "a", "max_tokens": "x"})).refused(400);
    let ask = json!({"prompt": "Mia has 3 pens", "n": 2, "max_tokens": 4000, "ignore_eos": true});
    let mut stream = served.stream(&ask);
    stream.next_data().expect("a first chunk");
    let mut viewer = served.events();
    let events = std::iter::from_fn(|| viewer.next_data());
    let events = events.map(|event| serde_json::from_str::<Value>(&event).expect("an event is JSON"));
    let is_current = |event: &Value| event["requests"]["open"] == 1;
    let event = events.take(300).find(is_current).expect("in five minutes of events");
    assert_eq!((&event["requests"]["refused"], &event["requests"]["answered"]), (&json!(1), &json!(0)));
    let open = event["open_requests"].as_array().expect("a list");
    let [one] = &open[..] else { panic!("one is open: {open:?}") };
    assert_eq!((&one["endpoint"], &one["prompts"], &one["results"]), (&json!("completions"), &json!(1), &json!(2)));
    assert_eq!((&one["left"], &one["is_stream"], &one["has_begun"]), (&json!(2), &json!(true), &json!(true)));
    assert!(one["seconds"].as_f64() > Some(0.0) && !one.to_string().contains("Mia"), "{one}");
    assert!(event["latency"]["first_token"]["p50"].as_f64() > Some(0.0), "{event}");
}

#[test]
fn events_need_a_key_and_tell_no_texts_of_others() {
    let mut served = served_with_keys(&["one", "two"]);
    assert_eq!(served.get("/").status, 200);
    assert_eq!(served.get("/events").refused(401).0, "invalid_api_key");
    served.set_key("one");
    served.complete(&json!({"prompt": "Mia has 3 pens", "max_tokens": 2, "keep": true}));
    served.set_key("two");
    let event = first_event(&served);
    let segments = event["segments"].as_array().expect("a list");
    assert!(!segments.is_empty() && segments.iter().all(|segment| segment["text"].is_null()), "{event}");
}

#[test]
fn a_server_has_no_page_where_none_is_wanted() {
    let served = Served::start(&["--no-page"]);
    for path in ["/", "/events"] {
        assert_eq!(served.get(path).refused(404).0, "not_found", "{path}");
    }
    served.get("/health").succeeds();
}

/// A bounded number may look on, each until it leaves.
#[test]
fn viewers_are_bounded_and_leave_their_place() {
    let served = Served::start(&[]);
    let mut viewers: Vec<_> = std::iter::repeat_with(|| served.events()).take(32).collect();
    for viewer in &mut viewers {
        viewer.next_data().expect("an event");
    }
    let refused = served.get("/events");
    assert_eq!(refused.refused(429).0, "rate_limit_exceeded");
    assert!(!refused.header("retry-after").is_empty());
    drop(viewers);
    // A server notices a closed connection when it next writes to it.
    let has_place = std::iter::repeat_with(|| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        served.events_status()
    });
    assert!(has_place.take(3000).any(|status| status == 200));
}
