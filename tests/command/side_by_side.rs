//! Processes that start at once: each run has a folder that no other process writes to, and what it says it holds.

use std::fs;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use serde_json::{Value, json};

use crate::runs::{bytes, offshoot, run_into, task_folder};

fn started(folder: &Path, arguments: &[&str]) -> Child {
    let mut command = offshoot(folder, arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the binary starts")
}

/// Starts both at once and waits for their ends.
fn both(folder: &Path, one: &[&str], other: &[&str]) -> [Output; 2] {
    [started(folder, one), started(folder, other)].map(|child| child.wait_with_output().expect("it ends"))
}

fn seed_of(folder: &Path, out: &str) -> u64 {
    let manifest: Value = serde_json::from_slice(&bytes(folder, out, "manifest.json")).expect("JSON");
    manifest["task"]["sampling"]["seed"].as_u64().expect("a number")
}

const RUN: &[&str] = &["run", "task.json", "--limit", "1", "--threads", "1"];

fn small_task() -> tempfile::TempDir {
    task_folder(|task| {
        task["method"]["sample"]["samples"] = json!(2);
        task["sampling"]["max_tokens"] = json!(8);
    })
}

#[test]
fn of_two_runs_into_one_folder_one_is_refused_and_the_other_is_whole() {
    let folder = small_task();
    for seed in ["1", "2"] {
        run_into(folder.path(), &format!("alone-{seed}"), &["--limit", "1", "--seed", seed]);
    }
    for round in 0..8 {
        let out = format!("out-{round}");
        let run = |seed| [RUN, &["--out", &out, "--seed", seed]].concat();
        let (one, other) = (run("1"), run("2"));
        let ends = both(folder.path(), &one, &other);
        let winners: Vec<u64> =
            (1..).zip(&ends).filter(|(_, end)| end.status.success()).map(|(seed, _)| seed).collect();
        let [winner] = winners[..] else { panic!("round {round}: {ends:?}") };
        let loser = &ends[2 - winner as usize];
        let said = String::from_utf8_lossy(&loser.stderr);
        assert_eq!(loser.status.code(), Some(2), "{said}");
        assert!(said.contains("another process is writing") || said.contains("holds the results"), "{said}");
        assert_eq!(seed_of(folder.path(), &out), winner, "round {round}");
        for name in ["samples.jsonl", "items.jsonl"] {
            let alone = bytes(folder.path(), &format!("alone-{winner}"), name);
            assert!(bytes(folder.path(), &out, name) == alone, "round {round}: {name}");
        }
    }
}

#[test]
fn without_out_the_second_run_takes_the_next_number() {
    let folder = small_task();
    for round in 0..4u64 {
        let seeds = [2 * round, 2 * round + 1].map(|seed| seed.to_string());
        let [one, other] = [0, 1].map(|ix| [RUN, &["--seed", seeds[ix].as_str()]].concat());
        for end in both(folder.path(), &one, &other) {
            assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
        }
    }
    let mut seeds: Vec<u64> = (1..=8)
        .map(|number| match number {
            1 => seed_of(folder.path(), "runs/pens"),
            number => seed_of(folder.path(), &format!("runs/pens-{number}")),
        })
        .collect();
    seeds.sort_unstable();
    assert_eq!(seeds, [0, 1, 2, 3, 4, 5, 6, 7], "each run has a folder and kept its seed");
}

#[test]
fn a_folder_of_a_run_that_could_not_begin_is_gone() {
    let folder = small_task();
    let end = offshoot(folder.path(), &["run", "task.json", "--model", "nowhere", "--out", "out"]).output();
    assert_eq!(end.expect("the binary starts").status.code(), Some(2));
    assert!(!folder.path().join("out").exists());
    fs::write(folder.path().join("file"), "x").expect("written");
    let end = offshoot(folder.path(), &["run", "task.json", "--out", "file"]).output().expect("the binary starts");
    assert!(String::from_utf8_lossy(&end.stderr).contains("is a file"), "{end:?}");
    assert_eq!(end.status.code(), Some(2));
}
