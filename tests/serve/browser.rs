//! The page in a real browser, where this machine has Chromium.

use std::process::{Command, Stdio};

use serde_json::json;

use crate::served::Served;
use crate::skip::skipped;

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// None of them is to reach anything but the server, nor to keep anything.
const OPTIONS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=3000",
    "--dump-dom",
];

fn browser() -> Option<&'static str> {
    let starts = |name: &&str| {
        let mut command = Command::new(name);
        let ran = command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        ran.is_ok_and(|status| status.success())
    };
    BROWSERS.into_iter().find(starts)
}

/// The page as the browser shows it once an event has come.
fn shown(browser: &str, address: &str) -> String {
    for _ in 0..10 {
        let profile = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new("timeout");
        command.args(["60", browser]).args(OPTIONS).arg(format!("--user-data-dir={}", profile.path().display()));
        let ran = command.arg(address).stdin(Stdio::null()).stderr(Stdio::null()).output().expect("it starts");
        let page = String::from_utf8_lossy(&ran.stdout).into_owned();
        if page.contains(">version ") {
            return page;
        }
    }
    panic!("{browser} shows no event of {address}");
}

#[test]
fn a_browser_draws_what_is_kept_and_runs_nothing_of_it() {
    let Some(browser) = browser() else { return skipped("there is no Chromium here") };
    let served = Served::start(&[]);
    let prompt = format!("<b id=hit>{}", " Mia has 3 pens and buys 4 more.".repeat(12));
    served.complete(&json!({"prompt": prompt, "n": 6, "max_tokens": 30, "ignore_eos": true, "keep": true}));
    let page = shown(browser, &served.address);
    assert!(page.contains("id=\"kept\">6<") && page.contains("id=\"sampled\">180<"), "{page}");
    assert!(page.contains(">&lt;b id=hit&gt;"), "the prompt's text is a label: {page}");
    assert!(!page.contains("<b id=\"hit\""), "the prompt's text is no part of the page: {page}");
    assert!(page.matches("<rect class=\"u").count() > 3, "{page}");
}
