//! The Python and shell clients of this folder against one server. OFFSHOOT_CLIENTS names the interpreter of an
//! environment that has their packages (`.ci/run` makes one with requirements.txt); a script whose packages it lacks is
//! skipped.

use std::path::Path;
use std::process::Command;

use crate::served::Served;
use crate::skip::skipped;

/// The exit code of a script that lacks a package.
const SKIPPED: i32 = 77;

/// Runs a script; what it printed is the message if it fails.
fn holds(script: &str) {
    let mut server = Served::start(&["--threads", "2"]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    let mut command = match script.ends_with(".sh") {
        true => Command::new("bash"),
        false => Command::new(std::env::var_os("OFFSHOOT_CLIENTS").unwrap_or_else(|| "python3".into())),
    };
    match script.ends_with(".sh") {
        true => command.arg(path).arg(server.url()),
        false => command.arg(path).arg("--base-url").arg(server.url()),
    };
    let ran =
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("NO_PROXY", "*").output().expect("the interpreter starts");
    let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{said}");
    match ran.status.code() {
        Some(0) => server.assert_well(),
        Some(SKIPPED) => skipped(said.trim()),
        _ => panic!("{script} ends with {}:\n{said}", ran.status),
    }
}

#[test]
fn curl() {
    holds("curl.sh");
}

#[test]
fn openai_python() {
    holds("openai_client.py");
}

#[test]
fn lm_eval() {
    holds("lm_eval_client.py");
}

#[test]
fn evalplus() {
    holds("evalplus_client.py");
}

#[test]
fn inspect_ai() {
    holds("inspect_client.py");
}
