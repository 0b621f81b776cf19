//! The files that commands write: what is no file is refused in a sentence before any work, streams are written to.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::batch_desk::{QUESTION, completions, demo, write};
use serde_json::json;

fn offshoot(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_offshoot"))
        .current_dir(folder)
        .env_remove("RUST_LOG")
        .env("CUDA_VISIBLE_DEVICES", "")
        .args(args)
        .output()
        .expect("the binary starts")
}

/// The commands that write one file, up to its path.
fn commands(folder: &Path) -> Vec<Vec<String>> {
    write(folder, &[completions("a", json!({"prompt": QUESTION, "max_tokens": 1}))]);
    fs::write(folder.join("samples.jsonl"), "{\"id\": 1, \"text\": \"The answer is 5\"}\n").expect("writable");
    fs::write(folder.join("problems.jsonl"), "").expect("writable");
    let demo = demo().display().to_string();
    let of = |args: &[&str]| args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>();
    vec![
        of(&["batch", "in.jsonl", "--model", &demo, "--out"]),
        of(&["vote", "samples.jsonl", "--out"]),
        of(&["plan", "in.jsonl", "--model", &demo, "--svg"]),
        of(&["tree", "run", "--svg"]),
        of(&["tree", "run", "--html"]),
    ]
}

#[test]
fn what_is_no_file_is_refused_before_any_work() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(folder.path().join("folder")).expect("writable");
    let fifo = Command::new("mkfifo").arg(folder.path().join("pipe")).status();
    let has_pipe = fifo.is_ok_and(|status| status.success());
    for command in commands(folder.path()) {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        for (path, kind) in [("folder", "a folder"), ("/dev/full", "a device"), ("pipe", "a pipe")] {
            if path == "pipe" && !has_pipe {
                continue;
            }
            let ran = offshoot(folder.path(), &[&command[..], &[path]].concat());
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert_eq!(ran.status.code(), Some(2), "{command:?} {path}: {said}");
            let sentence = format!("{path}: is {kind}, where a file for output is expected");
            assert!(said.contains(&sentence) && ran.stdout.is_empty(), "{command:?}: {said}");
        }
    }
    assert!(folder.path().join("folder").is_dir());
}

#[test]
fn streams_are_written_to() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let commands = commands(folder.path());
    for command in &commands[1..3] {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let shown = offshoot(folder.path(), &[&command[..], &["/dev/stdout"]].concat());
        assert!(shown.status.success(), "{command:?}: {}", String::from_utf8_lossy(&shown.stderr));
        let nothing = offshoot(folder.path(), &[&command[..], &["/dev/null"]].concat());
        assert!(nothing.status.success(), "{command:?}: {}", String::from_utf8_lossy(&nothing.stderr));
        assert!(shown.stdout.len() > nothing.stdout.len(), "{command:?}");
    }
    assert!(!Path::new("/dev/null").is_file() && !fs::symlink_metadata("/dev/stdout").expect("it is there").is_file());
}
